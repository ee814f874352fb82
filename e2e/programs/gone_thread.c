/* Threads that give back the memory in which pthread_create has put who they are: it is theirs as soon
 * as they run, and pthread_create may return later. */
#include "hazard.h"

#define AREA (8 * MIB)
#define THREADS 4000

static atomic_int ended;

/* Its argument is the page behind that place. */
static void *gives_back(void *behind) {
    MUST(munmap((char *)behind - PAGE, 2 * PAGE));
    atomic_fetch_add(&ended, 1);
    return NULL;
}

int main(void) {
    char *area = demoted(AREA);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 64 << 10);
    for (int n = 0; n < THREADS; n++) {
        char *place = map(2 * PAGE);
        while (pthread_create((pthread_t *)(void *)place, &attr, gives_back, place + PAGE) == EAGAIN)
            pause_ms(1);
    }
    while (atomic_load(&ended) < THREADS) pause_ms(1);
    check(area, AREA, 1);
    return done();
}
