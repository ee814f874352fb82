/* mprotect on demoted memory: readable, forbidden, writable again; violations are still signals. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf back;

static void caught(int signal) {
    siglongjmp(back, signal);
}

static bool faults(char *at, bool write) {
    if (sigsetjmp(back, 1)) return true;
    if (write)
        *(volatile char *)at = *at;
    else
        (void)*(volatile char *)at;
    return false;
}

int main(void) {
    size_t bytes = 16 * MIB, half = 8 * MIB;
    char *p = demoted(bytes);
    struct sigaction action = {.sa_handler = caught};
    MUST(sigaction(SIGSEGV, &action, NULL));

    MUST(mprotect(p, half, PROT_READ));
    EXPECT(faults(p + 5 * PAGE, true));
    check(p, bytes, 1);

    MUST(mprotect(p, bytes, PROT_READ | PROT_WRITE));
    wait_demoted(bytes);
    MUST(mprotect(p + half, half, PROT_NONE));
    EXPECT(faults(p + half + 9 * PAGE, false));
    EXPECT(!faults(p + half - PAGE, true));
    pause_ms(600); /* some windows with a hole in the middle */
    EXPECT(faults(p + bytes - PAGE, false));
    MUST(mprotect(p + half, half, PROT_READ | PROT_WRITE));
    check(p, bytes, 1);

    /* On its way down while the protection changes. */
    double end = now_s() + 3;
    for (uint64_t seed = 5; now_s() < end;) {
        size_t first = next_random(&seed) % (bytes / PAGE - 700);
        char *q = p + first * PAGE;
        MUST(mprotect(q, 700 * PAGE, PROT_READ));
        for (size_t i = 0; i < 700; i += 7) check_page(q + i * PAGE, first + i, 1);
        MUST(mprotect(q, 700 * PAGE, PROT_NONE));
        pause_ms((unsigned)(next_random(&seed) % 200));
        MUST(mprotect(q, 700 * PAGE, PROT_READ | PROT_WRITE));
    }
    fill(p, bytes, 2);
    check(p, bytes, 2);
    return done();
}
