/* Handlers that fault, nested in themselves (SA_NODEFER), on an alternate stack that is demoted; and
 * a program that has its own use for SIGSEGV: guard pages in demoted memory, siglongjmp out of it. */
#include "hazard.h"
#include <setjmp.h>

enum { BYTES = 24 << 20 };

static char *p;
static volatile sig_atomic_t depth, deepest, segvs;
static sigjmp_buf back;
static char *expected;

static void nested(int signal) {
    int here = ++depth;
    if (here > deepest) deepest = here;
    size_t i = (size_t)here * 97 % 2048;
    check_page(p + i * PAGE, i, 1);
    if (here < 24) MUST(raise(signal));
    check_page(p + (2048 + i) * PAGE, 2048 + i, 1);
    depth--;
}

static void segv(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    EXPECT(info->si_addr == expected && info->si_code == SEGV_ACCERR);
    segvs++;
    siglongjmp(back, 1);
}

static void overrun(char *guard) {
    expected = guard;
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)guard = 1;
        BAD("a write to a guard page went through");
    }
}

/* Lets the kernel carry on after the handler made the page writable: a garbage collector's barrier. */
static void unprotect(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    EXPECT(page >= p && page < p + BYTES);
    MUST(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
    segvs++;
}

int main(void) {
    p = map(BYTES);
    fill(p, BYTES, 1);
    stack_t stack = {.ss_sp = p + BYTES - 4 * MIB, .ss_size = 4 * MIB};
    MUST(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = nested, .sa_flags = SA_ONSTACK | SA_NODEFER};
    MUST(sigaction(SIGUSR1, &action, NULL));
    wait_demoted(BYTES);
    MUST(raise(SIGUSR1));
    EXPECT(deepest == 24 && depth == 0);

    action = (struct sigaction){.sa_sigaction = segv, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    MUST(sigaction(SIGSEGV, &action, NULL));
    fill(p + BYTES - 4 * MIB, 4 * MIB, 1);
    for (size_t i = 5; i < 1024; i += 100) MUST(mprotect(p + i * PAGE, PAGE, PROT_NONE));
    wait_demoted(BYTES - 4 * MIB);
    int guards = 0;
    for (size_t i = 5; i < 1024; i += 100, guards++) overrun(p + i * PAGE);
    EXPECT(segvs == guards);
    for (size_t i = 0; i < 4096; i++)
        if (i >= 1024 || i % 100 != 5) check_page(p + i * PAGE, i, 1);
    for (size_t i = 5; i < 1024; i += 100) MUST(mprotect(p + i * PAGE, PAGE, PROT_READ));
    for (size_t i = 5; i < 1024; i += 100) check_page(p + i * PAGE, i, 1);
    MUST(mprotect(p, 4 * MIB, PROT_READ | PROT_WRITE));

    segvs = 0;
    action = (struct sigaction){.sa_sigaction = unprotect, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL));
    size_t many = 8 * MIB;
    wait_demoted(BYTES - 4 * MIB);
    MUST(mprotect(p, many, PROT_READ));
    for (size_t i = 0; i < many / PAGE; i += 8) {
        volatile char *at = p + i * PAGE + 100;
        *at ^= 1;
        *at ^= 1;
    }
    EXPECT(segvs == (int)(many / PAGE / 8));
    check(p, BYTES - 4 * MIB, 1);
    return done();
}
