/* Threads that wait in the kernel, in calls that a stop of the thread would end, while memory goes
 * down and comes back, and signals come that nobody wants: none of them ends early, and each with a
 * timeout ends in its time. */
#include "hazard.h"
#include <sys/epoll.h>
#include <sys/sem.h>

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

static pthread_t t[4];

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
    pthread_join(t[3], NULL);
    pthread_join(sender, NULL);
    MUST(semctl(semaphores, 0, IPC_RMID));
    return done();
}
