/* A server's memory: part of it in use with a popularity after Zipf (one over the rank), popular
 * pages side by side as in a cache that was filled in the order of popularity, and part that hardly
 * anybody asks for. Each access checks the page. At the end everything is checked.
 *
 * Arguments: MiB in use, MiB hardly used, accesses a second, accesses a second to the rest,
 * seconds. Says how many accesses it made and how long the slowest took. */
#include "hazard.h"

enum { STEP_US = 2000 };

static uint64_t state = 88172645463325252u;

static double unit(void) {
    return (double)(next_random(&state) >> 11) / 9007199254740992.0;
}

/* Whether a line of the page, drawn at random, is the page's: all begin with its number. */
static void look_at(const char *page, uint64_t number) {
    const char *line = page + (next_random(&state) >> 40) % (PAGE / 64) * 64;
    for (int digit = 0; digit < 8; digit++) {
        if (line[digit] != "0123456789abcdef"[number >> (28 - 4 * digit) & 15])
            check_page(page, number, 0); /* says what is wrong */
    }
}

/* The first rank whose cumulated weight is above what was drawn. */
static size_t draw(const double *cumulated, size_t n) {
    double at = unit() * cumulated[n - 1];
    size_t low = 0, high = n - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cumulated[middle] > at) high = middle;
        else low = middle + 1;
    }
    return low;
}

int main(int argc, char **argv) {
    EXPECT(argc == 6);
    size_t used = (size_t)atoi(argv[1]) * MIB / PAGE, rest = (size_t)atoi(argv[2]) * MIB / PAGE;
    double rate = atof(argv[3]), rest_rate = atof(argv[4]), end = atof(argv[5]);
    /* Beside the memory that is tiered, not in it: the table is looked at all the time. */
    double *cumulated = malloc(used * sizeof *cumulated), sum = 0;
    EXPECT(cumulated);
    for (size_t i = 0; i < used; i++) cumulated[i] = sum += 1.0 / (double)(i + 1);
    char *p = map((used + rest) * PAGE);
    fill(p, (used + rest) * PAGE, 0);
    say("PID %d\n", (int)getpid());
    double start = now_s(), slowest = 0, due = 0, due_rest = 0;
    uint64_t accesses = 0, late = 0;
    for (;;) {
        double at = now_s() - start;
        if (at >= end) break;
        /* What is due by now; what cannot be kept up with is left out, and said. */
        if (at * rate - due > rate) {
            late += (uint64_t)(at * rate - due - rate);
            due = at * rate - rate;
        }
        for (; due < at * rate; due++, accesses++) {
            size_t i = draw(cumulated, used);
            double before = now_s();
            *(volatile char *)(p + i * PAGE);
            double took = now_s() - before;
            if (took > slowest) slowest = took;
            look_at(p + i * PAGE, i);
        }
        for (; due_rest < at * rest_rate; due_rest++, accesses++) {
            size_t i = used + (size_t)(unit() * (double)rest);
            look_at(p + i * PAGE, i);
        }
        struct timespec t = {0, STEP_US * 1000};
        nanosleep(&t, NULL);
    }
    say("ACCESSES %llu, %llu left out, slowest %u us\n", (unsigned long long)accesses,
        (unsigned long long)late, (unsigned)(slowest * 1e6));
    for (size_t i = 0; i < used + rest; i++) check_page(p + i * PAGE, i, 0);
    return done();
}
