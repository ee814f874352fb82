/* Threads unmap what is in tiers, page by page and without pause, while another wants its own pages
 * back. The kernel is always in the middle of some change then; whoever waits for it to come to rest
 * must not wait for long. */
#include "hazard.h"

#define AREA (4 * MIB)
#define CROWD (40 * MIB)
#define THREADS 2

static char *area, *crowd;
static atomic_int left = THREADS;

static void *unmapper(void *part) {
    char *end = (char *)part + CROWD / THREADS;
    for (char *at = part; at < end; at += PAGE) MUST(munmap(at, PAGE));
    atomic_fetch_sub(&left, 1);
    return NULL;
}

int main(void) {
    area = map(AREA);
    fill(area, AREA, 1);
    crowd = map(CROWD);
    fill(crowd, CROWD, 2);
    wait_demoted(AREA + CROWD);
    pthread_t threads[THREADS];
    for (size_t n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], NULL, unmapper, crowd + n * (CROWD / THREADS))) BAD("no threads");
    for (size_t i = 0; i < AREA / PAGE && atomic_load(&left) > 0; i += 7) check_page(area + i * PAGE, i, 1);
    for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    check(area, AREA, 1);
    /* Where there was something, there is nothing of it. */
    char *again = mmap(crowd, CROWD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT(again == crowd);
    check_zero(crowd, CROWD);
    return done();
}
