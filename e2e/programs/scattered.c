/* A heap of many small pieces, each in a GiB of its own, as V8's is. */
#include "hazard.h"

enum { PIECES = 1000 };

int main(void) {
    size_t bytes = 256 << 10, apart = (size_t)4 << 30;
    static char *piece[PIECES];
    for (size_t n = 0; n < PIECES; n++) {
        char *wanted = (char *)((size_t)1 << 40) + n * apart;
        piece[n] = mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece[n] != wanted) skip("addresses above 1 TiB are taken");
        fill(piece[n], bytes, n);
    }
    wait_demoted(PIECES * bytes);
    for (size_t n = 0; n < PIECES; n++) check(piece[n], bytes, n);
    return done();
}
