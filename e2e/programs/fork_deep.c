/* A child of a child of a child of a child, each of which changes a page and passes all on. */
#include "hazard.h"

enum { DEPTH = 5 };

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    pid_t main_pid = getpid();
    int depth = 0;
    for (;;) {
        make_page(p + (size_t)depth * PAGE, (uint64_t)depth, 2);
        if (depth == DEPTH) break;
        pid_t pid = fork();
        MUST(pid);
        if (pid != 0) {
            /* Meanwhile its parent goes on, and writes where the child must not see it. */
            fill(p + 64 * PAGE, bytes - 64 * PAGE, 9);
            join_child(pid);
            if (getpid() != main_pid) _exit(0);
            return done();
        }
        depth++;
    }
    for (int i = 0; i < DEPTH; i++) check_page(p + (size_t)i * PAGE, (uint64_t)i, 2);
    for (size_t i = DEPTH + 1; i < 64; i++) check_page(p + i * PAGE, i, 1);
    /* Every parent wrote after its fork: this one sees what was there before the first of them. */
    for (size_t i = 64; i < bytes / PAGE; i++) check_page(p + i * PAGE, i, 1);
    _exit(0);
}
