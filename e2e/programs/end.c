/* The end of a process while other threads fault: by exit with handlers and destructors that read
 * demoted memory, by _exit, by abort, by the last thread, or by a signal. argv[1] says which. */
#include "hazard.h"

enum { BYTES = 24 << 20 };

static char *p;
static bool read_at_end;

static void *fault(void *arg) {
    uint64_t random = 88172645463325252u + (uintptr_t)arg;
    for (;;) {
        size_t i = next_random(&random) % (BYTES / PAGE);
        check_page(p + i * PAGE, i, 1);
    }
    return NULL;
}

static void at_end(void) { check(p, BYTES / 3, 1); }

static void on_end(int status, void *arg) {
    (void)status;
    EXPECT(arg == p);
    for (size_t i = BYTES / PAGE / 3; i < BYTES / PAGE * 2 / 3; i++) check_page(p + i * PAGE, i, 1);
}

__attribute__((destructor)) static void last(void) {
    if (!read_at_end) return;
    for (size_t i = BYTES / PAGE * 2 / 3; i < BYTES / PAGE; i++) check_page(p + i * PAGE, i, 1);
    say("OK\n");
}

static void *outlive_main(void *arg) {
    pause_ms(500);
    check(arg, BYTES, 1);
    say("OK\n");
    exit(0);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "exit";
    p = demoted(BYTES);
    if (strcmp(how, "last_thread") == 0) {
        pthread_t t;
        pthread_create(&t, NULL, outlive_main, p);
        pthread_exit(NULL);
    }
    pthread_t t[4];
    for (size_t n = 0; n < 4; n++) pthread_create(&t[n], NULL, fault, (void *)(n + 1));
    pause_ms(5);
    if (strcmp(how, "exit") == 0) {
        read_at_end = true;
        atexit(at_end);
        on_exit(on_end, p);
        exit(0);
    }
    say("OK\n");
    if (strcmp(how, "_exit") == 0) _exit(0);
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "raise") == 0) raise(SIGKILL);
    static volatile char *volatile nowhere = NULL;
    if (strcmp(how, "segv") == 0) *nowhere = 1;
    BAD("how?");
}
