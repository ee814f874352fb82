/* clone with CLONE_CHILD_CLEARTID: the kernel clears a word when the thread is gone, and wakes who
 * waits there. The word is in demoted memory that the thread itself never touches. */
#include "hazard.h"
#include <linux/futex.h>
#include <sched.h>

enum { ROUNDS = 8 };

static int ends_soon(void *arg) {
    (void)arg;
    struct timespec t = {0, 600 * 1000000};
    syscall(SYS_nanosleep, &t, NULL);
    syscall(SYS_exit, 0);
    return 0;
}

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = map(bytes);
    static char stack[64 << 10] __attribute__((aligned(16)));
    int cleared = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fill(p, bytes, 1);
        _Atomic int *word = (void *)(p + (size_t)(round * 397 + 3) * PAGE);
        *word = 1;
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                    CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
        MUST(clone(ends_soon, stack + sizeof stack, flags, NULL, NULL, NULL, word));
        struct timespec limit = {15, 0};
        pause_ms(900);
        while (*word != 0)
            if (syscall(SYS_futex, word, FUTEX_WAIT, 1, &limit, NULL, 0) == -1 &&
                errno == ETIMEDOUT)
                BAD("the word of round %d was never cleared", round);
        cleared++;
    }
    say("CLEARED %d\n", cleared);
    return done();
}
