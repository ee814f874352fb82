/* Forks in a loop, by main and by another thread at once, while threads fault, pages go down and
 * others write: each child sees each page as one version of itself, and its own writes alone. */
#include "hazard.h"

enum { PAGES = 4096, FORKS = 12, READERS = 2 };

static char *fixed, *moving;
static atomic_bool stop;

static void *read_on(void *arg) {
    uint64_t random = 88172645463325252u + (uintptr_t)arg;
    while (!stop) {
        size_t i = next_random(&random) % PAGES;
        check_page(fixed + i * PAGE, i, 1);
    }
    return NULL;
}

/* The version of a page is in its number: page i of version v is page i + v * PAGES. */
static void *write_on(void *arg) {
    (void)arg;
    for (uint64_t v = 1; !stop; v++)
        for (size_t i = 0; i < PAGES && !stop; i += 61) {
            char page[PAGE];
            make_page(page, i, v);
            memcpy(moving + i * PAGE, page, sizeof(uint64_t) * 8);
        }
    return NULL;
}

static void *fork_on(void *arg) {
    for (int n = 0; n < FORKS; n++) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            size_t from = (size_t)(n % 4) * PAGES / 4;
            for (size_t i = from; i < from + PAGES / 4; i++) {
                check_page(fixed + i * PAGE, i, 1);
                make_page(fixed + i * PAGE, i, 7);
            }
            for (size_t i = from; i < from + PAGES / 4; i++) check_page(fixed + i * PAGE, i, 7);
            _exit(0);
        }
        join_child(pid);
        pause_ms(arg == NULL ? 20 : 35);
    }
    return NULL;
}

int main(void) {
    size_t bytes = PAGES * PAGE;
    fixed = map(bytes);
    moving = map(bytes);
    fill(fixed, bytes, 1);
    fill(moving, bytes, 1);
    wait_demoted(2 * bytes);
    pthread_t readers[READERS], writer, forker;
    for (size_t n = 0; n < READERS; n++) pthread_create(&readers[n], NULL, read_on, (void *)(n + 1));
    pthread_create(&writer, NULL, write_on, NULL);
    pthread_create(&forker, NULL, fork_on, fixed);
    fork_on(NULL);
    pthread_join(forker, NULL);
    stop = true;
    for (int n = 0; n < READERS; n++) pthread_join(readers[n], NULL);
    pthread_join(writer, NULL);
    check(fixed, bytes, 1);
    return done();
}
