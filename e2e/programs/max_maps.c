/* The program has as many mappings as the system allows, so that nothing of it can be split: new
 * memory cannot be followed, and the runtime must live with that; so must what was in tiers. */
#include "hazard.h"

static char *page_of(size_t n) {
    /* Alternating protection keeps the kernel from joining them. */
    void *p = mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int main(void) {
    size_t bytes = 16 * MIB, most = 1 << 20, count = 0;
    char **pages = map(most * sizeof *pages);
    char *later = map(bytes), *p = demoted(bytes);
    while (count < most && (pages[count] = page_of(count)) != NULL) count++;
    if (count == most) skip("this system allows a million mappings or more");
    EXPECT(errno == ENOMEM);
    check(p, bytes / 2, 1);
    fill(later, bytes, 1);
    for (int round = 0; round < 20; round++) {
        pause_ms(100);
        /* Some of these are refused, some take what the runtime would have liked to have. */
        mprotect(p + (size_t)round * 16 * PAGE, PAGE, PROT_READ);
        for (size_t i = 0; i < 64; i++)
            check_page(p + ((size_t)round * 64 + i) * PAGE, (size_t)round * 64 + i, 1);
    }
    check(p, bytes, 1);
    check(later, bytes, 1);
    while (count > 0) MUST(munmap(pages[--count], PAGE));
    MUST(mprotect(p, bytes, PROT_READ | PROT_WRITE));
    fill(p, bytes, 2);
    wait_demoted(2 * bytes);
    check(p, bytes, 2);
    check(later, bytes, 1);
    return done();
}
