/* Threads that wait in the kernel, in calls that a stop of the thread would end, while memory goes
 * down and comes back, and signals come that nobody wants: none of them ends early, and each with a
 * timeout ends in its time. */
#include "hazard.h"
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/timerfd.h>

enum { EVENTS = 12, TIMEOUT_MS = 200 };

static int epoll, pipes[2], semaphores;
static _Atomic int taken[3];
static _Atomic bool is_over;

static void *waits_for_events(void *arg) {
    (void)arg;
    for (int n = 0; n < EVENTS; n++) {
        struct epoll_event event;
        int count = epoll_wait(epoll, &event, 1, -1);
        if (count != 1) BAD("epoll_wait: %d, %s", count, strerror(errno));
        char byte;
        MUST(read(pipes[0], &byte, 1));
        taken[0]++;
    }
    return NULL;
}

static void *waits_for_a_semaphore(void *arg) {
    (void)arg;
    for (int n = 0; n < EVENTS; n++) {
        struct sembuf less = {0, -1, 0};
        MUST(semop(semaphores, &less, 1));
        taken[1]++;
    }
    return NULL;
}

static void *waits_for_signals(void *arg) {
    sigset_t *set = arg;
    for (int n = 0; n < EVENTS; n++) {
        int got = sigwaitinfo(set, NULL);
        if (got != SIGUSR1) BAD("sigwaitinfo: %d, %s", got, strerror(errno));
        taken[2]++;
    }
    return NULL;
}

/* An event loop with a timer, in which nothing happens. */
static void *waits_for_time(void *arg) {
    (void)arg;
    int idle = epoll_create1(0);
    MUST(idle);
    while (!is_over) {
        struct epoll_event event;
        double start = now_s();
        int count = epoll_wait(idle, &event, 1, TIMEOUT_MS);
        double took_ms = (now_s() - start) * 1000;
        if (count != 0) BAD("epoll_wait with a timeout: %d, %s", count, strerror(errno));
        EXPECT(took_ms > TIMEOUT_MS - 1);
        if (took_ms > 20 * TIMEOUT_MS) BAD("a timeout took %.0f ms", took_ms);
    }
    return NULL;
}

/* A wait that an event ends early, and then one for as long as the first had left when it began. */
static void *waits_for_less(void *arg) {
    int idle = epoll_create1(0), busy = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    MUST(idle);
    MUST(busy);
    MUST(timer);
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(busy, EPOLL_CTL_ADD, timer, &event));
    struct itimerspec soon = {.it_value = {.tv_nsec = 8000000}};
    while (!is_over) {
        MUST(timerfd_settime(timer, 0, &soon, NULL));
        EXPECT(epoll_wait(busy, &event, 1, TIMEOUT_MS) == 1);
        uint64_t ticks;
        MUST(read(timer, &ticks, sizeof ticks));
        pause_ms(TIMEOUT_MS * 3 / 2);
        double start = now_s();
        EXPECT(epoll_wait(idle, &event, 1, TIMEOUT_MS - 1) == 0);
        double took_ms = (now_s() - start) * 1000;
        if (took_ms < TIMEOUT_MS - 5) BAD("a timeout of %d ms took %.1f", TIMEOUT_MS - 1, took_ms);
    }
    return arg;
}

/* For a request that ends by itself, in a ring whose entries nobody looks at. */
static void *waits_for_a_ring(void *arg) {
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) return arg; /* not permitted here */
    size_t bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t of_results = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    if (of_results > bytes) bytes = of_results;
    int rw = PROT_READ | PROT_WRITE;
    char *m = mmap(NULL, bytes, rw, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *asks =
        mmap(NULL, params.sq_entries * sizeof *asks, rw, MAP_SHARED, ring, IORING_OFF_SQES);
    EXPECT(m != MAP_FAILED && asks != MAP_FAILED);
    _Atomic unsigned *tail = (void *)(m + params.sq_off.tail);
    _Atomic unsigned *done = (void *)(m + params.cq_off.head);
    unsigned *order = (void *)(m + params.sq_off.array);
    while (!is_over) {
        struct __kernel_timespec in = {.tv_nsec = 20000000};
        unsigned n = *tail & (params.sq_entries - 1);
        asks[n] = (struct io_uring_sqe){
            .opcode = IORING_OP_TIMEOUT, .addr = (uintptr_t)&in, .len = 1};
        order[n] = n;
        *tail += 1;
        EXPECT(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
        long got = syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (got < 0) BAD("io_uring_enter: %s", strerror(errno));
        *done += 1;
    }
    close(ring);
    return arg;
}

static pthread_t t[6];

/* What is ignored ends no wait, unless a tracer is looking. */
static void *sends_ignored_signals(void *arg) {
    while (!is_over) {
        for (int k = 0; k < 3; k++) pthread_kill(t[k], SIGWINCH);
        pause_ms(1);
    }
    return arg;
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    MUST(pipe(pipes));
    MUST(epoll = epoll_create1(0));
    struct epoll_event readable = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &readable));
    MUST(semaphores = semget(IPC_PRIVATE, 1, 0600));
    size_t bytes = 16 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 1);
    pthread_create(&t[0], NULL, waits_for_events, NULL);
    pthread_create(&t[1], NULL, waits_for_a_semaphore, NULL);
    pthread_create(&t[2], NULL, waits_for_signals, &set);
    pthread_create(&t[3], NULL, waits_for_time, NULL);
    pthread_create(&t[4], NULL, waits_for_less, NULL);
    pthread_create(&t[5], NULL, waits_for_a_ring, NULL);
    pthread_t sender;
    pthread_create(&sender, NULL, sends_ignored_signals, NULL);
    for (int n = 0; n < EVENTS; n++) {
        wait_demoted(bytes);
        check(p, bytes, 1);
        struct sembuf more = {0, 1, 0};
        MUST(write(pipes[1], "x", 1));
        MUST(semop(semaphores, &more, 1));
        pthread_kill(t[2], SIGUSR1);
        for (int k = 0; k < 3; k++)
            while (taken[k] <= n) pause_ms(1);
    }
    for (int k = 0; k < 3; k++) pthread_join(t[k], NULL);
    is_over = true;
    for (int k = 3; k < 6; k++) pthread_join(t[k], NULL);
    pthread_join(sender, NULL);
    MUST(semctl(semaphores, 0, IPC_RMID));
    return done();
}
