/* Threads die holding robust mutexes that lie in demoted memory: the kernel, not the thread, says
 * so to the next owner, at a moment at which it serves no fault. */
#include "hazard.h"

enum { MUTEXES = 64, ROUNDS = 4 };

static char *p;
static size_t bytes = 16 * MIB;
static pthread_mutex_t *at[MUTEXES];
static _Atomic int held;

static void *dies(void *arg) {
    size_t n = (size_t)(uintptr_t)arg;
    EXPECT(pthread_mutex_lock(at[n]) == 0);
    EXPECT(pthread_mutex_lock(at[n + 1]) == 0);
    held++;
    /* What it holds goes down while it does nothing. */
    pause_ms(700);
    if (n % 4 == 0) syscall(SYS_exit, 0);
    return NULL;
}

int main(void) {
    p = map(bytes);
    fill(p, bytes, 1);
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (size_t n = 0; n < MUTEXES; n++) {
        at[n] = (pthread_mutex_t *)(void *)(p + n * 61 * PAGE + 512);
        EXPECT(pthread_mutex_init(at[n], &robust) == 0);
    }
    int dead = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t t[MUTEXES / 2];
        held = 0;
        for (size_t n = 0; n < MUTEXES; n += 2)
            EXPECT(pthread_create(&t[n / 2], NULL, dies, (void *)n) == 0);
        while (held < MUTEXES / 2) pause_ms(1);
        /* Waits for those that die, on every page. */
        for (size_t n = 0; n < MUTEXES; n++) {
            struct timespec limit;
            clock_gettime(CLOCK_REALTIME, &limit);
            limit.tv_sec += 15;
            int why = pthread_mutex_timedlock(at[n], &limit);
            if (why != EOWNERDEAD) BAD("mutex %zu of round %d: %s", n, round, strerror(why));
            EXPECT(pthread_mutex_consistent(at[n]) == 0);
            EXPECT(pthread_mutex_unlock(at[n]) == 0);
            dead++;
        }
        for (size_t n = 0; n < MUTEXES / 2; n++) EXPECT(pthread_join(t[n], NULL) == 0);
    }
    say("DEAD %d\n", dead);
    return done();
}
