/* Blocks of every size from four threads, on whatever malloc is loaded: each block holds content
 * that its number, size and version give, and is compared before it is freed, grown, shrunk or
 * left. calloc must give zeros, aligned blocks must be aligned. Pauses let memory get cold.
 *
 *   blocks MEBIBYTES ROUNDS     prints "OK checksum", or "BAD what" and ends with status 1 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, BLOCKS_MAX = 1 << 16 };

struct block {
    uint64_t *at;
    size_t words;
    uint64_t seed;
};

struct worker {
    pthread_t thread;
    int number, rounds;
    size_t budget_bytes;
    uint64_t random, checksum;
    size_t blocks;
    struct block block[BLOCKS_MAX];
};

static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void bad(const char *what, const struct block *b, size_t word) {
    char line[200];
    int n = snprintf(line, sizeof line, "BAD %s: block %p, %zu words, word %zu: %016lx not %016lx\n",
                     what, (void *)b->at, b->words, word, (unsigned long)b->at[word],
                     (unsigned long)(b->seed * (word / 5 + 1)));
    if (write(1, line, (size_t)n) != n) _exit(2);
    _exit(1);
}

/* Five equal words in a row, so that pages compress like real data do, and none is like another. */
static void fill(struct block *b, size_t from) {
    for (size_t i = from; i < b->words; i++) b->at[i] = b->seed * (i / 5 + 1);
}

static uint64_t check(const char *what, const struct block *b, size_t words) {
    uint64_t sum = 0;
    for (size_t i = 0; i < words; i++) {
        if (b->at[i] != b->seed * (i / 5 + 1)) bad(what, b, i);
        sum += b->at[i];
    }
    return sum;
}

static size_t any_words(uint64_t *random) {
    uint64_t r = next(random);
    switch (r % 64) {
        case 0: return (256 << 10) / 8 + next(random) % ((2 << 20) / 8);
        case 1 ... 8: return 4096 / 8 + next(random) % (60000 / 8);
        default: return 2 + next(random) % 255;
    }
}

static struct block obtain(struct worker *w) {
    struct block b = {.words = any_words(&w->random), .seed = next(&w->random) | 1};
    size_t bytes = b.words * 8;
    switch (next(&w->random) % 8) {
        case 0:
            b.at = calloc(b.words, 8);
            for (size_t i = 0; b.at && i < b.words; i++) {
                if (b.at[i] == 0) continue;
                b.seed = 0;
                bad("calloc gave no zeros", &b, i);
            }
            break;
        case 1: {
            /* Not more: mimalloc 2.0.9 misaligns some at 256 and above, without Terrace, too. */
            size_t alignment = (size_t)16 << next(&w->random) % 3;
            b.at = aligned_alloc(alignment, (bytes + alignment - 1) & ~(alignment - 1));
            if ((uintptr_t)b.at % alignment) bad("not aligned", &b, 0);
            break;
        }
        default: b.at = malloc(bytes);
    }
    if (!b.at) {
        perror("BAD malloc");
        _exit(1);
    }
    fill(&b, 0);
    return b;
}

static void resize(struct worker *w, struct block *b) {
    size_t words = any_words(&w->random), kept = words < b->words ? words : b->words;
    b->at = realloc(b->at, words * 8);
    if (!b->at) {
        perror("BAD realloc");
        _exit(1);
    }
    b->words = kept;
    check("after realloc", b, kept);
    b->words = words;
    fill(b, kept);
}

static void *work(void *of) {
    struct worker *w = of;
    size_t held = 0;
    for (int round = 0; round < w->rounds; round++) {
        while (held < w->budget_bytes && w->blocks < BLOCKS_MAX) {
            w->block[w->blocks] = obtain(w);
            held += w->block[w->blocks++].words * 8;
        }
        /* Long enough for everything to go down, and not the same for all threads. */
        usleep(500000 + (useconds_t)w->number * 90000);
        /* One block in four is used, out of order: it is freed, resized or only read. */
        for (size_t n = 0; n < w->blocks / 4; n++) {
            size_t i = next(&w->random) % w->blocks;
            struct block *b = &w->block[i];
            w->checksum += check("in use", b, b->words);
            held -= b->words * 8;
            switch (next(&w->random) % 4) {
                case 0: /* The number of blocks stays well above zero. */
                    free(b->at);
                    *b = obtain(w);
                    break;
                case 1: resize(w, b); break;
                default: break;
            }
            held += b->words * 8;
        }
        if (round % 3 == 2) {
            for (size_t i = w->blocks / 2; i < w->blocks; i++) {
                w->checksum += check("to be freed", &w->block[i], w->block[i].words);
                held -= w->block[i].words * 8;
                free(w->block[i].at);
            }
            w->blocks /= 2;
            malloc_trim(0);
        }
    }
    for (size_t i = 0; i < w->blocks; i++) {
        w->checksum += check("at the end", &w->block[i], w->block[i].words);
        free(w->block[i].at);
    }
    return 0;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    static struct worker worker[THREADS];
    uint64_t sum = 0;
    for (int n = 0; n < THREADS; n++) {
        worker[n].number = n;
        worker[n].rounds = atoi(words[2]);
        worker[n].budget_bytes = ((size_t)atoi(words[1]) << 20) / THREADS;
        worker[n].random = 77 + (uint64_t)n;
        if (pthread_create(&worker[n].thread, 0, work, &worker[n])) return 2;
    }
    for (int n = 0; n < THREADS; n++) {
        pthread_join(worker[n].thread, 0);
        sum ^= worker[n].checksum;
    }
    printf("OK %016lx\n", (unsigned long)sum);
    return 0;
}
