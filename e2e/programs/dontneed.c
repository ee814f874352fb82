/* MADV_DONTNEED on demoted pages reads as zeros, never as what they were. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    /* Every other 1 MiB and 3 pages: across the borders of regions. */
    for (size_t at = 0; at + MIB + 3 * PAGE <= bytes; at += 2 * MIB)
        MUST(madvise(p + at, MIB + 3 * PAGE, MADV_DONTNEED));
    for (size_t i = 0; i < bytes / PAGE; i++) {
        size_t within = i * PAGE % (2 * MIB);
        if (within < MIB + 3 * PAGE)
            check_zero(p + i * PAGE, PAGE);
        else
            check_page(p + i * PAGE, i, 1);
    }
    fill(p, bytes, 2);
    wait_demoted(bytes);
    check(p, bytes, 2);
    wait_demoted(bytes);
    MUST(madvise(p, bytes, MADV_DONTNEED));
    check_zero(p, bytes);
    fill(p, bytes, 3);
    check(p, bytes, 3);
    return done();
}
