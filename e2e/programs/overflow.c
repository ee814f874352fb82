/* More memory than the tiers have room for: what does not fit stays, and every byte is right.
 * Arguments: how many pages must be in tiers before it goes on, and how often it does. */
#include "hazard.h"

int main(int argc, char **argv) {
    size_t bytes = 24 * MIB, pages = bytes / PAGE;
    size_t fit = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    int rounds = argc > 2 ? atoi(argv[2]) : 3;
    char *p = map(bytes);
    static uint64_t version[24 * 256];
    uint64_t seed = 7;
    for (size_t i = 0; i < pages; i++) make_page(p + i * PAGE, i, version[i] = 1);
    for (int round = 0; round < rounds; round++) {
        wait_demoted(fit * PAGE * 8 / 5);
        for (size_t n = 0; n < pages; n++) {
            size_t i = next_random(&seed) % pages;
            if (next_random(&seed) & 1)
                make_page(p + i * PAGE, i, ++version[i]);
            else
                check_page(p + i * PAGE, i, version[i]);
        }
        for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, version[i]);
    }
    return done();
}
