/* Memory that is given up by MADV_FREE and used again goes down again, like any other: an allocator
 * that gives up lazily would else have more and more of it in memory for good. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    static const char zero[4096];
    char *p = demoted(bytes);
    for (int round = 0; round < 3; round++) {
        /* All of it is in memory when it is given up. */
        fill(p, bytes, 2);
        MUST(madvise(p, bytes, MADV_FREE));
        if (round == 1) pause_ms(500);
        for (size_t i = 0; i < bytes / PAGE; i += 7) {
            char *page = p + i * PAGE;
            if (memcmp(page, zero, PAGE) != 0) check_page(page, i, 2);
        }
        fill(p, bytes, 3);
        wait_demoted(bytes);
        check(p, bytes, 3);
    }
    /* What the kernel does not give up stays as it is: a changed page of a file beside it. */
    char name[] = "/tmp/terrace-free-XXXXXX";
    int file = mkstemp(name);
    MUST(file);
    MUST(unlink(name));
    MUST(ftruncate(file, MIB));
    char *end = p + bytes - MIB;
    if (mmap(end, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) != end)
        BAD("mmap: %s", strerror(errno));
    fill(end, MIB, 4);
    fill(p, bytes - MIB, 4);
    if (madvise(p, bytes, MADV_FREE) != -1 || errno != EINVAL) BAD("a file was given up");
    check(end, MIB, 4);
    fill(p, bytes - MIB, 5);
    wait_demoted(bytes - MIB);
    check(p, bytes - MIB, 5);
    check(end, MIB, 4);
    return done();
}
