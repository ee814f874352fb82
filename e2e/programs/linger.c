/* Not a hazard of its own: a program that stays, for tests that do things to it or to terrace.
 * On SIGINT or SIGTERM it checks its memory and ends with status 42. */
#include "hazard.h"

static volatile sig_atomic_t ended;

static void end(int signal) {
    ended = signal;
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 16) * MIB;
    struct sigaction action = {.sa_handler = end};
    if (argc > 1 && strcmp(argv[1], "default") == 0) action.sa_handler = SIG_DFL;
    MUST(sigaction(SIGINT, &action, NULL));
    MUST(sigaction(SIGTERM, &action, NULL));
    char *p = demoted(bytes);
    say("PID %d\n", (int)getpid());
    while (!ended) pause_ms(20);
    check(p, bytes, 1);
    fill(p, bytes, 2);
    check(p, bytes, 2);
    say("OK\n");
    return 42;
}
