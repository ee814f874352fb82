/* Another process looks at demoted memory and changes it: ptrace PEEKDATA and POKEDATA on a thread
 * that is stopped, /proc/PID/mem, process_vm_readv with many pieces. `remote HOW`
 *
 * Linux lets the first two wait for no userfaultfd: they fail with EIO on a page that is away, and
 * succeed once somebody has brought it home, as process_vm_readv does (docs/core-dumps.md). */
#include "hazard.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

enum { PAGES = 4096, STEPS = 1500 };

static char *p;

static unsigned brought;

/* After an error: whether it was that of a page that is away, which is home now. */
static bool bring(pid_t target, void *at) {
    char c;
    struct iovec here = {&c, 1}, there = {at, 1};
    brought++;
    return errno == EIO && process_vm_readv(target, &here, 1, &there, 1, 0) == 1;
}

static void poke(pid_t target, void *at, long value) {
    while (ptrace(PTRACE_POKEDATA, target, at, value) == -1)
        if (!bring(target, at)) BAD("POKEDATA: %s", strerror(errno));
}

static void peer_ptrace(pid_t target) {
    /* Where threads are stopped (TERRACE_MOVER) somebody else may be their tracer for a moment. */
    while (ptrace(PTRACE_SEIZE, target, NULL, NULL) == -1) {
        if (errno != EPERM || !getenv("TERRACE_MOVER")) BAD("PTRACE_SEIZE: %s", strerror(errno));
        pause_ms(1);
    }
    MUST(ptrace(PTRACE_INTERRUPT, target, NULL, NULL));
    int status;
    MUST(waitpid(target, &status, __WALL));
    EXPECT(WIFSTOPPED(status));
    uint64_t seed = 4;
    char page[4096];
    for (size_t n = 0; n < STEPS; n++) {
        size_t i = next_random(&seed) % PAGES, at = next_random(&seed) % (PAGE / 8) * 8;
        make_page(page, i, 1);
        long want;
        memcpy(&want, page + at, 8);
        char *from = p + i * PAGE + at;
        long got;
        while (errno = 0, got = ptrace(PTRACE_PEEKDATA, target, from, NULL), errno != 0)
            if (!bring(target, from)) BAD("PEEKDATA: %s", strerror(errno));
        if (got != want) BAD("PEEKDATA of page %zu: %lx, not %lx", i, got, want);
        /* Every page once more below, so what is poked is what is there. */
        poke(target, from, want);
    }
    poke(target, p + 77 * PAGE, 0x7777777777777777);
    MUST(ptrace(PTRACE_DETACH, target, NULL, NULL));
}

static void peer_mem(pid_t target) {
    char name[64], page[4096];
    snprintf(name, sizeof name, "/proc/%d/mem", (int)target);
    int fd = open(name, O_RDWR);
    MUST(fd);
    uint64_t seed = 6;
    for (size_t n = 0; n < STEPS; n++) {
        size_t i = next_random(&seed) % PAGES;
        off_t at = (off_t)(uintptr_t)(p + i * PAGE);
        while (pread(fd, page, PAGE, at) != (ssize_t)PAGE)
            if (!bring(target, p + i * PAGE)) BAD("read of mem: %s", strerror(errno));
        check_page(page, i, 1);
        while (pwrite(fd, page, PAGE, at) != (ssize_t)PAGE)
            if (!bring(target, p + i * PAGE)) BAD("write to mem: %s", strerror(errno));
    }
    while (pwrite(fd, "wwwwwwww", 8, (off_t)(uintptr_t)(p + 77 * PAGE)) != 8)
        if (!bring(target, p + 77 * PAGE)) BAD("write to mem: %s", strerror(errno));
}

static void peer_vm(pid_t target) {
    static char here[64 * 4096];
    uint64_t seed = 8;
    for (size_t n = 0; n < STEPS / 32; n++) {
        struct iovec there[64], local = {here, sizeof here};
        size_t which[64];
        for (size_t k = 0; k < 64; k++) {
            which[k] = next_random(&seed) % PAGES;
            there[k] = (struct iovec){p + which[k] * PAGE, PAGE};
        }
        EXPECT(process_vm_readv(target, &local, 1, there, 64, 0) == (ssize_t)sizeof here);
        for (size_t k = 0; k < 64; k++) check_page(here + k * PAGE, which[k], 1);
        EXPECT(process_vm_writev(target, &local, 1, there, 64, 0) == (ssize_t)sizeof here);
    }
    struct iovec mark = {"wwwwwwww", 8}, to = {p + 77 * PAGE, 8};
    EXPECT(process_vm_writev(target, &mark, 1, &to, 1, 0) == 8);
}

int main(int argc, char **argv) {
    size_t bytes = PAGES * PAGE;
    EXPECT(argc == 2);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    int go[2];
    MUST(pipe(go));
    p = map(bytes);
    /* Forked first, so that it has nothing of this memory itself. */
    pid_t target = getpid(), pid = fork();
    MUST(pid);
    if (pid == 0) {
        char c;
        EXPECT(read(go[0], &c, 1) == 1);
        if (strcmp(argv[1], "ptrace") == 0) peer_ptrace(target);
        if (strcmp(argv[1], "mem") == 0) peer_mem(target);
        if (strcmp(argv[1], "vm") == 0) peer_vm(target);
        _exit(0);
    }
    fill(p, bytes, 1);
    wait_demoted(bytes);
    MUST(write(go[1], "1", 1));
    join_child(pid);
    say("MARK %.8s\n", p + 77 * PAGE);
    make_page(p + 77 * PAGE, 77, 1);
    check(p, bytes, 1);
    return done();
}
