/* Every page comes back as it was, by reads and writes, in random order, again and again. */
#include "hazard.h"

int main(void) {
    size_t bytes = 24 * MIB, pages = bytes / PAGE;
    char *p = demoted(bytes);
    check(p, bytes, 1);
    wait_demoted(bytes);
    static uint64_t version[24 * 256];
    uint64_t seed = 42;
    for (size_t i = 0; i < pages; i++) version[i] = 1;
    for (size_t n = 0; n < 2 * pages; n++) {
        size_t i = next_random(&seed) % pages;
        if (next_random(&seed) & 1)
            make_page(p + i * PAGE, i, ++version[i]);
        else
            check_page(p + i * PAGE, i, version[i]);
    }
    wait_demoted(bytes);
    /* One byte first, so that the fault is a write to a page that must not be lost. */
    for (size_t i = 0; i < pages; i++) p[i * PAGE + 63] = '\n';
    for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, version[i]);
    return done();
}
