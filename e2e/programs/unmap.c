/* A new mapping in the place of a demoted one is fresh, also when it is replaced in one call. */
#include "hazard.h"

static void fresh(char *p, size_t bytes, uint64_t version) {
    check_zero(p, bytes);
    fill(p, bytes, version);
    check(p, bytes, version);
}

int main(void) {
    size_t bytes = 16 * MIB, half = 8 * MIB;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *p = demoted(bytes);

    MUST(munmap(p, bytes));
    EXPECT(mmap(p, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
    fresh(p, bytes, 2);
    wait_demoted(bytes);
    check(p, bytes, 2);

    /* Over the top of it, without munmap, and only half of it, not at a region's edge. */
    wait_demoted(bytes);
    char *q = p + 3 * MIB + 7 * PAGE;
    EXPECT(mmap(q, half, PROT_READ | PROT_WRITE, flags, -1, 0) == q);
    check_zero(q, half);
    for (char *at = p; at < p + bytes; at += PAGE)
        if (at < q || at >= q + half) check_page(at, (uint64_t)(at - p) / PAGE, 2);

    /* A hole stays a hole. */
    fill(p, bytes, 3);
    wait_demoted(bytes);
    MUST(munmap(q, half));
    unsigned char there;
    EXPECT(mincore(q, PAGE, &there) == -1 && errno == ENOMEM);
    for (char *at = p; at < p + bytes; at += PAGE)
        if (at < q || at >= q + half) check_page(at, (uint64_t)(at - p) / PAGE, 3);
    return done();
}
