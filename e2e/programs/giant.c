/* A reservation of 1 TiB with a page touched here and there, and a dense part that goes down. */
#include "hazard.h"

int main(void) {
    size_t giant = (size_t)1 << 40, step = giant / 2048;
    char *g = mmap(NULL, giant, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g == MAP_FAILED) skip("no 1 TiB of address space");
    MUST(madvise(g, giant, MADV_NOHUGEPAGE));
    for (size_t i = 0; i < 2048; i++) make_page(g + i * step, i, 1);
    fill(g + 300 * MIB, 16 * MIB, 5);
    wait_demoted(16 * MIB);
    for (size_t i = 0; i < 2048; i++) check_page(g + i * step, i, 1);
    check(g + 300 * MIB, 16 * MIB, 5);
    check_zero(g + 400 * MIB, MIB);
    return done();
}
