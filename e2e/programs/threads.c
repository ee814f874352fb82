/* Eight threads write their own pages and read shared ones while both go down and come back. */
#include "hazard.h"

enum { THREADS = 8, OWN_PAGES = 1024, SHARED_PAGES = 4096, SECONDS = 4 };

static char *own, *shared;
static double end_s;

static void *work(void *arg) {
    uint64_t me = (uint64_t)(uintptr_t)arg, seed = me * 7 + 1;
    char *mine = own + me * OWN_PAGES * PAGE;
    uint64_t version[OWN_PAGES];
    for (size_t i = 0; i < OWN_PAGES; i++) version[i] = 1;
    while (now_s() < end_s) {
        for (int n = 0; n < 300; n++) {
            size_t i = next_random(&seed) % OWN_PAGES, s = next_random(&seed) % SHARED_PAGES;
            check_page(mine + i * PAGE, me * OWN_PAGES + i, version[i]);
            if (n % 2) make_page(mine + i * PAGE, me * OWN_PAGES + i, ++version[i]);
            check_page(shared + s * PAGE, s, 1);
        }
        /* Long enough for some of it to be taken away under the other threads. */
        pause_ms(100 + (unsigned)(next_random(&seed) % 500));
    }
    for (size_t i = 0; i < OWN_PAGES; i++)
        check_page(mine + i * PAGE, me * OWN_PAGES + i, version[i]);
    return NULL;
}

int main(void) {
    size_t own_bytes = (size_t)THREADS * OWN_PAGES * PAGE, shared_bytes = SHARED_PAGES * PAGE;
    own = map(own_bytes);
    shared = map(shared_bytes);
    fill(own, own_bytes, 1);
    fill(shared, shared_bytes, 1);
    wait_demoted(own_bytes + shared_bytes);
    end_s = now_s() + SECONDS;
    pthread_t t[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++)
        if (pthread_create(&t[n], NULL, work, (void *)n)) BAD("pthread_create");
    for (int n = 0; n < THREADS; n++) pthread_join(t[n], NULL);
    check(shared, shared_bytes, 1);
    return done();
}
