/* Pages of demoted memory go into pipes by reference (vmsplice), through files and back. */
#include "hazard.h"
#include <sys/uio.h>

enum { PAGES = 4096, BATCH = 16 };

int main(void) {
    size_t bytes = PAGES * PAGE;
    char *p = demoted(bytes);
    char name[] = "hazard-XXXXXX";
    int fd = mkstemp(name), ends[2], copy[2];
    MUST(fd);
    unlink(name);
    MUST(pipe(ends));
    MUST(pipe(copy));
    uint64_t seed = 5;
    size_t seen = 0;
    for (int n = 0; n < 200; n++) {
        size_t which[BATCH];
        struct iovec vector[BATCH];
        for (size_t k = 0; k < BATCH; k++) {
            which[k] = next_random(&seed) % PAGES;
            vector[k] = (struct iovec){p + which[k] * PAGE, PAGE};
        }
        EXPECT(vmsplice(ends[1], vector, BATCH, 0) == (ssize_t)(BATCH * PAGE));
        /* The pipe holds the pages while everything else goes down. */
        if (n % 20 == 0) pause_ms(250);
        EXPECT(tee(ends[0], copy[1], BATCH * PAGE, 0) == (ssize_t)(BATCH * PAGE));
        loff_t to = 0, from = 0;
        for (size_t left = BATCH * PAGE; left > 0;) {
            ssize_t moved = splice(ends[0], NULL, fd, &to, left, SPLICE_F_MOVE);
            if (moved <= 0) BAD("splice: %s", strerror(errno));
            left -= (size_t)moved;
        }
        static char got[BATCH * 4096];
        for (size_t at = 0; at < sizeof got;) {
            ssize_t r = read(copy[0], got + at, sizeof got - at);
            if (r <= 0) BAD("read: %s", strerror(errno));
            at += (size_t)r;
        }
        for (size_t k = 0; k < BATCH; k++) check_page(got + k * PAGE, which[k], 1);
        /* Out of the file into a pipe, and from there into demoted memory. */
        for (size_t left = BATCH * PAGE; left > 0;) {
            ssize_t moved = splice(fd, &from, ends[1], NULL, left, 0);
            if (moved <= 0) BAD("splice back: %s", strerror(errno));
            left -= (size_t)moved;
        }
        for (size_t k = 0; k < BATCH; k++) memset(p + which[k] * PAGE, 7, PAGE);
        for (size_t k = 0; k < BATCH; k++) {
            for (size_t at = 0; at < PAGE;) {
                struct iovec rest = {p + which[k] * PAGE + at, PAGE - at};
                ssize_t r = vmsplice(ends[0], &rest, 1, 0);
                if (r <= 0) BAD("vmsplice back: %s", strerror(errno));
                at += (size_t)r;
            }
            check_page(p + which[k] * PAGE, which[k], 1);
            seen++;
        }
    }
    say("PAGES %zu\n", seen);
    wait_demoted(bytes);
    check(p, bytes, 1);
    return done();
}
