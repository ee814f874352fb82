/* A mapping with content, nothing, and content again: registration makes several of it. */
#ifndef PARTED_H
#define PARTED_H
#include "hazard.h"

enum { FULL = 12, EMPTY = 8 }; /* MiB */
#define PARTED ((2 * FULL + EMPTY) * MIB)

static inline void fill_parted(char *p) {
    size_t second = (FULL + EMPTY) * MIB;
    fill(p, FULL * MIB, 1);
    for (size_t i = second / PAGE; i < PARTED / PAGE; i++) make_page(p + i * PAGE, i, 1);
}

static inline void check_parted(const char *p) {
    size_t first = FULL * MIB, second = (FULL + EMPTY) * MIB;
    check(p, first, 1);
    check_zero(p + first, EMPTY * MIB);
    for (size_t i = second / PAGE; i < PARTED / PAGE; i++) check_page(p + i * PAGE, i, 1);
}

#endif
