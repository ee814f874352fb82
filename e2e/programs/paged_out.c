/* Pages that the kernel swaps out while they are moved to tiers, and while they wait in the slots
 * that lead there.
 *
 * What memory pressure does on its own is asked for here: MADV_PAGEOUT on ranges of the program's
 * memory, and in between on everything anonymous in the process, the runtime's memory included.
 * Advice changes no byte. Without swap it does nothing, and what is left is a plain check.
 *
 *   PAGING                            from here on pages are swapped out
 *   SWAPPED n of n looks, peak KiB    how often a look found pages in swap, and how much
 *
 * Arguments: seconds; whether children are forked meanwhile, to which pages in swap are owed (what
 * is shared with a child is not moved, so this is for runs of its own); and for a hunt checkers,
 * pages, longest range in pages. */
#include "hazard.h"

enum { CHECKERS_MAX = 16, PAGES_MAX = 1 << 16, SWEEP_ONE_IN = 64, FORK_PAGES = 1024 };

/* Less than this in swap counts as nothing. */
static const unsigned long KIB_MIN = 512;

static size_t seconds = 5, forks = 0, checkers = 2, pages = 6144, range_max = 256;
/* `pages` of the checkers, and FORK_PAGES of the forker. */
static char *p;
static double end_s;
/* The version that each page has. Only the checker that owns a page touches its entry. */
static uint32_t versions[PAGES_MAX];

/* Owns every page whose number has the remainder `arg`, so that each range has pages of all. */
static void *checker(void *arg) {
    size_t me = (size_t)(uintptr_t)arg;
    uint64_t seed = me * 7919 + 17;
    while (now_s() < end_s) {
        size_t first = next_random(&seed) % pages, count = 1 + next_random(&seed) % 96;
        for (size_t i = first; i < first + count && i < pages; i++) {
            if (i % checkers != me) continue;
            check_page(p + i * PAGE, i, versions[i]);
            if (next_random(&seed) % 2 == 0) make_page(p + i * PAGE, i, ++versions[i]);
        }
        /* Not too fast: what goes down must have time to, and what is touched comes back. */
        if (next_random(&seed) % 2 == 0) pause_ms((unsigned)(next_random(&seed) % 30));
    }
    return NULL;
}

/* Children see what there was at the fork, whatever becomes of it in the parent. */
static void *forker(void *arg) {
    (void)arg;
    char *mine = p + pages * PAGE;
    uint64_t version = 0;
    while (forks != 0 && now_s() < end_s) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            check(mine, FORK_PAGES * PAGE / 2, version);
            fill(mine, FORK_PAGES * PAGE, version + 1);
            check(mine, FORK_PAGES * PAGE, version + 1);
            _exit(0);
        }
        for (size_t i = FORK_PAGES / 4; i < FORK_PAGES * 3 / 4; i++)
            check_page(mine + i * PAGE, i, version);
        fill(mine, FORK_PAGES * PAGE, ++version);
        join_child(pid);
        check(mine, FORK_PAGES * PAGE, version);
        pause_ms(400);
    }
    check(mine, FORK_PAGES * PAGE, version);
    return NULL;
}

static unsigned long swapped_kib(void) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    MUST(fd);
    ssize_t n = read(fd, text, sizeof text - 1);
    MUST(n);
    close(fd);
    text[n] = 0;
    const char *line = strstr(text, "VmSwap:");
    return line == NULL ? 0 : strtoul(line + 7, NULL, 10);
}

/* Everything private and anonymous: slots, pools and tables of the runtime are swapped out like any
 * other memory. What cannot be is refused, and that is as well. */
static void page_out_everything(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) return;
    char line[512];
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end, inode;
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s %*x %*s %lu", &start, &end, mode, &inode) != 4) continue;
        if (strcmp(mode, "rw-p") != 0 || inode != 0) continue;
        syscall(SYS_madvise, start, end - start, MADV_PAGEOUT);
    }
    fclose(maps);
}

static void *evictor(void *arg) {
    (void)arg;
    uint64_t seed = 5;
    while (now_s() < end_s) {
        size_t count = 1 + next_random(&seed) % range_max;
        size_t first = next_random(&seed) % (pages + FORK_PAGES - count);
        madvise(p + first * PAGE, count * PAGE, MADV_PAGEOUT);
        if (next_random(&seed) % SWEEP_ONE_IN == 0) page_out_everything();
        struct timespec t = {0, (long)(next_random(&seed) % 2000) * 1000};
        nanosleep(&t, NULL);
    }
    return NULL;
}

int main(int count, char **words) {
    size_t *settings[] = {&seconds, &forks, &checkers, &pages, &range_max};
    for (int n = 1; n < count && n <= 5; n++) *settings[n - 1] = strtoul(words[n], NULL, 10);
    EXPECT(checkers >= 1 && checkers <= CHECKERS_MAX && pages <= PAGES_MAX && range_max < pages);
    p = map((pages + FORK_PAGES) * PAGE);
    fill(p, pages * PAGE, 0);
    fill(p + pages * PAGE, FORK_PAGES * PAGE, 0);
    wait_demoted((pages + FORK_PAGES) * PAGE);

    say("PAGING\n");
    end_s = now_s() + (double)seconds;
    pthread_t threads[CHECKERS_MAX + 2];
    pthread_create(&threads[checkers], NULL, evictor, NULL);
    pthread_create(&threads[checkers + 1], NULL, forker, NULL);
    for (uintptr_t n = 0; n < checkers; n++) pthread_create(&threads[n], NULL, checker, (void *)n);
    unsigned long looks = 0, found = 0, peak = 0;
    while (now_s() < end_s) {
        pause_ms(20);
        unsigned long kib = swapped_kib();
        looks++;
        found += kib >= KIB_MIN;
        if (kib > peak) peak = kib;
    }
    for (size_t n = 0; n < checkers + 2; n++) pthread_join(threads[n], NULL);
    for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, versions[i]);
    say("SWAPPED %lu of %lu looks, at most %lu KiB\n", found, looks, peak);
    return done();
}
