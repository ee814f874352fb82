/* Threads of C11, whose descriptors lie at the top of stacks that libc keeps for the next thread. The
 * kernel clears a word there when the thread has ended, and whoever joins it waits for that. These
 * touch nothing of their own between a long sleep and their end.
 *
 * thrd_ends MAKER: thrd or pthread. */
#include "hazard.h"
#include <sys/rseq.h>
#include <threads.h>

enum { THREADS = 4, ROUNDS = 15, PARTS = 16 };

static bool is_pthread;
static atomic_int seen;

static int shortly(void *arg) {
    (void)arg;
    /* All are there at once, so that each has a stack of its own. */
    atomic_fetch_add(&seen, 1);
    while (atomic_load(&seen) < THREADS) pause_ms(1);
    return 0;
}

static int sleeps_and_ends(void *arg) {
    (void)arg;
    /* Else the kernel writes there with each turn. */
    if (__rseq_size != 0)
        syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, 32, 1, RSEQ_SIG);
    static struct timespec t = {0, 80 * 1000000};
    long result;
    __asm__ volatile("syscall\n\tmov %2, %%eax\n\txor %%edi, %%edi\n\tsyscall"
                     : "=a"(result)
                     : "a"((long)SYS_nanosleep), "i"(SYS_exit), "D"(&t), "S"(NULL)
                     : "rcx", "r11", "memory");
    return (int)result;
}

static void *as_pthread(void *start) {
    ((thrd_start_t)start)(NULL);
    return NULL;
}

static void make(thrd_t *thread, thrd_start_t start) {
    if (is_pthread)
        EXPECT(pthread_create((pthread_t *)thread, NULL, as_pthread, (void *)start) == 0);
    else
        EXPECT(thrd_create(thread, start, NULL) == thrd_success);
}

static void join(thrd_t thread) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    if (pthread_timedjoin_np((pthread_t)thread, NULL, &limit) != 0)
        BAD("a thread that has ended is waited for");
}

int main(int count, char **arguments) {
    is_pthread = count > 1 && strcmp(arguments[1], "pthread") == 0;
    /* Small stacks lie beside each other and what is mapped next, and go where that goes. */
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 64 << 10);
    pthread_setattr_default_np(&attr);
    /* More at once the kernel would put apart, to begin with a huge page. */
    size_t bytes = MIB;
    char *parts[PARTS];
    for (int round = 0; round < ROUNDS; round++) {
        thrd_t threads[THREADS];
        if (round == 0) {
            for (int n = 0; n < THREADS; n++) make(&threads[n], shortly);
            for (int n = 0; n < THREADS; n++) join(threads[n]);
            for (int n = 0; n < PARTS; n++) fill(parts[n] = map(bytes), bytes, n);
        }
        /* Their stacks go down meanwhile. */
        pause_ms(round == 0 ? 1500 : 150);
        for (int n = 0; n < THREADS; n++) make(&threads[n], sleeps_and_ends);
        for (int n = 0; n < THREADS; n++) join(threads[n]);
    }
    for (int n = 0; n < PARTS; n++) check(parts[n], bytes, n);
    return done();
}
