/* One thread toggles the protection of pages between none, read and write while others read and write
 * them: each access succeeds or raises the program's SIGSEGV, and no byte is lost. */
#include "hazard.h"
#include <setjmp.h>

enum { PAGES = 4096, THREADS = 3, TOGGLES = 1500 };

static char *p;
static atomic_bool stop;
static _Atomic unsigned refused;
static _Thread_local sigjmp_buf back;

static void segv(int signal) {
    (void)signal;
    refused++;
    siglongjmp(back, 1);
}

static void *work(void *arg) {
    static _Thread_local uint64_t random;
    random = 88172645463325252u + (uintptr_t)arg;
    while (!stop) {
        size_t i = next_random(&random) % PAGES;
        if (i % THREADS != (uintptr_t)arg - 1) continue; /* each page has one writer */
        if (sigsetjmp(back, 1) != 0) continue;
        volatile uint64_t *counters = (volatile uint64_t *)(p + i * PAGE);
        uint64_t seen = counters[0];
        if (counters[511] > seen || counters[511] + 1 < seen) BAD("page %zu torn", i);
        counters[0] = counters[511] + 1;
        counters[511] = counters[0];
    }
    return NULL;
}

int main(void) {
    size_t bytes = PAGES * PAGE;
    p = map(bytes);
    fill(p, bytes, 1);
    for (size_t i = 0; i < PAGES; i++) ((uint64_t *)(p + i * PAGE))[0] = 0;
    for (size_t i = 0; i < PAGES; i++) ((uint64_t *)(p + i * PAGE))[511] = 0;
    wait_demoted(bytes);
    struct sigaction action = {.sa_handler = segv};
    MUST(sigaction(SIGSEGV, &action, NULL));
    pthread_t t[THREADS];
    for (size_t n = 0; n < THREADS; n++) pthread_create(&t[n], NULL, work, (void *)(n + 1));
    uint64_t random = 4711;
    int kinds[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
    for (int n = 0; n < TOGGLES; n++) {
        size_t i = next_random(&random) % (PAGES - 64), len = 1 + next_random(&random) % 64;
        MUST(mprotect(p + i * PAGE, len * PAGE, kinds[next_random(&random) % 4]));
        if (n % 50 == 0) {
            MUST(mprotect(p, bytes, PROT_READ | PROT_WRITE));
            pause_ms(60);
        }
    }
    MUST(mprotect(p, bytes, PROT_READ | PROT_WRITE));
    stop = true;
    for (int n = 0; n < THREADS; n++) pthread_join(t[n], NULL);
    for (size_t i = 0; i < PAGES; i++) {
        uint64_t *counters = (uint64_t *)(p + i * PAGE);
        EXPECT(counters[0] == counters[511] || counters[0] == counters[511] + 1);
        char want[PAGE];
        make_page(want, i, 1);
        EXPECT(memcmp(p + i * PAGE + 8, want + 8, PAGE - 16) == 0);
    }
    EXPECT(refused > 0);
    return done();
}
