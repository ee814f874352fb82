/* A cold area in which every 32nd page is read all the time, and then another page beside each of
 * these: says "PID pid" when it is filled, and goes on until SIGTERM. SIGUSR1 makes it change. */
#include "hazard.h"

static volatile sig_atomic_t ended, shift;

static void end(int signal) {
    ended = signal;
}

static void change(int signal) {
    (void)signal;
    shift = 16;
}

int main(void) {
    size_t bytes = 32 * MIB;
    struct sigaction on_end = {.sa_handler = end}, on_change = {.sa_handler = change};
    MUST(sigaction(SIGTERM, &on_end, NULL));
    MUST(sigaction(SIGUSR1, &on_change, NULL));
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) BAD("mmap: %s", strerror(errno));
    fill(p, bytes, 0);
    say("PID %d\n", (int)getpid());
    while (!ended) {
        for (size_t at = (size_t)shift * PAGE; at < bytes; at += 32 * PAGE) *(volatile char *)(p + at);
        pause_ms(2);
    }
    check(p, bytes, 0);
    return done();
}
