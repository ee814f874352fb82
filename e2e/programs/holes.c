/* Parts of mappings are unmapped, and others mapped in their place, all the time: what is new there
 * must not pass for what was there when somebody looked. */
#include "hazard.h"

enum { PARTS = 64 };
static char *base;
static uint64_t version[PARTS];

static void renew(size_t part) {
    size_t bytes = MIB / 2;
    char *at = base + part * bytes;
    MUST(munmap(at, bytes));
    char *p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (p != at) BAD("mmap: %s", strerror(errno));
    fill(at, bytes, ++version[part]);
}

int main(void) {
    size_t bytes = MIB / 2;
    base = map(PARTS * bytes);
    for (size_t i = 0; i < PARTS; i++) fill(base + i * bytes, bytes, ++version[i]);
    uint64_t state = 88172645463325252u;
    double end = now_s() + 6;
    while (now_s() < end) {
        /* Most parts rest long enough to be registered, sampled and demoted. */
        size_t part = next_random(&state) % PARTS;
        renew(part);
        pause_ms((unsigned)(next_random(&state) % 8));
        size_t other = next_random(&state) % PARTS;
        check(base + other * bytes, bytes, version[other]);
    }
    for (size_t i = 0; i < PARTS; i++) check(base + i * bytes, bytes, version[i]);
    return done();
}
