/* MAP_FIXED over demoted memory, whole and in part, anonymous and of a file: nothing of what was there
 * shows through, and the neighbours keep theirs. */
#include "hazard.h"

int main(void) {
    size_t bytes = 24 * MIB;
    char *p = demoted(bytes);
    size_t from = 3 * MIB + 5 * PAGE, len = 9 * MIB + 3 * PAGE;
    int rw = PROT_READ | PROT_WRITE;
    EXPECT(mmap(p + from, len, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + from);
    check_zero(p + from, len);
    EXPECT(mmap(p, PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (i * PAGE < from || i * PAGE >= from + len) check_page(p + i * PAGE, i, 1);
    fill(p, bytes, 2);
    wait_demoted(bytes);
    /* A shared file, half over what is in tiers. */
    int fd = memfd_create("over", 0);
    MUST(fd);
    MUST(ftruncate(fd, (off_t)len));
    for (size_t i = 0; i < len / PAGE; i++) {
        char page[PAGE];
        make_page(page, i, 7);
        EXPECT(pwrite(fd, page, PAGE, (off_t)(i * PAGE)) == (ssize_t)PAGE);
    }
    EXPECT(mmap(p + from, len, rw, MAP_SHARED | MAP_FIXED, fd, 0) == p + from);
    pause_ms(700);
    check(p + from, len, 7);
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (i * PAGE < from || i * PAGE >= from + len) check_page(p + i * PAGE, i, 2);
    /* And anonymous again, at once and many times, while the rest goes down. */
    for (int round = 0; round < 200; round++) {
        size_t at = (size_t)(round * 7 % 40) * 32 * PAGE;
        EXPECT(mmap(p + at, 32 * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + at);
        check_zero(p + at, 32 * PAGE);
        fill(p + at, 32 * PAGE, 50 + (uint64_t)round);
        if (round % 16 == 0) pause_ms(50);
        check(p + at, 32 * PAGE, 50 + (uint64_t)round);
    }
    return done();
}
