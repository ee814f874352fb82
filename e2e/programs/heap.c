/* malloc churn on the brk heap and in arenas, with half of the blocks left to go cold. */
#include "hazard.h"
#include <malloc.h>

enum { BLOCKS = 4000, SECONDS = 4 };

static double end_s;

static void write_block(unsigned char *b, size_t size, uint64_t tag) {
    for (size_t i = 0; i < size; i++) b[i] = (unsigned char)(tag + i / 16);
}

static void check_block(const unsigned char *b, size_t size, uint64_t tag) {
    for (size_t i = 0; i < size; i++)
        if (b[i] != (unsigned char)(tag + i / 16))
            BAD("block %llu, byte %zu", (unsigned long long)tag, i);
}

static void *churn(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    static __thread struct {
        unsigned char *at;
        size_t size;
        uint64_t tag;
    } blocks[BLOCKS];
    for (uint64_t n = 1; now_s() < end_s; n++) {
        /* The first half of the blocks is rarely touched. */
        size_t i = BLOCKS / 2 + next_random(&seed) % (BLOCKS / 2);
        if (n % 500 == 0) pause_ms(20);
        if (n <= BLOCKS || n % 1000 == 0) i = n % BLOCKS;
        if (blocks[i].at) {
            check_block(blocks[i].at, blocks[i].size, blocks[i].tag);
            if (next_random(&seed) % 4 == 0) {
                size_t size = 1 + next_random(&seed) % 20000, old = blocks[i].size;
                blocks[i].at = realloc(blocks[i].at, size);
                check_block(blocks[i].at, size < old ? size : old, blocks[i].tag);
                blocks[i].size = size;
                write_block(blocks[i].at, size, blocks[i].tag);
                continue;
            }
            free(blocks[i].at);
        }
        /* The brk heap needs blocks under the threshold of mmap. */
        blocks[i].size = 1 + next_random(&seed) % (n % 50 ? 6000 : 60000);
        blocks[i].tag = n;
        blocks[i].at = malloc(blocks[i].size);
        write_block(blocks[i].at, blocks[i].size, n);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].at) check_block(blocks[i].at, blocks[i].size, blocks[i].tag);
        free(blocks[i].at);
        if (i % 1000 == 0) malloc_trim(0);
    }
    return NULL;
}

int main(void) {
    /* A heap of some size first, demoted, then grown and shrunk by brk itself. */
    size_t bytes = 16 * MIB;
    char *before = sbrk((intptr_t)(bytes + 2 * PAGE));
    MUST(before);
    char *p = (char *)(((uintptr_t)before + PAGE - 1) & ~(PAGE - 1));
    fill(p, bytes, 1);
    wait_demoted(bytes);
    check(p, bytes, 1);
    end_s = now_s() + SECONDS;
    pthread_t t[3];
    for (uintptr_t n = 0; n < 3; n++) pthread_create(&t[n], NULL, churn, (void *)(n + 1));
    churn((void *)77);
    for (int n = 0; n < 3; n++) pthread_join(t[n], NULL);
    check(p, bytes, 1);
    return done();
}
