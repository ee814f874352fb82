/* Threads that start, use demoted memory and end, or are cancelled in the middle of a fault. */
#include "hazard.h"

static char *p;
static const size_t bytes = 16 * MIB;
static __thread char scratch[3 * 4096];

static void *work(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg + 1;
    for (int n = 0; n < 40; n++) {
        size_t i = next_random(&seed) % (bytes / PAGE);
        memcpy(scratch, p + i * PAGE, PAGE);
        check_page(scratch, i, 1);
    }
    return NULL;
}

static void *forever(void *arg) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (uint64_t seed = (uint64_t)(uintptr_t)arg + 1; seed != 0;)
        (void)*(volatile char *)(p + next_random(&seed) % (bytes / PAGE) * PAGE);
    return NULL;
}

int main(void) {
    p = demoted(bytes);
    double end = now_s() + 4;
    for (uintptr_t n = 0; now_s() < end; n += 6) {
        pthread_t t[6];
        for (uintptr_t k = 0; k < 6; k++)
            if (pthread_create(&t[k], NULL, k == 5 ? forever : work, (void *)(n + k)))
                BAD("pthread_create");
        for (int k = 0; k < 5; k++) pthread_join(t[k], NULL);
        pthread_cancel(t[5]);
        pthread_join(t[5], NULL);
        if (n % 60 == 0) pause_ms(700);
    }
    check(p, bytes, 1);
    return done();
}
