/* Another process traces a thread of this one for a while. Its memory stays right, and goes down
 * again afterwards. */
#include "hazard.h"
#include <sys/ptrace.h>

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    pid_t self = getpid(), pid = fork();
    MUST(pid);
    if (pid == 0) {
        for (int n = 0; n < 4; n++) {
            /* It may be traced by somebody else just now. */
            while (ptrace(PTRACE_SEIZE, self, 0, 0) != 0) {
                if (errno != EPERM) BAD("ptrace: %s", strerror(errno));
                pause_ms(1);
            }
            pause_ms(400);
            MUST(ptrace(PTRACE_INTERRUPT, self, 0, 0));
            int status;
            MUST(waitpid(self, &status, __WALL));
            pause_ms(50);
            MUST(ptrace(PTRACE_DETACH, self, 0, 0));
            pause_ms(100);
        }
        _exit(0);
    }
    double end = now_s() + 3;
    for (uint64_t seed = 1; now_s() < end;) {
        for (int n = 0; n < 400; n++) {
            size_t i = next_random(&seed) % (bytes / PAGE);
            check_page(p + i * PAGE, i, 1);
        }
        pause_ms(10);
    }
    join_child(pid);
    wait_demoted(bytes);
    check(p, bytes, 1);
    return done();
}
