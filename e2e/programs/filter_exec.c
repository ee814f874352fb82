/* Lays a seccomp filter on itself and executes itself under it, as sandboxes do: what the new
 * program does itself is allowed, and the rest ends it. */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { BYTES = 16 << 20 };

#define FORBID(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(int argc, char **argv) {
    if (argc > 1) {
        char *p = map(BYTES);
        fill(p, BYTES, 1);
        pause_ms(500);
        check(p, BYTES, 1);
        return done();
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FORBID(userfaultfd), FORBID(socket), FORBID(process_vm_readv), FORBID(madvise),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    execl("/proc/self/exe", argv[0], "again", (char *)NULL);
    BAD("exec: %s", strerror(errno));
}
