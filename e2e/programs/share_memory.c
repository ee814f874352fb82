/* A process that shares its parent's memory outlives it: it still reads every byte, and fresh memory
 * does not wait for threads that are gone. argv[1]: "clone" by libc, "syscall" by number, "vfork"
 * for a child that borrows the memory while its parent waits. */
#include "hazard.h"
#include <sched.h>

enum { BYTES = 16 << 20 };

static char *p, *fresh;
static int ends[2];

static int sharer(void *arg) {
    (void)arg;
    /* Until the parent is gone. */
    while (getppid() == *(volatile pid_t *)(fresh + BYTES)) pause_ms(10);
    pause_ms(300);
    for (size_t i = 0; i < BYTES / PAGE; i++)
        if (!is_page(p + i * PAGE, i, 1)) _exit(3);
    for (size_t i = 0; i < BYTES / PAGE; i++) make_page(fresh + i * PAGE, i, 4);
    for (size_t i = 0; i < BYTES / PAGE; i++)
        if (!is_page(fresh + i * PAGE, i, 4)) _exit(4);
    say("OK\n");
    syscall(SYS_exit, 0);
    return 0;
}

static int borrower(void *arg) {
    (void)arg;
    for (size_t i = 0; i < BYTES / PAGE; i++)
        if (!is_page(p + i * PAGE, i, 1)) _exit(3);
    p[5 * PAGE] = 'v';
    _exit(0);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "clone";
    MUST(pipe(ends));
    fresh = map(BYTES + PAGE);
    /* Most of it is there, so that it is registered. */
    fill(fresh, BYTES / 8 * 7, 2);
    *(volatile pid_t *)(fresh + BYTES) = getpid();
    p = demoted(BYTES);
    static char stack[256 << 10] __attribute__((aligned(64)));
    pid_t pid = -1;
    if (strcmp(how, "vfork") == 0) {
        pid = clone(borrower, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        MUST(pid);
        join_child(pid);
        EXPECT(p[5 * PAGE] == 'v');
        make_page(p + 5 * PAGE, 5, 1);
        wait_demoted(BYTES); /* nothing has stopped */
        check(p, BYTES, 1);
        return done();
    }
    int flags = CLONE_VM | CLONE_FILES | SIGCHLD;
    pid = clone(sharer, stack + sizeof stack, flags, NULL);
    MUST(pid);
    _exit(0);
}
