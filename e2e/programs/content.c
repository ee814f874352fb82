/* Pages of one value, pages that do not compress, pages of zeros, one odd byte at an edge. */
#include "hazard.h"

enum { PAGES = 6144 };

static void make(char *page, size_t i) {
    uint64_t *words = (uint64_t *)(void *)page, seed = i * 0x9e3779b97f4a7c15u + 1;
    memset(page, 0, PAGE);
    switch (i % 8) {
    case 0: break;                                                      /* zeros */
    case 1: memset(page, (int)(i & 0xff), PAGE); break;                 /* one byte */
    case 2: for (size_t w = 0; w < 512; w++) words[w] = i; break;       /* 64-bit value */
    case 3: for (size_t w = 0; w < 512; w++) words[w] = i << 32 | i; break;
    case 4: for (size_t w = 0; w < 512; w++) words[w] = next_random(&seed); break;
    case 5: page[4095] = (char)(i | 1); break;                          /* the last byte */
    case 6: memset(page, 'x', PAGE); page[0] = (char)i; break;          /* the first byte */
    default: /* random for half of it: near the cut-off */
        for (size_t w = 0; w < 180 + i % 200; w++) words[w] = next_random(&seed);
    }
}

int main(void) {
    size_t bytes = (size_t)PAGES * PAGE;
    char *p = map(bytes), want[4096];
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < PAGES; i++) make(p + i * PAGE, i + (size_t)round);
        wait_demoted(bytes * 2 / 3); /* the rest does not compress */
        for (size_t i = 0; i < PAGES; i++) {
            make(want, i + (size_t)round);
            if (memcmp(want, p + i * PAGE, PAGE) != 0)
                BAD("page %zu of kind %zu, round %d", i, (i + (size_t)round) % 8, round);
        }
    }
    return done();
}
