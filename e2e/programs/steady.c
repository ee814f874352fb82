/* Touches its memory all the time, a page here and a page there, checks each and writes some, while
 * things happen to its planner, its threads or its limits. On SIGTERM it checks everything and says
 * how long the slowest access took.
 *
 * Arguments: MiB (default 32), and "now" not to wait until its memory is in tiers. */
#include "hazard.h"

static volatile sig_atomic_t ended;

static void end(int signal) {
    ended = signal;
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? (size_t)atoi(argv[1]) : 32) * MIB, pages = bytes / PAGE;
    struct sigaction action = {.sa_handler = end};
    MUST(sigaction(SIGTERM, &action, NULL));
    static unsigned char version[64 * 256 * 4];
    EXPECT(pages <= sizeof version);
    char *p = map(bytes);
    fill(p, bytes, 0);
    if (argc <= 2) wait_demoted(bytes);
    say("PID %d\n", (int)getpid());
    uint64_t random = 88172645463325252u, accesses = 0;
    double slowest = 0;
    while (!ended) {
        size_t i = next_random(&random) % pages;
        char *page = p + i * PAGE;
        double before = now_s();
        *(volatile char *)page;
        double took = now_s() - before;
        if (took > slowest) slowest = took;
        check_page(page, i, version[i]);
        if (accesses++ % 4 == 0) make_page(page, i, ++version[i]);
        struct timespec t = {0, 200000};
        nanosleep(&t, NULL);
    }
    for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, version[i]);
    say("SLOWEST %u us of %llu accesses\n", (unsigned)(slowest * 1e6),
        (unsigned long long)accesses);
    return done();
}
