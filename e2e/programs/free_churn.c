/* Blocks that are given up by MADV_FREE and filled again at once, over and over, stay where they
 * are, as they would without Terrace; but not all of a program's memory does. */
#include "hazard.h"

/* Every page of what was given up is as it was or zero. */
static void check_freed(const char *p, size_t pages, uint64_t version) {
    static const char zero[4096];
    for (size_t i = 0; i < pages; i++)
        if (memcmp(p + i * PAGE, zero, PAGE) != 0) check_page(p + i * PAGE, i, version);
}

int main(void) {
    enum { BLOCKS = 8, PAGES = 65, ROUNDS = 40, LARGE = 256 };
    size_t bytes = 64 * MIB, step = 3 * PAGES * PAGE, left = 0, dropped = 0;
    char *p = demoted(bytes);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < BLOCKS; k++) {
            char *block = p + (size_t)k * step;
            fill(block, PAGES * PAGE, round);
            check(block, PAGES * PAGE, round);
            MUST(madvise(block, PAGES * PAGE, MADV_FREE));
            if (round >= 2) left += present(block, PAGES);
            if (round % 3 == 0) check_freed(block, PAGES, round);
        }
    }
    /* Some pages are looked at by the tracker, some cool and go down. */
    if (left < (ROUNDS - 2) * BLOCKS * PAGES / 2) BAD("%zu pages were left", left);
    /* Half of all memory, block by block, is twice of what may be left. */
    char *half = p + bytes / 2;
    for (uint64_t round = 0; round < 4; round++) {
        for (size_t at = 0; at < bytes / 2; at += LARGE * PAGE) {
            fill(half + at, LARGE * PAGE, round);
            MUST(madvise(half + at, LARGE * PAGE, MADV_FREE));
            if (round > 0) dropped += LARGE - present(half + at, LARGE);
        }
    }
    if (dropped < 3 * bytes / 2 / PAGE * 3 / 8) BAD("only %zu pages were dropped", dropped);
    /* What was left is memory like any other. */
    fill(p, bytes, ROUNDS);
    wait_demoted(bytes);
    check(p, bytes, ROUNDS);
    return done();
}
