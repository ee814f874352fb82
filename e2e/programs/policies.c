/* Policies of the program's own on demoted memory: NUMA, transparent huge pages, locks on fault,
 * protection keys. argv[1] says which. */
#include "hazard.h"
#include <setjmp.h>
#include <sys/prctl.h>

enum { BYTES = 24 << 20 };

static sigjmp_buf back;

static void segv(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "numa";
    char *p = demoted(BYTES);
    if (strcmp(how, "numa") == 0) {
        unsigned long node = 1;
        if (syscall(SYS_mbind, p, BYTES / 2, 2 /* bind */, &node, 64, 0) != 0) skip("no NUMA");
        MUST(syscall(SYS_set_mempolicy, 3 /* interleave */, &node, 64));
        void *pages[2] = {p, p + 5 * MIB};
        int nodes[2] = {0, 0}, states[2];
        MUST(syscall(SYS_move_pages, 0, 2, pages, nodes, states, 2));
        MUST(syscall(SYS_mbind, p, BYTES / 2, 2, &node, 64, 3 /* move */));
    } else if (strcmp(how, "thp") == 0) {
        MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
        check(p, BYTES / 2, 1);
        MUST(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
        MUST(madvise(p, BYTES, MADV_HUGEPAGE));
    } else if (strcmp(how, "mlock2") == 0) {
        if (syscall(SYS_mlock2, p, BYTES / 2, 1 /* on fault */) != 0) skip("no mlock2");
        check(p, BYTES / 4, 1);
        MUST(munlock(p, BYTES / 4));
    } else if (strcmp(how, "pkeys") == 0) {
        int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        if (key < 0) skip("no protection keys");
        struct sigaction action = {.sa_handler = segv};
        MUST(sigaction(SIGSEGV, &action, NULL));
        MUST(pkey_mprotect(p, BYTES / 2, PROT_READ | PROT_WRITE, key));
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)p = 1;
            BAD("a key does not lock");
        }
        MUST(pkey_set(key, 0));
    }
    check(p, BYTES, 1);
    fill(p, BYTES, 2);
    pause_ms(1500);
    check(p, BYTES, 2);
    return done();
}
