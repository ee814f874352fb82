/* Memory that verifies itself, for as long as it is asked to: `soak MIB THREADS`.
 *
 * Every page carries its number and its generation, and the rest of it follows from both. Threads
 * read and verify, rewrite, drop, move and replace pages, each its own; they read those of others
 * as well. Now and then the process forks, and the child verifies everything. Ends with its
 * standard input: verifies everything once more and says `OK PAGES VERIFIED`. */
#include "hazard.h"

enum { CHUNK_PAGES = 512, THREADS_MAX = 16, STEP = 64 };

#define CHUNK_BYTES (CHUNK_PAGES * PAGE)

/* A chunk belongs to one thread. Others read it too, unless it is mobile: then it may be anywhere,
 * or nowhere for a moment. */
struct chunk {
    _Atomic(char *) at;
    /* By page: its generation times two, plus one while it is being written. 0: all zeros. */
    _Atomic uint32_t stamp[CHUNK_PAGES];
    bool is_mobile;
};

static struct chunk *chunks;
static size_t chunk_count, thread_count;
static _Atomic uint64_t verified;
static _Atomic bool ended;
/* Held for reading by threads at work, for writing while the process forks. */
static pthread_rwlock_t at_work;

static uint64_t mix(uint64_t v) {
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
    return v ^ (v >> 31);
}

/* How much of a page is noise, in words; what follows repeats. One page in 8 is one word all over,
 * one does not compress. */
static size_t noise_words(uint64_t key) {
    switch (key & 7) {
        case 0: return 0;
        case 1: return PAGE / 8;
        default: return 16 + (key >> 8) % 160;
    }
}

/* Does `use` with each word of a page and what it must be. */
#define FOR_WORDS(number, generation, use)                                 \
    do {                                                                   \
        uint64_t key = mix((uint64_t)(number) << 32 | (generation)), k = key; \
        size_t noise = noise_words(key);                                   \
        for (size_t w = 0; w < noise; w++) {                               \
            k += 0x9e3779b97f4a7c15u;                                      \
            uint64_t value = k ^ (k >> 29) ^ key;                          \
            use;                                                           \
        }                                                                  \
        uint64_t half = (uint32_t)key | key << 32;                         \
        for (size_t w = noise; w < PAGE / 8; w++) {                        \
            uint64_t value = noise == 0 ? half : half + (w & 7);           \
            use;                                                           \
        }                                                                  \
    } while (0)

static void write_page(char *page, uint64_t number, uint32_t generation) {
    uint64_t *words = (uint64_t *)(void *)page;
    FOR_WORDS(number, generation, words[w] = value);
}

static bool is_right(const char *page, uint64_t number, uint32_t generation) {
    const uint64_t *words = (const uint64_t *)(const void *)page;
    uint64_t wrong = 0;
    if (generation == 0) {
        for (size_t w = 0; w < PAGE / 8; w++) wrong |= words[w];
    } else {
        FOR_WORDS(number, generation, wrong |= words[w] ^ value);
    }
    return wrong == 0;
}

static void report(const char *page, uint64_t number, uint32_t generation) {
    const uint64_t *words = (const uint64_t *)(const void *)page;
    int at = -1, count = 0;
    FOR_WORDS(number, generation, {
        if (words[w] != (generation == 0 ? 0 : value)) {
            at = at < 0 ? (int)w : at;
            count++;
        }
    });
    BAD("page %llu generation %u at %p: %d words wrong, word %d is %llx",
        (unsigned long long)number, generation, (const void *)page, count, at,
        (unsigned long long)words[at < 0 ? 0 : at]);
}

static void verify(struct chunk *c, size_t i) {
    uint64_t number = (uint64_t)(c - chunks) * CHUNK_PAGES + i;
    uint32_t before = c->stamp[i];
    if (before & 1) return;
    const char *page = c->at + i * PAGE;
    bool right = is_right(page, number, before >> 1);
    /* Written meanwhile by its owner: no verdict. */
    atomic_thread_fence(memory_order_acquire);
    if (c->stamp[i] != before) return;
    if (!right) report(page, number, before >> 1);
    atomic_fetch_add_explicit(&verified, 1, memory_order_relaxed);
}

static void rewrite(struct chunk *c, size_t i) {
    uint32_t next = (c->stamp[i] >> 1) + 1;
    c->stamp[i] |= 1;
    atomic_thread_fence(memory_order_seq_cst);
    write_page(c->at + i * PAGE, (uint64_t)(c - chunks) * CHUNK_PAGES + i, next);
    c->stamp[i] = next << 1;
}

/* Drops pages: those that are read from now on are zeros. */
static void drop(struct chunk *c, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) c->stamp[i] |= 1;
    atomic_thread_fence(memory_order_seq_cst);
    MUST(madvise(c->at + first * PAGE, count * PAGE, MADV_DONTNEED));
    for (size_t i = first; i < first + count; i++) {
        uint32_t generation = c->stamp[i] >> 1;
        c->stamp[i] = 0;
        verify(c, i);
        c->stamp[i] = generation << 1 | 1;
        rewrite(c, i); /* never a generation again that was there before */
    }
}

