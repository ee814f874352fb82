/* A page faults in one thread at the moment at which another one drops it: what comes back must
 * not come after the drop. */
#include "hazard.h"

enum { PAGES = 4096, READERS = 3, ROUNDS = 6 };

static char *p;
static _Atomic size_t turn;
static _Atomic bool ended;

static void *reader(void *arg) {
    (void)arg;
    for (size_t seen = PAGES; !ended;) {
        size_t i = turn;
        if (i == seen || i >= PAGES) continue;
        seen = i;
        char first = *(volatile char *)(p + i * PAGE);
        if (first != 0 && first != '0') BAD("page %zu begins with %d", i, first);
    }
    return NULL;
}

int main(void) {
    size_t bytes = PAGES * PAGE;
    p = map(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        fill(p, bytes, 1);
        turn = PAGES;
        pthread_t t[READERS];
        ended = false;
        wait_demoted(bytes);
        for (int n = 0; n < READERS; n++) pthread_create(&t[n], NULL, reader, NULL);
        for (size_t i = 0; i < PAGES; i++) {
            turn = i;
            MUST(madvise(p + i * PAGE, PAGE, MADV_DONTNEED));
            check_zero(p + i * PAGE, PAGE);
        }
        ended = true;
        for (int n = 0; n < READERS; n++) pthread_join(t[n], NULL);
    }
    return done();
}
