/* What every hazard program needs: memory with known content, a check of it, and a word with the
 * test that drives it. One line each, on standard output:
 *
 *   WAIT PID PAGES   the program waits until PAGES pages of PID are in tiers; the test answers
 *   OK               everything was as it must be (exit status 0)
 *   SKIP why         this machine cannot show the hazard (exit status 77)
 *   BAD what         what was not (exit status 1)
 *
 * Nothing here allocates: the heap belongs to the hazards. */
#ifndef HAZARD_H
#define HAZARD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

static inline void say(const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (int at = 0; at < n;) {
        ssize_t w = write(1, line + at, (size_t)(n - at));
        if (w <= 0) _exit(2);
        at += (int)w;
    }
}

#define BAD(...)                                       \
    do {                                               \
        char what[160];                                \
        snprintf(what, sizeof what, __VA_ARGS__);      \
        say("BAD %s:%d: %s\n", __FILE__, __LINE__, what); \
        _exit(1);                                      \
    } while (0)

/* A system call that must not fail. */
#define MUST(call)                                                   \
    do {                                                             \
        if ((long)(call) == -1) BAD("%s: %s", #call, strerror(errno)); \
    } while (0)

#define EXPECT(condition)                        \
    do {                                         \
        if (!(condition)) BAD("not %s", #condition); \
    } while (0)

static inline int done(void) {
    say("OK\n");
    return 0;
}

static inline void skip(const char *why) {
    say("SKIP %s\n", why);
    _exit(77);
}

static inline void pause_ms(unsigned ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) != 0) {
    }
}

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void *map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) BAD("mmap of %zu bytes: %s", bytes, strerror(errno));
    return p;
}

/* ---- content: lines that compress about as well as a log does ------------------------------- */

static inline void make_page(char *out, uint64_t number, uint64_t version) {
    static const char *const words[8] = {"accepted", "rejected", "delayed", "forwarded",
                                         "answered", "retried",  "closed",  "opened"};
    for (unsigned line = 0; line < PAGE / 64; line++) {
        uint64_t mix = (number * 64 + line + version * 7919) * 0x9e3779b97f4a7c15u;
        char text[80];
        int n = snprintf(text, sizeof text, "%08llx v%04llx request %-9s after %5u us",
                         (unsigned long long)number, (unsigned long long)version,
                         words[mix >> 61], (unsigned)(mix >> 40 & 0xffff));
        memset(out + (size_t)line * 64, ' ', 63);
        memcpy(out + (size_t)line * 64, text, (size_t)(n < 63 ? n : 63));
        out[(size_t)line * 64 + 63] = '\n';
    }
}

/* Whether a page has the content of `number` and `version`. */
static inline bool is_page(const char *page, uint64_t number, uint64_t version) {
    char want[PAGE];
    make_page(want, number, version);
    return memcmp(page, want, PAGE) == 0;
}

static inline void check_page(const char *page, uint64_t number, uint64_t version) {
    char want[PAGE];
    make_page(want, number, version);
    if (memcmp(page, want, PAGE) == 0) return;
    size_t at = 0;
    while (at < PAGE && page[at] == want[at]) at++;
    BAD("page %llu version %llu at %p, byte %zu: has %.16s, not %.16s", (unsigned long long)number,
        (unsigned long long)version, (const void *)page, at, page + (at & ~(size_t)15),
        want + (at & ~(size_t)15));
}

static inline void fill(void *p, size_t bytes, uint64_t version) {
    for (size_t i = 0; i < bytes / PAGE; i++) make_page((char *)p + i * PAGE, i, version);
}

static inline void check(const void *p, size_t bytes, uint64_t version) {
    for (size_t i = 0; i < bytes / PAGE; i++) check_page((const char *)p + i * PAGE, i, version);
}

static inline void check_zero(const void *p, size_t bytes) {
    static const char zero[4096];
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (memcmp((const char *)p + i * PAGE, zero, PAGE) != 0)
            BAD("page %zu at %p is not zero", i, (const void *)((const char *)p + i * PAGE));
}

/* A generator of its own, since rand() takes a lock. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* ---- the test at the other end -------------------------------------------------------------- */

/* Waits until most of `bytes` is in tiers: less than any policy of the tests takes down. */
static inline void wait_demoted(size_t bytes) {
    say("WAIT %d %zu\n", (int)getpid(), bytes / PAGE * 5 / 8);
    char c = 0;
    while (c != '\n') {
        ssize_t n = read(0, &c, 1);
        if (n == 0 || (n < 0 && errno != EINTR)) BAD("the test went away");
    }
}

/* Mapped, filled with version 1 and demoted. */
static inline char *demoted(size_t bytes) {
    char *p = map(bytes);
    fill(p, bytes, 1);
    wait_demoted(bytes);
    return p;
}

/* A system call by an instruction of the program's own, past libc and whatever stands before it. */
static inline long bare_call(long number, long a, long b, long c) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095) return result;
    errno = (int)-result;
    return -1;
#else
    (void)number, (void)a, (void)b, (void)c;
    skip("the instruction is x86-64's");
    return -1;
#endif
}

/* Locks all memory, present and to come. */
static inline void lock_all(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) skip(strerror(errno));
}

/* Whether about as much is resident as the program has asked for. */
static inline void see_resident(size_t bytes) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;
    while (f && fgets(line, sizeof line, f)) sscanf(line, "VmRSS: %zu", &kib);
    if (f) fclose(f);
    if (kib < bytes / 1024 || kib > 4 * (bytes / 1024)) BAD("%zu KiB are resident", kib);
}

/* How many of so many pages are there: in memory, or in swap. */
static inline size_t present(const char *p, size_t pages) {
    static int pagemap = -1;
    if (pagemap < 0) MUST(pagemap = open("/proc/self/pagemap", O_RDONLY));
    size_t count = 0;
    for (size_t i = 0; i < pages; i++) {
        uint64_t entry = 0;
        off_t at = (off_t)(((uintptr_t)p / PAGE + i) * sizeof entry);
        EXPECT(pread(pagemap, &entry, sizeof entry, at) == (ssize_t)sizeof entry);
        count += entry >> 62 != 0;
    }
    return count;
}

/* Waits for a child and passes its failure on. */
static inline void join_child(pid_t pid) {
    int status;
    MUST(waitpid(pid, &status, 0));
    if (WIFSIGNALED(status)) BAD("child ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) _exit(WEXITSTATUS(status)); /* it has said why */
}
#endif
