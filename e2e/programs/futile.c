/* Memory of which half does not shrink, in regions of its own: random words beside lines. The
 * lines go down; the other half is not to be carried to and fro to find out. */
#include "hazard.h"

enum { PAGES = 48 * 256 };

static void make_random(char *page, size_t i) {
    uint64_t *words = (uint64_t *)(void *)page, seed = (i + 1) * 0x9e3779b97f4a7c15u;
    for (size_t w = 0; w < PAGE / 8; w++) words[w] = next_random(&seed);
}

int main(void) {
    char *p = map(2 * PAGES * PAGE), *random = p + PAGES * PAGE, want[4096];
    fill(p, PAGES * PAGE, 0);
    for (size_t i = 0; i < PAGES; i++) make_random(random + i * PAGE, i);
    wait_demoted(PAGES * PAGE * 9 / 10);
    pause_ms(2000);
    for (size_t i = 0; i < PAGES; i++) {
        check_page(p + i * PAGE, i, 0);
        make_random(want, i);
        if (memcmp(want, random + i * PAGE, PAGE) != 0) BAD("random page %zu", i);
    }
    return done();
}
