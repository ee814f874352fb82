/* Mappings of 1 to 64 MiB that come, are written, cool a little, and go. */
#include "hazard.h"

enum { SLOTS = 6 };

int main(void) {
    size_t bytes = 16 * MIB;
    char *kept = demoted(bytes);
    struct {
        char *at;
        size_t bytes;
        uint64_t version;
    } slots[SLOTS] = {0};
    uint64_t seed = 8;
    double end = now_s() + 5;
    for (uint64_t n = 1; now_s() < end; n++) {
        size_t k = next_random(&seed) % SLOTS;
        if (slots[k].at) {
            size_t pages = slots[k].bytes / PAGE;
            for (size_t i = 0; i < pages; i += 13)
                check_page(slots[k].at + i * PAGE, i, slots[k].version);
            MUST(munmap(slots[k].at, slots[k].bytes));
        }
        slots[k].bytes = MIB << next_random(&seed) % (n % 8 ? 5 : 7);
        slots[k].version = n;
        slots[k].at = map(slots[k].bytes);
        for (size_t i = 0; i < slots[k].bytes / PAGE; i += 500)
            check_zero(slots[k].at + i * PAGE, PAGE);
        fill(slots[k].at, slots[k].bytes, n);
        pause_ms((unsigned)(next_random(&seed) % 150));
    }
    for (size_t k = 0; k < SLOTS; k++)
        if (slots[k].at) check(slots[k].at, slots[k].bytes, slots[k].version);
    check(kept, bytes, 1);
    return done();
}
