/* A fork while other threads fault: a page that comes home to the parent at that moment is missing
 * in the child all the same. */
#include "hazard.h"

enum { READERS = 3, FORKS = 12 };

static char *p;
static size_t bytes = 16 * MIB;
static _Atomic bool ended;

static void *reader(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    while (!ended) {
        size_t i = next_random(&seed) % (bytes / PAGE);
        check_page(p + i * PAGE, i, 1);
    }
    return NULL;
}

int main(void) {
    p = demoted(bytes);
    pthread_t t[READERS];
    for (uintptr_t n = 0; n < READERS; n++) pthread_create(&t[n], NULL, reader, (void *)(n + 1));
    for (int n = 0; n < FORKS; n++) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            check(p, bytes, 1);
            _exit(0);
        }
        join_child(pid);
        pause_ms(250);
    }
    ended = true;
    for (int n = 0; n < READERS; n++) pthread_join(t[n], NULL);
    return done();
}
