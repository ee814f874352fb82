/* From its first moment on a program gets the lowest free number for what it opens. */
#include "hazard.h"

enum { SECONDS = 2 };

int main(void) {
    long n = 0;
    for (double end = now_s() + SECONDS; now_s() < end; n++) {
        MUST(close(0));
        int got = open("/dev/null", O_RDONLY);
        if (got != 0) BAD("open %ld: %d is not the lowest free number, which is 0", n, got);
    }
    return done();
}
