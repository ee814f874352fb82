/* Thousands of mappings: many small ones beside each other, and one cut into many by mprotect. */
#include "hazard.h"

enum { SMALL = 6000, CUT_PAGES = 8192 };

int main(void) {
    static char *small[SMALL];
    for (size_t n = 0; n < SMALL; n++) {
        /* Alternating protection keeps the kernel from joining them. */
        int protection = n % 2 ? PROT_READ | PROT_WRITE : PROT_READ | PROT_WRITE | PROT_EXEC;
        small[n] = mmap(NULL, 2 * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (small[n] == MAP_FAILED) skip("mappings that are writable and executable are forbidden");
        make_page(small[n], n, 1);
    }
    size_t bytes = (size_t)CUT_PAGES * PAGE;
    char *p = demoted(bytes);
    for (size_t i = 0; i < CUT_PAGES; i += 8) MUST(mprotect(p + i * PAGE, 3 * PAGE, PROT_READ));
    pause_ms(1000);
    check(p, bytes, 1);
    pause_ms(1000);
    for (size_t i = 0; i < CUT_PAGES; i += 16) MUST(munmap(p + i * PAGE, PAGE));
    pause_ms(600);
    for (size_t i = 0; i < CUT_PAGES; i++)
        if (i % 16) check_page(p + i * PAGE, i, 1);
    for (size_t n = 0; n < SMALL; n++) check_page(small[n], n, 1);
    return done();
}
