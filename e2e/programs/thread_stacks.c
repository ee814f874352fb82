/* Threads that sleep while their stacks go down, then go on, return, are cancelled in the middle of
 * a fault, or end with destructors that read demoted memory. */
#include "hazard.h"

enum { THREADS = 8 };

static char *p;
static pthread_barrier_t barrier;
static pthread_key_t key;
static _Atomic int destroyed, cleaned;

static void destructor(void *value) {
    size_t i = (size_t)value;
    for (size_t k = 0; k < 64; k++) check_page(p + (i * 64 + k) * PAGE, i * 64 + k, 1);
    destroyed++;
}

static void clean(void *value) {
    (void)value;
    check_page(p + 4000 * PAGE, 4000, 1);
    cleaned++;
}

static void *sleeper(void *arg) {
    /* Most of a stack of 8 MiB in use, as deep recursion leaves it. */
    size_t bytes = 7 * MIB;
    volatile char *deep = __builtin_alloca(bytes);
    char *base = (char *)(((uintptr_t)deep + PAGE - 1) & ~(PAGE - 1));
    bytes -= PAGE;
    fill(base, bytes, 10 + (uintptr_t)arg);
    pthread_setspecific(key, arg);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    check(base, bytes, 10 + (uintptr_t)arg);
    return arg;
}

static void *victim(void *arg) {
    (void)arg;
    pthread_cleanup_push(clean, NULL);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (volatile unsigned sum = 0;;)
        for (size_t i = 0; i < 3900; i++) sum += (unsigned char)p[i * PAGE];
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    size_t bytes = 16 * MIB;
    pthread_key_create(&key, destructor);
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    p = map(bytes);
    fill(p, bytes, 1);
    pthread_t t[THREADS];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 8 * MIB);
    for (size_t n = 0; n < THREADS; n++)
        EXPECT(pthread_create(&t[n], &attr, sleeper, (void *)(n + 1)) == 0);
    pthread_barrier_wait(&barrier);
    wait_demoted(bytes + THREADS * 7 * MIB);
    pthread_barrier_wait(&barrier);
    for (size_t n = 0; n < THREADS; n++) {
        void *result;
        pthread_join(t[n], &result);
        EXPECT(result == (void *)(n + 1));
    }
    EXPECT(destroyed == THREADS);
    for (int n = 0; n < 6; n++) {
        wait_demoted(bytes);
        pthread_create(&t[0], NULL, victim, NULL);
        pause_ms(3);
        EXPECT(pthread_cancel(t[0]) == 0);
        void *result;
        pthread_join(t[0], &result);
        EXPECT(result == PTHREAD_CANCELED && cleaned == n + 1);
        check(p, bytes, 1);
    }
    return done();
}
