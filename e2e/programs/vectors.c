/* Vectors in demoted memory that name demoted buffers: readv, writev, preadv, pwritev2. */
#include "hazard.h"
#include <sys/uio.h>

enum { PAGES = 2048, PIECES = 64 };

int main(void) {
    size_t bytes = PAGES * PAGE;
    char *p = map(bytes), *vectors = map(4 * MIB);
    char name[] = "hazard-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd);
    unlink(name);
    uint64_t seed = 3;
    for (int round = 0; round < 3; round++) {
        fill(p, bytes, 1);
        memset(vectors, 1, 4 * MIB);
        /* Each vector lies across the end of a page; its pieces are odd parts of pages. */
        struct iovec *vector = (void *)(vectors + (size_t)(100 + round) * PAGE - 128);
        for (size_t k = 0; k < PIECES; k++)
            vector[k] = (struct iovec){p + (next_random(&seed) % PAGES) * PAGE, 1 + 61 * k};
        static char want[PIECES * PAGE];
        size_t at = 0;
        for (size_t k = 0; k < PIECES; k++) {
            memcpy(want + at, vector[k].iov_base, vector[k].iov_len);
            at += vector[k].iov_len;
        }
        wait_demoted(bytes + 4 * MIB);
        EXPECT(pwritev2(fd, vector, PIECES, 0, 0) == (ssize_t)at);
        static char got[PIECES * PAGE];
        EXPECT(pread(fd, got, sizeof got, 0) == (ssize_t)at);
        EXPECT(memcmp(got, want, at) == 0);
        /* And back, to other pages, over what is there. */
        for (size_t k = 0; k < PIECES; k++) vector[k].iov_base = p + (k * 31 + 7) * PAGE;
        wait_demoted(bytes + 4 * MIB);
        if (round == 0) {
            EXPECT(preadv(fd, vector, PIECES, 0) == (ssize_t)at);
        } else {
            MUST(lseek(fd, 0, SEEK_SET));
            EXPECT(readv(fd, vector, PIECES) == (ssize_t)at);
        }
        at = 0;
        for (size_t k = 0; k < PIECES; k++) {
            EXPECT(memcmp(vector[k].iov_base, want + at, vector[k].iov_len) == 0);
            at += vector[k].iov_len;
            /* What was not written over stayed. */
            char page[4096];
            make_page(page, k * 31 + 7, 1);
            size_t n = vector[k].iov_len;
            EXPECT(memcmp((char *)vector[k].iov_base + n, page + n, PAGE - n) == 0);
        }
        MUST(ftruncate(fd, 0));
        say("ROUND %d %zu\n", round, at);
    }
    return done();
}
