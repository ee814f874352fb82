/* The runtime must end the program while a handler of the program's own for SIGABRT reads memory in
 * tiers. A filter that the program lays on all threads by its own instruction, and that fails ioctl,
 * is what the runtime cannot go on with: `abort_handler` ends by SIGABRT at the first page, and
 * where nothing is in tiers by abort. */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { BYTES = 16 << 20 };

static char *p;

static void on_abort(int number) {
    check(p, BYTES, 1);
    signal(number, SIG_DFL);
    raise(number);
}

int main(void) {
#ifdef __x86_64__
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    signal(SIGABRT, on_abort);
    p = demoted(BYTES);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    EXPECT(bare_call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC,
                (long)&program) == 0);
    check(p, BYTES, 1);
    abort();
#else
    skip("the instruction is x86-64's");
#endif
}
