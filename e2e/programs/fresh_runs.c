/* Dropped memory that is used again comes in runs of zero pages, which take no memory: pages behind
 * the one that is touched, and none before it. */
#include "hazard.h"

static size_t resident_pages(void) {
    char text[128] = {0};
    int fd = open("/proc/self/statm", O_RDONLY);
    EXPECT(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    unsigned long all, resident;
    EXPECT(sscanf(text, "%lu %lu", &all, &resident) == 2);
    return resident;
}

int main(void) {
    size_t bytes = 16 * MIB, pages = bytes / PAGE;
    char *p = demoted(bytes);
    MUST(madvise(p, bytes, MADV_DONTNEED));
    /* Here and there, downwards and every other page. */
    for (size_t i = pages - 1; i > pages / 2; i -= 2) {
        check_zero(p + i * PAGE, PAGE);
        EXPECT(present(p + (i - 1) * PAGE, 1) == 0);
    }
    size_t before = resident_pages();
    for (size_t i = 0; i < 8; i++) {
        check_zero(p + i * PAGE, PAGE);
        make_page(p + i * PAGE, i, 2);
    }
    EXPECT(present(p + 8 * PAGE, 9) == 9);
    EXPECT(present(p + 200 * PAGE, 1) == 0);
    EXPECT(resident_pages() < before + 64);
    for (size_t i = 8; i < pages; i++) {
        check_zero(p + i * PAGE, PAGE);
        make_page(p + i * PAGE, i, 2);
    }
    check(p, bytes, 2);
    wait_demoted(bytes);
    check(p, bytes, 2);
    return done();
}
