/* mlockall, in the middle of which a handler forks. Both need all memory at home. */
#include "hazard.h"
#include <sys/time.h>

#define AREA (192 * MIB)

static volatile sig_atomic_t forks;

static void on_alarm(int signal) {
    (void)signal;
    int before = errno, status;
    pid_t child = fork();
    if (child == 0) _exit(0);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    forks++;
    errno = before;
}

int main(void) {
    char *area = demoted(AREA);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval once = {.it_value = {0, 30000}};
    MUST(setitimer(ITIMER_REAL, &once, NULL));
    if (mlockall(MCL_CURRENT) != 0) skip(strerror(errno));
    while (forks < 1) pause_ms(1);
    check(area, AREA, 1);
    return done();
}
