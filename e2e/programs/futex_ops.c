/* Futex operations beyond wait and wake, on words in demoted memory: requeue, wake_op, bitsets,
 * mutexes that inherit priority, and waiting for several words at once. */
#include "hazard.h"
#include <linux/futex.h>

enum { WAITERS = 6 };

static char *p;
static size_t bytes = 16 * MIB;
static _Atomic uint32_t *a, *b, *c;
static pthread_mutex_t *inherits;
static _Atomic int waiting, woken;

static long futex(_Atomic uint32_t *word, int op, uint32_t v, void *v2, _Atomic uint32_t *w2,
                  uint32_t v3) {
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, v, v2, w2, v3);
}

static void *waits(void *arg) {
    uint32_t bits = (uint32_t)(uintptr_t)arg;
    waiting++;
    /* May wake for nothing only if the word changed; it does at the end. */
    while (*a == 0) {
        if (futex(a, FUTEX_WAIT_BITSET, 0, NULL, NULL, bits) == 0) break;
        if (errno != EINTR && errno != EAGAIN) BAD("wait: %s", strerror(errno));
    }
    woken++;
    return NULL;
}

static void *locks(void *arg) {
    (void)arg;
    for (int n = 0; n < 300; n++) {
        EXPECT(pthread_mutex_lock(inherits) == 0);
        uint64_t *count = (void *)(p + 999 * PAGE);
        ++*count;
        /* Others come to wait in the kernel, and the page has time to go down. */
        if (n % 30 == 0) pause_ms(150);
        EXPECT(pthread_mutex_unlock(inherits) == 0);
        if (n % 100 == 99) pause_ms(200);
    }
    return NULL;
}

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

static void *waits_for_many(void *arg) {
    struct waiter {
        uint64_t value, address;
        uint32_t flags, reserved;
    } *list = arg;
    long n = syscall(SYS_futex_waitv, list, 3, 0, NULL, 0);
    if (n < 0 && errno != EAGAIN && errno != ENOSYS) BAD("futex_waitv: %s", strerror(errno));
    woken++;
    return NULL;
}

int main(void) {
    p = map(bytes);
    fill(p, bytes, 1);
    a = (void *)(p + 10 * PAGE);
    b = (void *)(p + 700 * PAGE + 64);
    c = (void *)(p + 1500 * PAGE + 128);
    *a = *b = *c = 0;
    memset(p + 999 * PAGE, 0, PAGE);
    pthread_t t[WAITERS];
    for (int round = 0; round < 4; round++) {
        *a = 0;
        waiting = woken = 0;
        for (uintptr_t n = 0; n < WAITERS; n++)
            pthread_create(&t[n], NULL, waits, (void *)(1ul << n));
        while (waiting < WAITERS) pause_ms(1);
        wait_demoted(bytes);
        /* One by its bit, two on to the other word, one by a wake_op, the rest by both words. */
        long one = futex(a, FUTEX_WAKE_BITSET, WAITERS, NULL, NULL, 1u << 3);
        wait_demoted(bytes);
        long moved = futex(a, FUTEX_CMP_REQUEUE, 1, (void *)2, b, 0);
        wait_demoted(bytes);
        /* A word that this writes must be home: Linux has the call fail sooner than wait for it
         * (docs/core-dumps.md). */
        long by_op;
        do {
            (void)*(volatile uint32_t *)b;
            by_op = futex(a, FUTEX_WAKE_OP, 1, (void *)1, b,
                          FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 5u * (unsigned)round));
        } while (by_op < 0 && errno == EFAULT);
        uint32_t added = *b;
        *a = 1;
        futex(a, FUTEX_WAKE, WAITERS, NULL, NULL, 0);
        futex(b, FUTEX_WAKE, WAITERS, NULL, NULL, 0);
        for (int n = 0; n < WAITERS; n++) pthread_join(t[n], NULL);
        /* Where threads are stopped (TERRACE_MOVER) they do not wait meanwhile: fewer may be woken
         * by a call, and those find the word changed. */
        if (getenv("TERRACE_MOVER")) one = moved = by_op = 0;
        say("WOKEN %ld %ld %ld %u %d\n", one, moved, by_op, added, woken);
    }
    inherits = (void *)(p + 1700 * PAGE + 256);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    EXPECT(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    wait_demoted(bytes);
    EXPECT(pthread_mutex_init(inherits, &attributes) == 0);
    wait_demoted(bytes);
    pthread_t l[3];
    for (int n = 0; n < 3; n++) pthread_create(&l[n], NULL, locks, NULL);
    for (int n = 0; n < 3; n++) pthread_join(l[n], NULL);
    say("LOCKED %llu\n", (unsigned long long)*(uint64_t *)(void *)(p + 999 * PAGE));
    /* Three words on three pages, the list of them on a fourth. */
    struct { uint64_t value, address; uint32_t flags, reserved; } *list = (void *)(p + 2000 * PAGE);
    _Atomic uint32_t *words[3] = {a, b, c};
    *a = *b = *c = 0;
    for (int n = 0; n < 3; n++) {
        list[n].value = 0;
        list[n].address = (uintptr_t)words[n];
        list[n].flags = 2 | FUTEX_PRIVATE_FLAG;
        list[n].reserved = 0;
    }
    woken = 0;
    wait_demoted(bytes);
    pthread_create(&t[0], NULL, waits_for_many, list);
    pause_ms(500);
    *b = 1;
    while (!woken) {
        futex(b, FUTEX_WAKE, 1, NULL, NULL, 0);
        pause_ms(10);
    }
    pthread_join(t[0], NULL);
    say("MANY %d\n", woken);
    return done();
}
