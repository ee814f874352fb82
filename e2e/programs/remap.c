/* mremap takes demoted pages along: grown in place or elsewhere, shrunk, moved, onto another. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    /* The tail keeps the mapping from growing in place. */
    char *p = map(bytes + 4 * MIB);
    fill(p, bytes, 1);
    MUST(mprotect(p + bytes, 4 * MIB, PROT_NONE));
    wait_demoted(bytes);

    char *q = mremap(p, bytes, bytes * 2, MREMAP_MAYMOVE);
    MUST(q);
    EXPECT(q != p);
    check(q, bytes, 1);
    check_zero(q + bytes, bytes);
    for (size_t i = bytes / PAGE; i < 2 * bytes / PAGE; i++) make_page(q + i * PAGE, i, 1);
    wait_demoted(2 * bytes);

    q = mremap(q, 2 * bytes, bytes, 0); /* shrink */
    MUST(q);
    check(q, bytes, 1);
    wait_demoted(bytes);

    /* To a chosen place, off by odd pages, over something that is demoted itself. */
    char *other = map(24 * MIB);
    fill(other, 24 * MIB, 7);
    wait_demoted(bytes + 24 * MIB);
    char *to = other + 3 * MIB + 5 * PAGE;
    EXPECT(mremap(q, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    check(to, bytes, 1);
    for (char *at = other; at < other + 24 * MIB; at += PAGE)
        if (at < to || at >= to + bytes) check_page(at, (uint64_t)(at - other) / PAGE, 7);

    /* Leaves an empty mapping behind. */
    fill(to, bytes, 8);
    wait_demoted(24 * MIB);
    char *left = mremap(to, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    MUST(left);
    check(left, bytes, 8);
    check_zero(to, bytes);
    return done();
}
