/* A thread whose stack lies among data that goes down forks, at many depths of it, while another thread
 * unmaps. What the runtime does for that fork runs on the program's own stack, of which pages are out. */
#include "hazard.h"

#define AREA (8 * MIB)
#define STACK MIB
#define CROWD (64 * MIB)
#define ROUNDS 24
#define BELOW 8
#define PATIENCE_MS 1000

static char *area, *crowd;
static atomic_bool forking, over;
static int pagemap;

/* Below the thread's frames all is written once, so that it can go down. */
static __attribute__((noinline)) void go_deep(int frames) {
    volatile char frame[PAGE];
    for (size_t i = 0; i < sizeof frame; i += 64) frame[i] = (char)frames;
    if (frames > 0) go_deep(frames - 1);
    if (frame[64] != (char)frames) BAD("frame %d is not what it was", frames);
}

/* Of the pages below `here`, how many are neither present nor swapped. */
static unsigned out_below(uintptr_t here) {
    uint64_t entries[BELOW];
    off_t at = (off_t)((here / PAGE - BELOW) * sizeof entries[0]);
    if (pread(pagemap, entries, sizeof entries, at) != sizeof entries) BAD("pagemap: %s", strerror(errno));
    unsigned out = 0;
    for (int i = 0; i < BELOW; i++) out += entries[i] >> 62 == 0;
    return out;
}

static __attribute__((noinline)) void fork_at(size_t depth) {
    static int patience_ms = PATIENCE_MS;
    volatile char *frame = __builtin_alloca(depth + 16);
    frame[0] = 1;
    uintptr_t here = (uintptr_t)frame;
    for (int ms = 0; ms < patience_ms && out_below(here) < BELOW - 1; ms += 10) pause_ms(10);
    if (out_below(here) < BELOW - 1) patience_ms /= 2; /* they never are without Terrace */
    atomic_store(&forking, true);
    pid_t child = fork();
    MUST(child);
    if (child == 0) _exit(0);
    atomic_store(&forking, false);
    join_child(child);
}

static void *forker(void *unused) {
    (void)unused;
    for (size_t n = 0; n < ROUNDS; n++) {
        go_deep(100);
        fork_at(n * (PAGE / ROUNDS / 16 * 16));
    }
    atomic_store(&over, true);
    return NULL;
}

static void *unmapper(void *unused) {
    (void)unused;
    size_t at = 0;
    while (!atomic_load(&over)) {
        struct timespec t = {0, 100000};
        nanosleep(&t, NULL);
        while (atomic_load(&forking) && at < CROWD) {
            MUST(munmap(crowd + at, PAGE));
            at += PAGE;
        }
    }
    return NULL;
}

int main(void) {
    MUST(pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    area = map(AREA);
    fill(area, AREA, 1);
    crowd = map(CROWD);
    fill(crowd, CROWD, 2);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (pthread_attr_setstack(&attr, area + AREA / 2, STACK) != 0) BAD("no such stack");
    pthread_t a, b;
    if (pthread_create(&b, NULL, unmapper, NULL) || pthread_create(&a, &attr, forker, NULL))
        BAD("no threads");
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    check(area, AREA / 2, 1);
    for (size_t i = (AREA / 2 + STACK) / PAGE; i < AREA / PAGE; i++) check_page(area + i * PAGE, i, 1);
    return done();
}
