/* Mutexes, condition variables and a bare futex that live in demoted memory. */
#include "hazard.h"
#include <linux/futex.h>

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t count;
    _Atomic uint32_t word;
};

enum { THREADS = 4, ROUNDS = 3, ADDS = 2000 };

static struct shared *at_page[64];
static pthread_barrier_t together;

static void *work(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg + 1;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&together);
        for (int n = 0; n < ADDS; n++) {
            struct shared *s = at_page[next_random(&seed) % 64];
            pthread_mutex_lock(&s->mutex);
            s->count++;
            pthread_cond_signal(&s->changed);
            pthread_mutex_unlock(&s->mutex);
        }
        pthread_barrier_wait(&together);
    }
    return NULL;
}

static void *sleeper(void *arg) {
    struct shared *s = arg;
    while (s->word == 0) syscall(SYS_futex, &s->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return NULL;
}

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 1);
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (size_t n = 0; n < 64; n++) {
        at_page[n] = (struct shared *)(void *)(p + n * 61 * PAGE);
        memset(at_page[n], 0, sizeof *at_page[n]);
        pthread_mutex_init(&at_page[n]->mutex, n % 2 ? &robust : NULL);
        pthread_cond_init(&at_page[n]->changed, NULL);
    }
    pthread_t t[THREADS], s;
    pthread_barrier_init(&together, NULL, THREADS + 1);
    for (uintptr_t n = 0; n < THREADS; n++) pthread_create(&t[n], NULL, work, (void *)n);
    pthread_create(&s, NULL, sleeper, at_page[63]);
    for (int round = 0; round < ROUNDS; round++) {
        wait_demoted(bytes);
        pthread_barrier_wait(&together);
        pthread_barrier_wait(&together);
    }
    uint64_t count = 0;
    for (int n = 0; n < 64; n++) count += at_page[n]->count;
    EXPECT(count == (uint64_t)THREADS * ROUNDS * ADDS);
    /* The sleeper has slept on a page that was taken away under it. */
    wait_demoted(bytes);
    at_page[63]->word = 1;
    syscall(SYS_futex, &at_page[63]->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_join(s, NULL);
    for (int n = 0; n < THREADS; n++) pthread_join(t[n], NULL);
    return done();
}
