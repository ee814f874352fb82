/* A child that has all of its pages is on its own, whatever another child inherited from the parent
 * while the first was still waiting. */
#include "hazard.h"

int main(void) {
    /* On an emulated machine all takes longer (TERRACE_PATIENCE, as for the tests). */
    const char *patience = getenv("TERRACE_PATIENCE");
    double times = patience != NULL ? atof(patience) : 1;
    size_t bytes = 24 * MIB;
    char *p = demoted(bytes);
    pid_t first = fork();
    MUST(first);
    if (first == 0) {
        check(p, bytes, 1);
        /* What the kernel would announce if anybody still listened. */
        pause_ms(300);
        MUST(madvise(p, bytes / 2, MADV_DONTNEED));
        check_zero(p, bytes / 2);
        fill(p, bytes / 2, 2);
        MUST(munmap(p + bytes / 2, bytes / 4));
        check(p, bytes / 2, 2);
        _exit(0);
    }
    pid_t second = fork();
    MUST(second);
    if (second == 0) {
        pause_ms((unsigned)(8000 * times));
        check(p, bytes, 1);
        _exit(0);
    }
    double start = now_s();
    join_child(first);
    if (now_s() - start > 6 * times)
        BAD("the first child waited %.1f s for the second", now_s() - start);
    check(p, bytes, 1);
    join_child(second);
    return done();
}
