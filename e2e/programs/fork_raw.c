/* Children made behind libc's back - by the system call itself, clone3, clone() and _Fork() - read
 * everything as it was, or end by a signal; they never read zeros. argv[1] says how. */
#include "hazard.h"
#include <linux/sched.h>
#include <sched.h>

enum { BYTES = 24 << 20 };

static char *p;

/* The system call without any function of libc's. */
static pid_t bare_clone(void) {
    long result;
#ifdef __x86_64__
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_clone), "D"((long)SIGCHLD), "S"(0L), "d"(0L), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
#else
    result = -1;
    skip("only x86-64 has the bare call");
#endif
    return (pid_t)result;
}

static void verify_all(void) {
    check(p, BYTES, 1);
    fill(p, BYTES, 99);
    check(p, BYTES, 99);
}

static int in_clone(void *arg) {
    EXPECT(arg == p);
    verify_all();
    return 0;
}

static pid_t make_child(const char *how) {
    if (strcmp(how, "bare") == 0) return bare_clone();
    if (strcmp(how, "syscall") == 0) return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#ifdef SYS_fork
    if (strcmp(how, "sys_fork") == 0) return (pid_t)syscall(SYS_fork);
#endif
    if (strcmp(how, "clone3") == 0) {
        int pidfd = -1;
        struct clone_args args = {
            .flags = CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD};
        pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
        if (pid < 0 && errno == ENOSYS) skip("no clone3");
        if (pid > 0) EXPECT(pidfd >= 0);
        return pid;
    }
    if (strcmp(how, "_Fork") == 0) {
        pid_t (*raw)(void) = _Fork;
        return raw();
    }
    if (strcmp(how, "clone") == 0) {
        static char stack[256 << 10] __attribute__((aligned(64)));
        return clone(in_clone, stack + sizeof stack, SIGCHLD, p);
    }
    BAD("how?");
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "syscall";
    /* Only a child that nobody could see coming may end by a signal. */
    bool may_die = strcmp(how, "bare") == 0;
    p = demoted(BYTES);
    for (int round = 0; round < 3; round++) {
        if (round > 0) {
            fill(p, BYTES, 1); /* what is shared with a child does not go down until it is written */
            wait_demoted(BYTES);
        }
        pid_t pid = make_child(how);
        MUST(pid);
        if (pid == 0) {
            verify_all();
            if (round == 1) exit(0); /* atexit handlers of the runtime run there too */
            if (round == 2) {        /* and a fork of its own */
                pid_t grandchild = fork();
                MUST(grandchild);
                if (grandchild == 0) {
                    check(p, BYTES, 99);
                    _exit(0);
                }
                join_child(grandchild);
            }
            _exit(0);
        }
        int status;
        MUST(waitpid(pid, &status, 0));
        if (WIFSIGNALED(status)) {
            if (!may_die || WTERMSIG(status) != SIGSEGV)
                BAD("%s, round %d: child ended by signal %d", how, round, WTERMSIG(status));
            say("NOTE ended by signal %d\n", WTERMSIG(status));
        } else if (WEXITSTATUS(status) != 0) {
            _exit(WEXITSTATUS(status)); /* it has said why */
        }
        check(p, BYTES, 1);
    }
    return done();
}
