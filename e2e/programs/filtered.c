/* A seccomp filter on the calling thread, and so on all that it makes afterwards. What the program
 * does then by libc's functions must need no system call that libc itself would not make: threads,
 * mutexes, a fork, the end. argv[1]: "kill" ends the process for one that is not known, "orphan"
 * does so in a program whose planner is gone. */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { BYTES = 16 << 20 };

#define FORBID(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static char *p;

static void lay_on(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FORBID(ioctl), FORBID(userfaultfd), FORBID(process_vm_readv), FORBID(get_robust_list),
        FORBID(getpid), FORBID(gettid), FORBID(openat), FORBID(statx), FORBID(newfstatat),
        FORBID(unlink), FORBID(unlinkat), FORBID(nanosleep), FORBID(socket), FORBID(tgkill),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    /* A second one comes under the first. */
    for (int n = 0; n < 2; n++) MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void *work(void *arg) {
    size_t i = (size_t)arg;
    for (size_t k = 0; k < 64; k++) check_page(p + (i * 64 + k) * PAGE, i * 64 + k, 1);
    return arg;
}

int main(int argc, char **argv) {
    p = demoted(BYTES);
    if (argc > 1 && strcmp(argv[1], "orphan") == 0) {
        say("ALONE %d\n", (int)getpid());
        pause_ms(1000);
    }
    lay_on();
    for (size_t i = 0; i < 32; i++) {
        pthread_t t;
        EXPECT(pthread_create(&t, NULL, work, (void *)i) == 0);
        EXPECT(pthread_join(t, NULL) == 0);
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (size_t i = 0; i < 64; i++) {
        /* Over what is in a tier. */
        pthread_mutex_t *mutex = (pthread_mutex_t *)(p + (2048 + i * 16) * PAGE);
        EXPECT(pthread_mutex_init(mutex, &attributes) == 0);
        make_page((char *)mutex, 2048 + i * 16, 1);
    }
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check(p, BYTES, 1);
        _exit(0);
    }
    join_child(pid);
    check(p, BYTES, 1);
    return done();
}
