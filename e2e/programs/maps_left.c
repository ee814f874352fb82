/* The program has nearly as many mappings as the system allows, and memory whose parts could be
 * followed only by splitting it: what is left is the program's, whose next mappings are not refused. */
#include "hazard.h"

#define LEFT ((size_t)150)
#define REGION (2 * MIB)
#define REGIONS ((size_t)100)

static char *page_of(size_t n) {
    /* Alternating protection keeps the kernel from joining them. */
    void *p = mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int main(void) {
    size_t most = 1 << 20, count = 0;
    char **pages = map(most * sizeof *pages);
    char *few = demoted(16 * MIB);
    char *p = map(2 * REGIONS * REGION);
    p += REGION - (uintptr_t)p % REGION;
    while (count < most && (pages[count] = page_of(count)) != NULL) count++;
    if (count == most) skip("this system allows a million mappings or more");
    for (size_t i = 0; i < LEFT; i++) MUST(munmap(pages[--count], PAGE));
    /* Every second region is there, seven eighths of it. */
    for (size_t i = 0; i < REGIONS; i++) fill(p + 2 * i * REGION, REGION / 8 * 7, 1);
    pause_ms(3000);
    size_t given = 0;
    for (; given < LEFT - 20; given++)
        if ((pages[count] = page_of(count)) == NULL) break; else count++;
    if (given < LEFT - 20) BAD("mapping %zu of %zu: %s", given, LEFT - 20, strerror(errno));
    check(few, 16 * MIB, 1);
    for (size_t i = 0; i < REGIONS; i++) check(p + 2 * i * REGION, REGION / 8 * 7, 1);
    while (count > 0) MUST(munmap(pages[--count], PAGE));
    return done();
}
