/* Fills and gives up blocks by MADV_FREE until that is known, and grows to its limit then: the
 * kernel would take what was given up, and so would the program have to be able to do.
 * Arguments: MiB that it may have, and MiB that it leaves of them. */
#include "hazard.h"

enum { HELD_MIB = 96, CHURNED_MIB = 64, STEP_MIB = 4 };

static char *memory(size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) BAD("mmap: %s", strerror(errno));
    return p;
}

/* Does not shrink. */
static void scramble(char *p, size_t bytes, uint64_t *state) {
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = next_random(state);
        memcpy(p + at, &word, sizeof word);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) BAD("free_grows MIB SPARE_MIB");
    size_t most = (size_t)atol(argv[1]), spare = (size_t)atol(argv[2]), block = 64 * PAGE;
    uint64_t state = 7;
    char *held = memory(HELD_MIB * MIB), *churned = memory(CHURNED_MIB * MIB);
    scramble(held, HELD_MIB * MIB, &state);
    for (int round = 0; round < 40; round++) {
        for (size_t at = 0; at < CHURNED_MIB * MIB; at += block) {
            scramble(churned + at, block, &state);
            MUST(madvise(churned + at, block, MADV_FREE));
        }
        for (size_t at = 0; at < HELD_MIB * MIB; at += PAGE) *(volatile char *)(held + at);
        pause_ms(50);
    }
    for (size_t mib = HELD_MIB; mib + STEP_MIB + spare <= most; mib += STEP_MIB) {
        scramble(memory(STEP_MIB * MIB), STEP_MIB * MIB, &state);
        for (size_t at = 0; at < HELD_MIB * MIB; at += PAGE) *(volatile char *)(held + at);
        pause_ms(20);
    }
    return done();
}
