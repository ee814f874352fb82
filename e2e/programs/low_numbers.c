/* A program that counts on its descriptors' numbers: the lowest free one is what it gets, what it puts on
 * a free number stays there. Meanwhile another thread wants pages back, and children are forked that miss
 * many. */
#include "hazard.h"

#define AREA (96 * MIB)
#define FORKS 4
#define SECONDS 4

static char *area;
static atomic_bool over;

static void *toucher(void *arg) {
    uint64_t random = 7;
    while (!atomic_load(&over)) {
        size_t i = next_random(&random) % (AREA / PAGE);
        check_page(area + i * PAGE, i, 1);
        pause_ms(1);
    }
    return arg;
}

/* `lowest` is free. */
static void take_numbers(int file, int lowest) {
    double end = now_s() + SECONDS;
    for (int n = 0; now_s() < end; n++) {
        int got = fcntl(file, F_DUPFD, lowest);
        if (got != lowest) BAD("%d is not the lowest free number, which is %d", got, lowest);
        MUST(close(got));
        if (dup2(file, lowest) != lowest) BAD("dup2 to a free number: %s", strerror(errno));
        for (double until = now_s() + 3e-6; now_s() < until;) {
        }
        if (fcntl(lowest, F_GETFD) < 0) BAD("turn %d: somebody has closed a descriptor", n);
        MUST(close(lowest));
    }
}

int main(void) {
    int file, lowest;
    MUST(file = open("/dev/null", O_RDWR | O_CLOEXEC));
    MUST(lowest = dup(file));
    MUST(close(lowest));
    area = map(AREA);
    fill(area, AREA, 1);
    for (int n = 0; n < FORKS; n++) {
        wait_demoted(AREA);
        pid_t child = fork();
        MUST(child);
        if (child == 0) {
            check(area, AREA, 1);
            _exit(0);
        }
        if (dup2(file, lowest) != lowest) BAD("dup2 after a fork: %s", strerror(errno));
        pause_ms(50);
        if (fcntl(lowest, F_GETFD) < 0) BAD("somebody has closed a descriptor after a fork");
        MUST(close(lowest));
        join_child(child);
    }
    wait_demoted(AREA);
    pthread_t t;
    if (pthread_create(&t, NULL, toucher, NULL)) BAD("no thread");
    take_numbers(file, lowest);
    atomic_store(&over, true);
    pthread_join(t, NULL);
    return done();
}
