/* MADV_FREE leaves each page old or zero; a write after it stays. By an instruction of the program's
 * own: by libc's function followed memory is dropped at once (free_again.c).
 *
 * A mapping of its own for each round: pages that were in memory when they were freed and are
 * written again stay there (docs/limits.md), and would be missing in the next round's wait. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    static const char zero[4096];
    for (int round = 0; round < 3; round++) {
        char *p = demoted(bytes);
        /* What is in memory when it is freed stays there: more must be down than is asked for below. */
        wait_demoted(bytes * 4 / 3);
        MUST(bare_call(SYS_madvise, (long)p, (long)bytes, MADV_FREE));
        if (round == 1) pause_ms(500);
        for (size_t i = 0; i < bytes / PAGE; i++) {
            if (round == 2 && i % 2) continue;
            char *page = p + i * PAGE;
            if (memcmp(page, zero, PAGE) != 0) check_page(page, i, 1);
        }
        fill(p, bytes, 2);
        /* Most were in tiers, came back as zeros, and go down again. */
        wait_demoted(bytes);
        check(p, bytes, 2);
        /* Freed while most of it is in memory, and then, without a touch between, again. */
        MUST(bare_call(SYS_madvise, (long)p, (long)bytes, MADV_FREE));
        MUST(bare_call(SYS_madvise, (long)p, (long)bytes / 2, MADV_FREE));
        fill(p, bytes, 3);
        pause_ms(500);
        check(p, bytes, 3);
        MUST(munmap(p, bytes));
    }
    return done();
}
