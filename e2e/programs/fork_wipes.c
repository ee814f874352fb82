/* A child finds zeros in what its parent marked MADV_WIPEONFORK, before or after it was demoted, and
 * the bytes in everything else, also where both lie beside each other. */
#include "hazard.h"

int main(void) {
    size_t bytes = 24 * MIB;
    char *p = map(bytes), *q = map(bytes);
    MUST(madvise(p, bytes, MADV_WIPEONFORK));
    fill(p, bytes, 1);
    fill(q, bytes, 1);
    wait_demoted(2 * bytes);
    /* Half of the other one, once it is in tiers; not on the boundary of a region. */
    size_t half = 13 * MIB + 7 * PAGE;
    MUST(madvise(q, half, MADV_WIPEONFORK));
    for (int round = 0; round < 2; round++) {
        if (round == 1) {
            /* And back again: content that a child has a claim to. */
            check(p, bytes, 1);
            check(q, bytes, 1);
            fill(p, bytes, 1);
            fill(q, bytes, 1);
            MUST(madvise(p, 8 * MIB, MADV_KEEPONFORK));
            wait_demoted(2 * bytes);
        }
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            size_t kept = round == 1 ? 8 * MIB : 0;
            check(p, kept, 1);
            check_zero(p + kept, bytes - kept);
            check_zero(q, half);
            for (size_t i = half / PAGE; i < bytes / PAGE; i++) check_page(q + i * PAGE, i, 1);
            fill(p, bytes, 5);
            check(p, bytes, 5);
            _exit(0);
        }
        join_child(pid);
    }
    check(p, bytes, 1);
    check(q, bytes, 1);
    return done();
}
