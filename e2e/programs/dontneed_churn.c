/* A freed range that is used again quickly is let go for a while, and goes down again later. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    MUST(madvise(p, bytes, MADV_DONTNEED));
    /* Fresh faults in a third of each 2 MiB: enough to count as churn, so that the kernel fills
     * the rest without anybody looking. */
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (i % 512 < 170) p[i * PAGE] = 1;
    pause_ms(700);
    check_zero(p + 400 * PAGE, 100 * PAGE);
    fill(p, bytes, 2);
    wait_demoted(bytes);
    check(p, bytes, 2);
    return done();
}
