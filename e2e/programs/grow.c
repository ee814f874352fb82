/* Mappings that grow and shrink in place and elsewhere while their pages go down, in threads, each with
 * its own; and what has grown is there in children. */
#include "hazard.h"

enum { THREADS = 3, ROUNDS = 14 };

static void *work(void *arg) {
    uint64_t random = 4711 + (uintptr_t)arg * 77;
    size_t len = 6 * MIB;
    char *p = map(len);
    uint64_t version = 10 * (uintptr_t)arg;
    fill(p, len, version);
    for (int round = 0; round < ROUNDS; round++) {
        size_t next = 4 * MIB + next_random(&random) % 1024 * 2 * PAGE;
        p = mremap(p, len, next, MREMAP_MAYMOVE);
        MUST(p);
        check(p, len < next ? len : next, version);
        if (next > len) check_zero(p + len, next - len);
        len = next;
        version++;
        fill(p, len, version);
        pause_ms(60 + next_random(&random) % 100);
        if (round % 5 == 4) {
            pid_t pid = fork();
            MUST(pid);
            if (pid == 0) {
                check(p, len, version);
                _exit(0);
            }
            join_child(pid);
        }
        check(p, len, version);
    }
    return NULL;
}

int main(void) {
    pthread_t t[THREADS];
    for (size_t n = 0; n < THREADS; n++) pthread_create(&t[n], NULL, work, (void *)(n + 1));
    for (int n = 0; n < THREADS; n++) pthread_join(t[n], NULL);
    return done();
}
