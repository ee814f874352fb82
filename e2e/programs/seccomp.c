/* A seccomp filter of the program's own, laid on after its memory went down, which forbids what the
 * runtime lives from: on the calling thread alone the program goes on as before; on all threads at
 * once, the runtime has left by then. argv[1]: "thread" and "all" kill the process for it, "errno"
 * fails the calls on all threads, "strict" allows read, write and exit alone. */
#include "hazard.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { BYTES = 16 << 20 };

#define FORBID(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, answer)

static char *p;

static void lay_on(uint32_t answer, unsigned flags) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FORBID(ioctl), FORBID(madvise), FORBID(userfaultfd), FORBID(process_vm_readv),
        FORBID(socket), FORBID(sendto), FORBID(recvfrom), FORBID(sched_setaffinity),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
}

static void *strict(void *arg) {
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    check(p, BYTES, 1);
    *(volatile char *)arg = 'y';
    syscall(SYS_exit, 0);
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "thread";
    p = demoted(BYTES);
    bool all = false;
    if (strcmp(how, "strict") == 0) {
        static char seen;
        pthread_t t;
        pthread_create(&t, NULL, strict, &seen);
        pthread_join(t, NULL);
        EXPECT(seen == 'y');
    } else if (strcmp(how, "thread") == 0) {
        lay_on(SECCOMP_RET_KILL_PROCESS, 0);
    } else {
        all = true;
        uint32_t answer = SECCOMP_RET_KILL_PROCESS;
        if (strcmp(how, "errno") == 0) answer = SECCOMP_RET_ERRNO | EPERM;
        if (strcmp(how, "kill_thread") == 0) answer = SECCOMP_RET_KILL_THREAD;
        lay_on(answer, SECCOMP_FILTER_FLAG_TSYNC);
    }
    check(p, BYTES, 1);
    if (all) pause_ms(1500); /* some windows, in which nobody of ours may stir */
    fill(p, BYTES, 2);
    if (!all) wait_demoted(BYTES);
    check(p, BYTES, 2);
    char *fresh = map(BYTES);
    fill(fresh, BYTES, 3);
    check(fresh, BYTES, 3);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check(p, BYTES, 2);
        _exit(0);
    }
    join_child(pid);
    return done();
}
