/* Asks whether a seccomp filter could be laid, in the ways that programs do, and lays none. */
#include "hazard.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>

enum { BYTES = 16 << 20 };

int main(void) {
    EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
    for (unsigned flags = 0; flags <= SECCOMP_FILTER_FLAG_TSYNC; flags++)
        EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, NULL) == -1 && errno == EFAULT);
    uint32_t action = SECCOMP_RET_ERRNO;
    EXPECT(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0);
    char *p = demoted(BYTES);
    check(p, BYTES, 1);
    return done();
}
