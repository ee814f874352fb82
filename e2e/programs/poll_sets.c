/* select, poll and epoll: the sets, the timeouts and the events are in demoted memory, and go down
 * again while the call waits. */
#include "hazard.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

enum { BYTES = 16 << 20, EVENTS = 200 };

static char *p;
static int fds[EVENTS];

static void *later(void *arg) {
    pause_ms(500);
    uint64_t one = 1;
    for (size_t n = (size_t)(uintptr_t)arg; n < EVENTS; n += 3)
        if (write(fds[n], &one, 8) != 8) BAD("eventfd: %s", strerror(errno));
    return NULL;
}

static void drain(void) {
    uint64_t n;
    for (int k = 0; k < EVENTS; k++)
        if (read(fds[k], &n, 8) < 0 && errno != EAGAIN) BAD("eventfd: %s", strerror(errno));
}

int main(void) {
    p = map(BYTES);
    int epoll = epoll_create1(0);
    for (int n = 0; n < EVENTS; n++) {
        fds[n] = eventfd(0, EFD_NONBLOCK);
        MUST(fds[n]);
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint64_t)n << 32 | 0xabcd};
        MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[n], &e));
    }
    for (uintptr_t round = 0; round < 3; round++) {
        fill(p, BYTES, 1);
        pthread_t t;
        /* poll */
        struct pollfd *polled = (void *)(p + 4 * PAGE - 100 * sizeof *polled);
        for (int n = 0; n < EVENTS; n++) polled[n] = (struct pollfd){fds[n], POLLIN, 0};
        wait_demoted(BYTES);
        pthread_create(&t, NULL, later, (void *)round);
        int count = poll(polled, EVENTS, 10000);
        pthread_join(t, NULL);
        MUST(count);
        EXPECT(count > 0);
        MUST(count = poll(polled, EVENTS, 0));
        int right = 0;
        for (int n = 0; n < EVENTS; n++)
            right += ((polled[n].revents & POLLIN) != 0) == (n % 3 == (int)round);
        say("POLL %d %d\n", count, right);
        drain();
        /* select */
        fd_set *set = (void *)(p + 9 * PAGE - 64);
        struct timeval *limit = (void *)(p + 20 * PAGE - 8);
        FD_ZERO(set);
        for (int n = 0; n < EVENTS; n++) FD_SET(fds[n], set);
        *limit = (struct timeval){10, 0};
        wait_demoted(BYTES);
        pthread_create(&t, NULL, later, (void *)round);
        count = select(fds[EVENTS - 1] + 1, set, NULL, NULL, limit);
        pthread_join(t, NULL);
        EXPECT(count > 0);
        EXPECT(limit->tv_sec < 10);
        drain();
        /* epoll, with a timeout in demoted memory */
        struct epoll_event *events = (void *)(p + 40 * PAGE - 1000);
        struct timespec *wait = (void *)(p + 60 * PAGE - 8);
        *wait = (struct timespec){10, 0};
        wait_demoted(BYTES);
        pthread_create(&t, NULL, later, (void *)round);
        /* Where threads are stopped (TERRACE_MOVER) it may end early, as by SIGSTOP: signal(7). */
        do count = (int)syscall(SYS_epoll_pwait2, epoll, events, EVENTS, wait, NULL, 0);
        while (count < 0 && errno == EINTR && getenv("TERRACE_MOVER"));
        pthread_join(t, NULL);
        EXPECT(count > 0);
        wait_demoted(BYTES);
        count = epoll_wait(epoll, events, EVENTS, 0);
        right = 0;
        for (int n = 0; n < count; n++)
            right += (events[n].data.u64 & 0xffff) == 0xabcd &&
                     (events[n].data.u64 >> 32) % 3 == round;
        say("EPOLL %d %d\n", count, right);
        drain();
    }
    return done();
}
