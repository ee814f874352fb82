/* O_DIRECT in both directions while everything goes down: the device reads and writes pages that
 * are pinned, several at a time, from several threads. */
#include "hazard.h"

enum { PAGES = 4096, THREADS = 3, RUN = 32, TURNS = 60 };

static char *p;
static int fd;

static void *work(void *arg) {
    size_t me = (size_t)(uintptr_t)arg, share = PAGES / THREADS / RUN * RUN;
    uint64_t seed = me + 21;
    for (int n = 0; n < TURNS; n++) {
        size_t at = me * share + next_random(&seed) % (share / RUN) * RUN;
        char *run = p + at * PAGE;
        off_t where = (off_t)(at * PAGE);
        EXPECT(pwrite(fd, run, RUN * PAGE, where) == (ssize_t)(RUN * PAGE));
        memset(run, 0x55, RUN * PAGE);
        pause_ms((unsigned)(next_random(&seed) % 120));
        EXPECT(pread(fd, run, RUN * PAGE, where) == (ssize_t)(RUN * PAGE));
        for (size_t k = 0; k < RUN; k++) check_page(run + k * PAGE, at + k, 1);
    }
    return NULL;
}

int main(void) {
    size_t bytes = PAGES * PAGE;
    char name[] = "hazard-XXXXXX";
    fd = mkstemp(name);
    MUST(fd);
    close(fd);
    fd = open(name, O_RDWR | O_DIRECT);
    unlink(name);
    if (fd < 0) skip("this file system has no O_DIRECT");
    p = demoted(bytes);
    pthread_t t[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++) pthread_create(&t[n], NULL, work, (void *)n);
    for (int n = 0; n < THREADS; n++) pthread_join(t[n], NULL);
    wait_demoted(bytes);
    check(p, bytes, 1);
    return done();
}
