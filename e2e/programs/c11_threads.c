/* Threads of C11, which libc does not make by way of pthread_create: they begin with their argument, see
 * memory that has gone down, and are joined with what they return. */
#include "hazard.h"
#include <threads.h>

enum { THREADS = 4, ROUNDS = 6 };
#define BYTES (8 * MIB)

static char *area;

static int looks(void *arg) {
    size_t part = BYTES / THREADS / PAGE, n = (size_t)arg;
    pause_ms(150);
    for (size_t i = n * part; i < (n + 1) * part; i++) check_page(area + i * PAGE, i, 1);
    return 100 + (int)n;
}

int main(void) {
    area = map(BYTES);
    fill(area, BYTES, 1);
    for (int round = 0; round < ROUNDS; round++) {
        wait_demoted(BYTES);
        thrd_t threads[THREADS];
        for (size_t n = 0; n < THREADS; n++)
            EXPECT(thrd_create(&threads[n], looks, (void *)n) == thrd_success);
        for (int n = 0; n < THREADS; n++) {
            int result = 0;
            EXPECT(thrd_join(threads[n], &result) == thrd_success);
            EXPECT(result == 100 + n);
        }
    }
    return done();
}