/* Moves a mobile chunk elsewhere, or replaces it by a new one at another place. */
static void relocate(struct chunk *c, uint64_t luck) {
    char *old = c->at;
    if (luck & 1) {
        char *place = map(CHUNK_BYTES);
        void *now = mremap(old, CHUNK_BYTES, CHUNK_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (now == MAP_FAILED) BAD("mremap: %s", strerror(errno));
        c->at = now;
    } else {
        MUST(munmap(old, CHUNK_BYTES));
        c->at = map(CHUNK_BYTES);
        for (size_t i = 0; i < CHUNK_PAGES; i++) {
            uint32_t generation = c->stamp[i] >> 1;
            c->stamp[i] = 0;
            if (i % 16 == 0) verify(c, i);
            c->stamp[i] = generation << 1 | 1;
            rewrite(c, i);
        }
    }
}

static void pause_us(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static struct chunk *mine(size_t me, uint64_t luck) {
    size_t count = chunk_count / thread_count;
    return &chunks[me + luck % count * thread_count];
}

static void step(size_t me, uint64_t *seed) {
    uint64_t what = next_random(seed) % 64, luck = next_random(seed) >> 8;
    struct chunk *own = mine(me, luck), *any = &chunks[luck % chunk_count];
    if (any->is_mobile) any = own;
    if (what < 36) { /* a scan, of anybody's: what is away, and some of what is not */
        unsigned char here[CHUNK_PAGES];
        size_t away = 0;
        MUST(mincore(any->at, CHUNK_BYTES, here));
        for (size_t i = 0; i < CHUNK_PAGES; i++) {
            if ((here[i] & 1) && (i ^ luck) % 16 != 0) continue;
            away += !(here[i] & 1);
            verify(any, i);
        }
        /* The time is better spent by those who take pages away. */
        if (away < CHUNK_PAGES / 8) pause_us(500);
    } else if (what < 50) { /* here and there */
        for (size_t n = 0; n < STEP; n++) {
            uint64_t where = next_random(seed) >> 8;
            struct chunk *c = &chunks[where % chunk_count];
            verify(c->is_mobile ? own : c, (where >> 32) % CHUNK_PAGES);
        }
    } else if (what < 60) {
        for (size_t n = 0; n < STEP; n++) {
            size_t i = (next_random(seed) >> 8) % CHUNK_PAGES;
            verify(own, i);
            rewrite(own, i);
        }
    } else if (what < 63) {
        size_t first = (luck >> 32) % (CHUNK_PAGES - 64);
        drop(own, first, 1 + (luck >> 48) % 64);
    } else if (own->is_mobile) {
        relocate(own, luck >> 40);
    }
}

static void *work(void *arg) {
    size_t me = (size_t)(uintptr_t)arg;
    uint64_t seed = mix(me + 1);
    while (!ended) {
        pthread_rwlock_rdlock(&at_work);
        step(me, &seed);
        pthread_rwlock_unlock(&at_work);
    }
    return NULL;
}

static void verify_all(void) {
    for (size_t n = 0; n < chunk_count; n++)
        for (size_t i = 0; i < CHUNK_PAGES; i++) verify(&chunks[n], i);
}

static void fork_and_verify(void) {
    pthread_rwlock_wrlock(&at_work);
    pid_t pid = fork();
    pthread_rwlock_unlock(&at_work);
    MUST(pid);
    if (pid == 0) {
        verify_all();
        _exit(0);
    }
    join_child(pid);
}

int main(int argc, char **argv) {
    if (argc != 3) BAD("usage: soak MIB THREADS");
    thread_count = (size_t)atoi(argv[2]);
    if (thread_count < 1 || thread_count > THREADS_MAX) BAD("1 to 16 threads");
    chunk_count = (size_t)atoi(argv[1]) * MIB / CHUNK_BYTES / thread_count * thread_count;
    if (chunk_count == 0) BAD("at least 2 MiB a thread");
    chunks = map(chunk_count * sizeof *chunks);
    char *all = map(chunk_count * CHUNK_BYTES);
    /* A waiting fork goes before threads that come back for more. */
    pthread_rwlockattr_t fair;
    pthread_rwlockattr_init(&fair);
    pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&at_work, &fair);
    for (size_t n = 0; n < chunk_count; n++) {
        chunks[n].at = all + n * CHUNK_BYTES;
        chunks[n].is_mobile = n / thread_count % 8 == 7;
        for (size_t i = 0; i < CHUNK_PAGES; i++) rewrite(&chunks[n], i);
    }
    pthread_t t[THREADS_MAX];
    for (uintptr_t n = 0; n < thread_count; n++) pthread_create(&t[n], NULL, work, (void *)n);
    say("READY %zu\n", chunk_count * CHUNK_PAGES);
    MUST(fcntl(0, F_SETFL, O_NONBLOCK));
    char c;
    for (int tenths = 1; read(0, &c, 1) != 0; tenths++) {
        pause_ms(100);
        if (tenths % 80 == 0) fork_and_verify();
        if (tenths % 10 == 0) say("VERIFIED %llu\n", (unsigned long long)verified);
    }
    ended = true;
    for (size_t n = 0; n < thread_count; n++) pthread_join(t[n], NULL);
    verify_all();
    say("OK %llu\n", (unsigned long long)verified);
    return 0;
}
