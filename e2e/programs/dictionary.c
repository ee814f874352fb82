/* Enough pages of one vocabulary that a dictionary is trained from them, written again after it was,
 * read back by the program and by a forked child. A page alone hardly repeats itself. */
#include "hazard.h"

enum { PAGES = 300 * 256, WORDS = 256, LETTERS = 11 };

static char vocabulary[WORDS][LETTERS];

static void make(char *page, size_t number, uint64_t round) {
    uint64_t seed = (number + round * PAGES) * 0x9e3779b97f4a7c15u + 1;
    memset(page, 0, PAGE);
    for (size_t at = 0; at + LETTERS <= PAGE; at += LETTERS)
        memcpy(page + at, vocabulary[next_random(&seed) >> 40 & (WORDS - 1)], LETTERS);
}

static void compare(const char *p, size_t number, uint64_t round) {
    char want[PAGE];
    make(want, number, round);
    if (memcmp(want, p + number * PAGE, PAGE) != 0)
        BAD("page %zu in round %d", number, (int)round);
}

/* Argument: milliseconds between the rounds, for the training. */
int main(int argc, char **argv) {
    unsigned training_ms = argc > 1 ? (unsigned)atoi(argv[1]) : 2000;
    uint64_t seed = 7;
    for (size_t w = 0; w < WORDS; w++)
        for (size_t l = 0; l < LETTERS; l++)
            vocabulary[w][l] = (char)(' ' + (next_random(&seed) >> 33) % 90);
    size_t bytes = (size_t)PAGES * PAGE;
    char *p = map(bytes);
    for (uint64_t round = 1; round <= 2; round++) {
        for (size_t i = 0; i < PAGES; i++) make(p + i * PAGE, i, round);
        wait_demoted(bytes * 9 / 10);
        for (size_t i = 0; i < PAGES; i += round == 1 ? 7 : 1) compare(p, i, round);
        /* The dictionary is trained when nobody else wants the processor. */
        if (round == 1) pause_ms(training_ms);
    }
    wait_demoted(bytes / 2);
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        for (size_t i = 0; i < PAGES; i += 3) compare(p, i, 2);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    EXPECT(status == 0);
    return done();
}
