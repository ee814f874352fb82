/* Calls that would unmap demoted memory and are refused: mmap with MAP_FIXED that finds no room, munmap
 * that reaches into sealed memory. Since Linux 6.12 they are announced all the same. */
#include "hazard.h"
#include <sys/resource.h>

#ifndef __NR_mseal
#define __NR_mseal 462
#endif

int main(void) {
    size_t bytes = 24 * MIB, around = 2 * MIB;
    int rw = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    /* By itself: other memory on both sides. */
    char *all = mmap(NULL, bytes + 2 * around, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
    EXPECT(all != MAP_FAILED);
    char *p = mmap(all + around, bytes, rw, flags | MAP_FIXED, -1, 0);
    EXPECT(p == all + around);
    fill(p, bytes, 1);
    wait_demoted(bytes);
    struct rlimit limit, low;
    MUST(getrlimit(RLIMIT_AS, &limit));
    low = limit;
    low.rlim_cur = MIB;
    size_t parts[][2] = {{0, bytes}, {5 * MIB, 3 * MIB}, {0, 7 * PAGE}};
    for (int n = 0; n < 3; n++) {
        MUST(setrlimit(RLIMIT_AS, &low));
        void *new = mmap(p + parts[n][0], parts[n][1], rw, flags | MAP_FIXED, -1, 0);
        int why = errno;
        MUST(setrlimit(RLIMIT_AS, &limit));
        EXPECT(new == MAP_FAILED && why == ENOMEM);
        for (size_t i = parts[n][0] / PAGE; i < (parts[n][0] + parts[n][1]) / PAGE; i++)
            check_page(p + i * PAGE, i, 1);
        pause_ms(300);
    }
    check(p, bytes, 1);
    /* Too much for any machine. */
    wait_demoted(bytes);
    EXPECT(mmap(p, (size_t)1 << 46, rw, flags | MAP_FIXED, -1, 0) == MAP_FAILED);
    check(p, bytes, 1);
    /* What lies behind it is sealed. */
    EXPECT(mmap(p + bytes, PAGE, PROT_READ, flags | MAP_FIXED, -1, 0) == p + bytes);
    if (syscall(__NR_mseal, p + bytes, PAGE, 0) == 0) {
        wait_demoted(bytes);
        EXPECT(munmap(p, bytes + PAGE) == -1 && errno == EPERM);
        check(p, bytes, 1);
    }
    return done();
}
