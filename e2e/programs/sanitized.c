/* Memory that is allocated, left alone for a while, compared and copied by threads: what a program
 * does that is built with a sanitizer. It waits for nothing to go down, because nothing may. */
#include "hazard.h"

enum { THREADS = 3, ROUNDS = 3 };
#define BYTES (8 * MIB)

static void *works(void *arg) {
    int tag = (int)(intptr_t)arg;
    for (int round = 0; round < ROUNDS; round++) {
        char *here = malloc(BYTES), *there = malloc(BYTES);
        memset(here, tag, BYTES);
        memset(there, ~tag, BYTES);
        pause_ms(500);
        memcpy(there, here, BYTES);
        EXPECT(memcmp(here, there, BYTES) == 0 && there[BYTES - 1] == tag);
        free(here);
        free(there);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, works, (void *)(intptr_t)(n + 1));
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    return done();
}
