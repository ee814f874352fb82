/* The main thread ends by pthread_exit; another one goes on, and what it has goes down. */
#include "hazard.h"

enum { BYTES = 16 << 20 };

static pthread_t first;
static char *early;

static void *work(void *arg) {
    pthread_join(first, NULL);
    char *late = map(BYTES);
    fill(late, BYTES, 2);
    wait_demoted(2 * BYTES);
    check(early, BYTES, 1);
    check(late, BYTES, 2);
    exit(done());
    return arg;
}

int main(void) {
    early = demoted(BYTES);
    first = pthread_self();
    pthread_t t;
    EXPECT(pthread_create(&t, NULL, work, NULL) == 0);
    pthread_exit(NULL);
}
