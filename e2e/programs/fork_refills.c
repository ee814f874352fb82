/* After a fork the parent gives up a mapping of which some pages were never touched, while it was
 * going down, and moves another one there: the child must find nothing of that in those pages. */
#include "hazard.h"

enum { ROUNDS = 8, SMALL = 2 << 20, BIG = 96 << 20, HOLES = 8 };

static int pagemap;

/* How many of every `step`th page of a region are neither in memory nor in swap. */
static size_t absent(const char *p, size_t step) {
    static uint64_t entries[SMALL / 4096];
    off_t at = (off_t)((uintptr_t)p / PAGE * sizeof entries[0]);
    EXPECT(pread(pagemap, entries, sizeof entries, at) == (ssize_t)sizeof entries);
    size_t n = 0;
    for (size_t i = 0; i < SMALL / PAGE; i += step) n += !(entries[i] >> 62);
    return n;
}

/* A region by itself. */
static char *region(void) {
    char *room = mmap(NULL, 4 * SMALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) BAD("mmap: %s", strerror(errno));
    char *p = (char *)(((uintptr_t)room + 2 * SMALL - 1) & ~(uintptr_t)(SMALL - 1));
    MUST(mprotect(p, SMALL, PROT_READ | PROT_WRITE));
    return p;
}

/* The region comes home, and is waited for until it is on its way down again; a while at most. */
static void catch_on_its_way(const char *p) {
    for (double end = now_s() + 3; now_s() < end;) {
        for (size_t i = 0; i < SMALL; i += 2 * PAGE) (void)*(volatile const char *)(p + i);
        if (absent(p, 2) != 0) continue;
        while (now_s() < end && absent(p, 2) < SMALL / PAGE / 3) continue;
        return;
    }
}

static void check_child(const char *p, uint64_t version) {
    for (size_t i = 0; i < SMALL / PAGE; i++) {
        if (i % HOLES == HOLES - 1) check_zero(p + i * PAGE, PAGE);
        else check_page(p + i * PAGE, i, version);
    }
}

int main(void) {
    MUST(pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    /* What keeps the child incomplete for a while. */
    char *big = map(BIG);
    fill(big, BIG, 9);
    char *p[ROUNDS], *q[ROUNDS];
    for (size_t k = 0; k < ROUNDS; k++) {
        p[k] = region();
        for (size_t i = 0; i < SMALL / PAGE; i++)
            if (i % HOLES != HOLES - 1) make_page(p[k] + i * PAGE, i, 100 + k);
        q[k] = region();
        fill(q[k], SMALL, 200 + k);
    }
    wait_demoted(BIG);
    for (size_t k = 0; k < ROUNDS; k++) {
        catch_on_its_way(p[k]);
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            check_child(p[k], 100 + k);
            _exit(0);
        }
        pause_ms(10);
        MUST(munmap(p[k], SMALL));
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        EXPECT(mremap(q[k], SMALL, SMALL, flags, p[k]) == p[k]);
        join_child(pid);
        check(p[k], SMALL, 200 + k);
    }
    check(big, BIG, 9);
    return done();
}
