/* Ranges that are none, or hold terabytes of nothing, given to the calls that bring memory home
 * first: the same answer as ever, and soon. */
#include "hazard.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { BYTES = 16 << 20 };

int main(void) {
    char *p = demoted(BYTES);
    double start_s = now_s();
    EXPECT(madvise(p, (size_t)0 - 2 * PAGE, MADV_GUARD_INSTALL) == -1);
    EXPECT(madvise((void *)-PAGE, PAGE, MADV_GUARD_INSTALL) == -1);
    EXPECT(syscall(SYS_madvise, p, (size_t)0 - 2 * PAGE, MADV_GUARD_INSTALL) == -1);
    size_t most = (size_t)1 << 46;
    EXPECT(mremap(p, most, most + PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    EXPECT(mremap(p, (size_t)0 - PAGE, PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    EXPECT(mremap((void *)-PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    EXPECT(now_s() - start_s < 10);
    check(p, BYTES, 1);
    return done();
}
