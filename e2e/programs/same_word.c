/* Threads that fault on one page at one moment all go on, and no increment is lost. */
#include "hazard.h"

enum { THREADS = 8, PAGES = 4096, ROUNDS = 2 };

static char *p;
static pthread_barrier_t together;

static void *work(void *arg) {
    (void)arg;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&together);
        for (size_t i = 0; i < PAGES; i++)
            atomic_fetch_add((_Atomic uint64_t *)(void *)(p + i * PAGE + 2048), 1);
        pthread_barrier_wait(&together);
    }
    return NULL;
}

int main(void) {
    size_t bytes = PAGES * PAGE;
    p = map(bytes);
    fill(p, bytes, 1);
    for (size_t i = 0; i < PAGES; i++) *(uint64_t *)(void *)(p + i * PAGE + 2048) = i;
    pthread_barrier_init(&together, NULL, THREADS + 1);
    pthread_t t[THREADS];
    for (int n = 0; n < THREADS; n++)
        if (pthread_create(&t[n], NULL, work, NULL)) BAD("pthread_create");
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        wait_demoted(bytes);
        pthread_barrier_wait(&together);
        pthread_barrier_wait(&together);
        for (size_t i = 0; i < PAGES; i++) {
            uint64_t n = *(uint64_t *)(void *)(p + i * PAGE + 2048);
            if (n != i + round * THREADS) BAD("page %zu counts %llu", i, (unsigned long long)n);
        }
    }
    return done();
}
