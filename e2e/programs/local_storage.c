/* Thread-local arrays of KIB in all, which glibc puts on the stack of every thread, ours too. */
#include "hazard.h"

enum { BYTES = 16 << 20, LOCAL = KIB << 10 };

static __thread char local[LOCAL];
static char *p;

static void *work(void *arg) {
    for (size_t i = 0; i < LOCAL; i += PAGE) EXPECT(local[i] == 0);
    memset(local, (int)(intptr_t)arg, sizeof local);
    check(p, BYTES, 1);
    for (size_t i = 0; i < LOCAL; i += PAGE) EXPECT(local[i] == (char)(intptr_t)arg);
    return NULL;
}

int main(void) {
    p = demoted(BYTES);
    memset(local, 1, sizeof local);
    for (int i = 2; i < 6; i++) {
        pthread_t t;
        EXPECT(pthread_create(&t, NULL, work, (void *)(intptr_t)i) == 0);
        EXPECT(pthread_join(t, NULL) == 0);
        wait_demoted(BYTES);
    }
    for (size_t i = 0; i < LOCAL; i += PAGE) EXPECT(local[i] == 1);
    check(p, BYTES, 1);
    return done();
}
