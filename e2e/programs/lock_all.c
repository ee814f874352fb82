/* mlockall brings everything in and keeps it, and does not fill what the runtime only reserves. */
#include "hazard.h"
#include <sys/resource.h>

static bool by_number;

static int lock(int flags) {
    return by_number ? (int)syscall(SYS_mlockall, flags) : mlockall(flags);
}

static int unlock(void) {
    return by_number ? (int)syscall(SYS_munlockall) : munlockall();
}

static size_t resident_kib(void) {
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY);
    MUST(fd);
    ssize_t n = read(fd, text, sizeof text - 1);
    MUST(n);
    close(fd);
    text[n] = 0;
    size_t rss = 0;
    const char *at = strstr(text, "VmRSS:");
    if (at == NULL || sscanf(at, "VmRSS: %zu", &rss) != 1) BAD("no VmRSS in /proc/self/status");
    return rss;
}

static void all_there(char *p, size_t bytes, const char *when) {
    unsigned char there[16 * 256];
    MUST(mincore(p, bytes, there));
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (!(there[i] & 1)) BAD("page %zu is not in memory %s", i, when);
}

int main(int argc, char **argv) {
    by_number = argc > 1 && strcmp(argv[1], "by_number") == 0;
    size_t bytes = 16 * MIB;
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY) skip("RLIMIT_MEMLOCK is not unlimited");
    char *p = demoted(bytes);
    EXPECT(lock(0) == -1 && errno == EINVAL);
    check(p, bytes, 1);
    wait_demoted(bytes);
    MUST(lock(MCL_CURRENT | MCL_FUTURE));
    all_there(p, bytes, "after mlockall");
    if (resident_kib() > 512 * 1024) BAD("%zu MiB in memory: reservations filled", resident_kib() >> 10);
    /* A call that fails does not undo the one that did not. */
    EXPECT(lock(0) == -1 && errno == EINVAL);
    char *later = map(bytes);
    fill(later, bytes, 2);
    pause_ms(1500);
    all_there(p, bytes, "while locked");
    all_there(later, bytes, "while locked, mapped later");
    check(p, bytes, 1);
    MUST(unlock());
    wait_demoted(2 * bytes);
    check(p, bytes, 1);
    check(later, bytes, 2);
    return done();
}
