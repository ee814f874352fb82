/* A hot and a cold area, for those who ask about addresses. It says "AREA name address" for each:
 * "cold" is written once and never touched again, "hot" is read all the time, "small" is too small
 * to be followed, "shared" is shared memory. Then it goes on until SIGTERM.
 *
 * With an argument N, "hot" is left alone until N pages are in tiers, then read as a whole once, and
 * so on: whatever goes down comes back at once. */
#include "hazard.h"

static volatile sig_atomic_t ended;

static void end(int signal) {
    ended = signal;
}

static char *area(const char *name, size_t bytes, int flags) {
    /* On a boundary of regions, with a gap on both sides: areas share no region. */
    size_t region = 2 * MIB;
    char *hole = mmap(NULL, bytes + 3 * region, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED) BAD("mmap: %s", strerror(errno));
    char *start = (char *)(((uintptr_t)hole + 2 * region - 1) / region * region);
    char *p = mmap(start, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (p == MAP_FAILED) BAD("mmap: %s", strerror(errno));
    fill(p, bytes, 0);
    say("AREA %s %p\n", name, (void *)p);
    return p;
}

int main(int argc, char **argv) {
    bool thrashes = argc > 1 && strcmp(argv[1], "thrash") == 0;
    size_t bytes = 16 * MIB;
    struct sigaction action = {.sa_handler = end};
    MUST(sigaction(SIGTERM, &action, NULL));
    char *cold = thrashes ? NULL : area("cold", bytes, MAP_PRIVATE);
    char *hot = area("hot", bytes, MAP_PRIVATE);
    area("small", MIB / 8, MAP_PRIVATE);
    area("shared", bytes, MAP_SHARED);
    say("PID %d\n", (int)getpid());
    while (!ended) {
        if (thrashes) wait_demoted(bytes);
        for (size_t at = 0; at < bytes; at += PAGE) *(volatile char *)(hot + at);
        if (!thrashes) pause_ms(2);
    }
    check(hot, bytes, 0);
    if (cold != NULL) check(cold, bytes, 0);
    return done();
}
