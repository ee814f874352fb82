/* Lays a seccomp filter on all of its threads while its planner has yet to answer. */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#define FORBID(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FORBID(ioctl), FORBID(madvise), FORBID(recvfrom), FORBID(sendto), FORBID(clone3),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    unsigned flags = SECCOMP_FILTER_FLAG_TSYNC;
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
    say("FILTERED\n");
    pause_ms(1500);
    return done();
}
