/* Threads hold robust mutexes that another process shares, and are killed with their own. The other one
 * must be told, for which the kernel reads the descriptors of the dying threads, and serves no fault. */
#include "hazard.h"

enum { THREADS = 256, WAIT_MS = 6000 };
#define STACK ((size_t)256 << 10)

static struct shared {
    pthread_mutex_t mutex[THREADS];
    atomic_int held;
} *shared;

static void *holder(void *mutex) {
    pthread_mutex_lock(mutex);
    atomic_fetch_add(&shared->held, 1);
    for (;;) pause();
    return NULL;
}

/* Whoever holds them is killed; the exit status of the whole. */
static int inherit(pid_t owner) {
    MUST(waitpid(owner, NULL, 0));
    for (int n = 0; n < THREADS; n++) {
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 1;
        int why = pthread_mutex_timedlock(&shared->mutex[n], &limit);
        if (why != EOWNERDEAD) BAD("mutex %d of one that was killed: %s", n, strerror(why));
    }
    return done();
}

static void share(int memory) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    EXPECT(shared != MAP_FAILED);
}

static void hold(void) {
    char *stacks = map(THREADS * STACK);
    fill(stacks, THREADS * STACK, 7);
    for (size_t n = 0; n < THREADS; n++) {
        pthread_attr_t own;
        pthread_attr_init(&own);
        pthread_attr_setstack(&own, stacks + n * STACK, STACK);
        pthread_t t;
        if (pthread_create(&t, &own, holder, &shared->mutex[n])) BAD("no thread");
    }
    while (atomic_load(&shared->held) < THREADS) pause_ms(1);
    pause_ms(WAIT_MS);
    kill(getpid(), SIGKILL);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        share(atoi(argv[1]));
        hold();
    }
    int memory = memfd_create("shared", 0);
    MUST(memory);
    MUST(ftruncate(memory, sizeof *shared));
    share(memory);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    for (int n = 0; n < THREADS; n++) pthread_mutex_init(&shared->mutex[n], &attr);
    pid_t owner = fork();
    MUST(owner);
    if (owner == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", memory);
        execl("/proc/self/exe", argv[0], number, (char *)NULL);
        _exit(2);
    }
    return inherit(owner);
}
