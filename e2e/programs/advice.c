/* Every madvise there is on demoted memory: those that keep content keep it, those that drop it leave
 * zeros, and guards fault. argv[1] says which. */
#include "hazard.h"
#include <setjmp.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { BYTES = 24 << 20 };

static struct {
    const char *name;
    int advice;
} const KEEPING[] = {
    {"cold", MADV_COLD}, {"pageout", MADV_PAGEOUT}, {"populate_read", MADV_POPULATE_READ},
    {"populate_write", MADV_POPULATE_WRITE}, {"collapse", MADV_COLLAPSE},
    {"hugepage", MADV_HUGEPAGE}, {"nohugepage", MADV_NOHUGEPAGE}, {"mergeable", MADV_MERGEABLE},
    {"dontfork", MADV_DONTFORK}, {"random", MADV_RANDOM}, {"willneed", MADV_WILLNEED},
    {"dontdump", MADV_DONTDUMP},
};

static sigjmp_buf back;

static void segv(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static bool faults(volatile char *at) {
    if (sigsetjmp(back, 1) != 0) return true;
    (void)*at;
    return false;
}

static void guard(char *p) {
    struct sigaction action = {.sa_handler = segv};
    MUST(sigaction(SIGSEGV, &action, NULL));
    size_t from = 5 * MIB + 3 * PAGE, len = 40 * PAGE;
    if (madvise(p + from, len, MADV_GUARD_INSTALL) != 0) skip("no MADV_GUARD_INSTALL");
    EXPECT(faults(p + from) && faults(p + from + len - PAGE));
    EXPECT(!faults(p + from - PAGE) && !faults(p + from + len));
    pause_ms(700);
    EXPECT(faults(p + from) && faults(p + from + len - PAGE));
    for (size_t i = 0; i < BYTES / PAGE; i++)
        if (i * PAGE < from || i * PAGE >= from + len) check_page(p + i * PAGE, i, 1);
    MUST(madvise(p + from, len, MADV_GUARD_REMOVE));
    check_zero(p + from, len); /* installing it has dropped what was there */
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "cold";
    char *p = demoted(BYTES);
    size_t from = 2 * MIB + 7 * PAGE, len = 13 * MIB;
    if (strcmp(how, "guard") == 0) {
        guard(p);
        return done();
    }
    if (strcmp(how, "dontneed_locked") == 0) {
        if (madvise(p + from, len, MADV_DONTNEED_LOCKED) != 0) skip("no MADV_DONTNEED_LOCKED");
        check_zero(p + from, len);
        pause_ms(500);
        for (size_t i = 0; i < BYTES / PAGE; i++)
            if (i * PAGE < from || i * PAGE >= from + len) check_page(p + i * PAGE, i, 1);
        return done();
    }
    for (size_t n = 0; n < sizeof KEEPING / sizeof KEEPING[0]; n++) {
        if (strcmp(how, KEEPING[n].name) != 0) continue;
        for (int round = 0; round < 3; round++) {
            /* What huge pages and KSM cannot do here they say; the bytes stay either way. */
            if (madvise(p + from, len, KEEPING[n].advice) != 0)
                say("NOTE %s: %s\n", how, strerror(errno));
            if (round == 1) check(p, BYTES, 1);
            pause_ms(400);
        }
        check(p, BYTES, 1);
        fill(p, BYTES, 2);
        pause_ms(500);
        check(p, BYTES, 2);
        return done();
    }
    BAD("which?");
}
