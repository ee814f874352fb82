/* A giant mapping of which little is used: nothing of it may be made resident or slow to follow. */
#include "hazard.h"

int main(void) {
    size_t giant = (size_t)512 << 30, used = 16 * MIB, step = (size_t)1 << 30;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *p = mmap(NULL, giant, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) skip("no room for a sparse mapping of 512 GiB");
    char *dense = p + 100 * step;
    fill(dense, used, 1);
    for (size_t n = 0; n < 512; n++)
        if (n != 100) make_page(p + n * step + n * 8192, n, 2);
    wait_demoted(used);
    check(dense, used, 1);
    for (size_t n = 0; n < 512; n++) {
        if (n == 100) continue;
        check_page(p + n * step + n * 8192, n, 2);
        check_zero(p + n * step + n * 8192 + PAGE, PAGE);
    }
    wait_demoted(used);
    MUST(munmap(p, giant));
    return done();
}
