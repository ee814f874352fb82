/* Dropped memory that is filled again from one end to the other comes in runs of zero pages, which
 * take no memory; a page that is touched alone brings nothing along. */
#include "hazard.h"

static int pagemap;

static bool present(const char *page) {
    uint64_t entry = 0;
    off_t at = (off_t)((uintptr_t)page / PAGE * sizeof entry);
    EXPECT(pread(pagemap, &entry, sizeof entry, at) == (ssize_t)sizeof entry);
    return entry >> 63;
}

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
    MUST(pagemap = open("/proc/self/pagemap", O_RDONLY));
    char *p = demoted(bytes);
    MUST(madvise(p, bytes, MADV_DONTNEED));
    /* Here and there, downwards and every other page. */
    for (size_t i = pages - 1; i > pages / 2; i -= 2) {
        check_zero(p + i * PAGE, PAGE);
        EXPECT(!present(p + (i - 1) * PAGE));
    }
    size_t before = resident_pages();
    for (size_t i = 0; i < 8; i++) {
        check_zero(p + i * PAGE, PAGE);
        make_page(p + i * PAGE, i, 2);
    }
    EXPECT(present(p + 8 * PAGE) && present(p + 9 * PAGE));
    EXPECT(!present(p + 200 * PAGE));
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
