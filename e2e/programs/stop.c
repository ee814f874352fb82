/* SIGSTOP and SIGCONT while pages come and go. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    pid_t self = getpid(), pid = fork();
    MUST(pid);
    if (pid == 0) {
        for (int n = 0; n < 8; n++) {
            MUST(kill(self, SIGSTOP));
            pause_ms(30 + 60 * (unsigned)n);
            MUST(kill(self, SIGCONT));
            pause_ms(80);
        }
        _exit(0);
    }
    double end = now_s() + 4;
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
