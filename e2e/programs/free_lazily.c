/* MADV_FREE leaves each page old or zero; a write after it stays. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    static const char zero[4096];
    for (int round = 0; round < 3; round++) {
        MUST(madvise(p, bytes, MADV_FREE));
        if (round == 1) pause_ms(500);
        for (size_t i = 0; i < bytes / PAGE; i++) {
            if (round == 2 && i % 2) continue;
            char *page = p + i * PAGE;
            if (memcmp(page, zero, PAGE) != 0) check_page(page, i, (uint64_t)round + 1);
        }
        fill(p, bytes, (uint64_t)round + 2);
        wait_demoted(bytes);
        check(p, bytes, (uint64_t)round + 2);
        wait_demoted(bytes);
    }
    return done();
}
