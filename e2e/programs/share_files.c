/* A process with memory of its own that shares its parent's descriptors (`clone` with CLONE_FILES,
 * without CLONE_VM): what is closed in one is closed in the other. */
#include "hazard.h"
#include <sched.h>

enum { BYTES = 16 << 20 };

static char *p;

static int sharer(void *arg) {
    (void)arg;
    check(p, BYTES, 1);
    _exit(0);
}

int main(void) {
    p = demoted(BYTES);
    static char stack[256 << 10] __attribute__((aligned(64)));
    pid_t pid = clone(sharer, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
    MUST(pid);
    join_child(pid);
    check(p, BYTES, 1);
    fill(p, BYTES, 2);
    pause_ms(1500); /* some windows, in which it might go down */
    check(p, BYTES, 2);
    return done();
}
