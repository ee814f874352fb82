/* MADV_DONTNEED against threads that touch the same pages, and against demotion. */
#include "hazard.h"

enum { THREADS = 4, PAGES = 6144, SECONDS = 4 };

static char *p;
static double end_s;

/* A page is whole or zero; torn or old after it was dropped and written anew it must not be. */
static void *reader(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    while (now_s() < end_s) {
        for (int n = 0; n < 200; n++) {
            size_t i = next_random(&seed) % PAGES;
            uint64_t first = *(_Atomic uint64_t *)(void *)(p + i * PAGE);
            if (first != 0 && first % PAGES != i)
                BAD("page %zu begins with %llx", i, (unsigned long long)first);
        }
        pause_ms(50);
    }
    return NULL;
}

/* Each dropper owns a quarter: what it writes after a drop stays. */
static void *dropper(void *arg) {
    size_t me = (size_t)(uintptr_t)arg, share = PAGES / THREADS;
    uint64_t seed = me + 11, version = 1;
    char *mine = p + me * share * PAGE;
    while (now_s() < end_s) {
        size_t first = next_random(&seed) % (share - 64), count = 1 + next_random(&seed) % 64;
        MUST(madvise(mine + first * PAGE, count * PAGE, MADV_DONTNEED));
        for (size_t i = first; i < first + count; i++) {
            uint64_t *words = (uint64_t *)(void *)(mine + i * PAGE);
            for (size_t w = 0; w < PAGE / 8; w++)
                if (words[w] != 0)
                    BAD("dropped page %zu, word %zu is %llx", i, w, (unsigned long long)words[w]);
            uint64_t value = version * PAGES + me * share + i;
            for (size_t w = 0; w < PAGE / 8; w++) words[w] = value;
        }
        pause_ms((unsigned)(next_random(&seed) % 40));
        for (size_t i = first; i < first + count; i++) {
            uint64_t *words = (uint64_t *)(void *)(mine + i * PAGE);
            for (size_t w = 0; w < PAGE / 8; w++)
                if (words[w] != version * PAGES + me * share + i)
                    BAD("page %zu, word %zu is %llx", i, w, (unsigned long long)words[w]);
        }
        version++;
        if (version % 20 == 0) pause_ms(600);
    }
    return NULL;
}

int main(void) {
    p = map((size_t)PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++)
        for (size_t w = 0; w < PAGE / 8; w++) ((uint64_t *)(void *)(p + i * PAGE))[w] = PAGES + i;
    wait_demoted((size_t)PAGES * PAGE);
    end_s = now_s() + SECONDS;
    pthread_t t[2 * THREADS];
    for (uintptr_t n = 0; n < THREADS; n++) {
        pthread_create(&t[n], NULL, dropper, (void *)n);
        pthread_create(&t[THREADS + n], NULL, reader, (void *)(n + 1));
    }
    for (int n = 0; n < 2 * THREADS; n++) pthread_join(t[n], NULL);
    return done();
}
