/* Another process gives the advice (process_madvise): cold pages are paged out or populated from
 * outside, and all bytes stay. */
#include "hazard.h"
#include <sys/uio.h>

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    pid_t parent = getpid();
    for (int round = 0; round < 3; round++) {
        pid_t pid = vfork();
        if (pid == 0) {
            int fd = (int)syscall(SYS_pidfd_open, parent, 0);
            struct iovec range = {p, bytes};
            int advice[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED};
            long n = syscall(SYS_process_madvise, fd, &range, 1, advice[round], 0);
            _exit(n == (long)bytes ? 0 : 9);
        }
        MUST(pid);
        int status;
        MUST(waitpid(pid, &status, 0));
        if (WEXITSTATUS(status) == 9) skip("no process_madvise");
        pause_ms(400);
        check(p, bytes, 1);
    }
    return done();
}
