/* A forked child unmaps, moves and drops what it has not read yet; its parent keeps its own. */
#include "hazard.h"

int main(void) {
    size_t bytes = 24 * MIB, third = 8 * MIB;
    char *p = demoted(bytes);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        MUST(munmap(p, third));
        MUST(madvise(p + third, third, MADV_DONTNEED));
        check_zero(p + third, third);
        char *to = mremap(p + 2 * third, third, third + MIB, MREMAP_MAYMOVE);
        MUST(to);
        for (size_t i = 0; i < third / PAGE; i++)
            check_page(to + i * PAGE, 2 * third / PAGE + i, 1);
        check_zero(to + third, MIB);
        char *again = map(third);
        check_zero(again, third);
        _exit(0);
    }
    join_child(pid);
    check(p, bytes, 1);
    return done();
}
