/* Signal handlers on an alternate stack that is itself demoted; demoted memory read in them. */
#include "hazard.h"
#include <sys/time.h>

static char *p;
static _Atomic unsigned handled, wrong;

static void handler(int signal) {
    (void)signal;
    unsigned n = handled++;
    size_t i = (n * 37) % 2048;
    if (!is_page(p + i * PAGE, i, 1)) wrong++;
}

static void arm(long us) {
    struct itimerval timer = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

int main(void) {
    size_t bytes = 16 * MIB;
    p = map(bytes);
    fill(p, bytes, 1);
    stack_t stack = {.ss_sp = p + bytes - MIB, .ss_size = MIB};
    MUST(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    MUST(sigaction(SIGUSR1, &action, NULL));
    MUST(sigaction(SIGALRM, &action, NULL));
    wait_demoted(bytes);
    MUST(raise(SIGUSR1));
    EXPECT(handled == 1 && wrong == 0);
    /* Signals that come while a fault is being served. */
    wait_demoted(bytes);
    arm(500);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < (bytes - MIB) / PAGE; i++) check_page(p + i * PAGE, i, 1);
        pause_ms(300);
    }
    arm(0);
    EXPECT(handled > 50 && wrong == 0);
    return done();
}
