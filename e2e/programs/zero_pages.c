/* Memory of which every other page is written and the rest only read, after all of it was given up:
 * says "PID pid" and, on SIGTERM, whether it reads as it should. */
#include "hazard.h"

static volatile sig_atomic_t ended;

static void end(int signal) {
    ended = signal;
}

int main(void) {
    size_t bytes = 32 * MIB, pages = bytes / PAGE;
    struct sigaction action = {.sa_handler = end};
    MUST(sigaction(SIGTERM, &action, NULL));
    char *p = demoted(bytes), zeros[PAGE] = {0};
    MUST(madvise(p, bytes, MADV_DONTNEED));
    for (size_t i = 0; i < pages; i++) {
        char *page = p + i * PAGE;
        if (i % 2 == 0) make_page(page, i, 1);
        else EXPECT(*(volatile char *)page == 0);
    }
    say("PID %d\n", (int)getpid());
    while (!ended) pause_ms(20);
    for (size_t i = 0; i < pages; i++) {
        char *page = p + i * PAGE;
        if (i % 2 == 0 ? !is_page(page, i, 1) : memcmp(page, zeros, PAGE) != 0) BAD("page %zu", i);
    }
    return done();
}
