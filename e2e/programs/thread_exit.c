/* Threads whose descriptor (with the word that the kernel clears when they are gone) and stack lie
 * in demoted memory: whoever joins them must not wait for ever. */
#include "hazard.h"

enum { THREADS = 48, STACK = 256 << 10, ROUNDS = 4 };

static char *stacks;
static _Atomic unsigned sum;

static void *sleeps(void *arg) {
    unsigned n = (unsigned)(uintptr_t)arg;
    /* Long enough for all of its stack to go down, with its thread-local data. */
    pause_ms(300 + n * 7 % 250);
    sum += n;
    return NULL;
}

int main(void) {
    size_t bytes = (size_t)THREADS * STACK;
    stacks = map(bytes);
    fill(stacks, bytes, 1);
    wait_demoted(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t t[THREADS];
        for (size_t n = 0; n < THREADS; n++) {
            pthread_attr_t a;
            pthread_attr_init(&a);
            EXPECT(pthread_attr_setstack(&a, stacks + n * STACK, STACK) == 0);
            EXPECT(pthread_create(&t[n], &a, sleeps, (void *)n) == 0);
            pthread_attr_destroy(&a);
        }
        for (size_t n = 0; n < THREADS; n++) {
            struct timespec limit;
            clock_gettime(CLOCK_REALTIME, &limit);
            limit.tv_sec += 15;
            int why = pthread_timedjoin_np(t[n], NULL, &limit);
            if (why != 0) BAD("join of thread %zu, round %d: %s", n, round, strerror(why));
        }
    }
    say("SUM %u\n", sum);
    return done();
}
