/* shmat with SHM_REMAP over memory that Terrace follows, of which userfaultfd tells nobody: what is
 * mapped there later must not pass for what was there. The argument says how it is called. */
#include "hazard.h"
#include <sys/shm.h>

static char *attach(const char *how, int id, char *at) {
    if (strcmp(how, "libc") == 0) return shmat(id, at, SHM_REMAP);
    if (strcmp(how, "syscall") == 0) return (char *)syscall(SYS_shmat, id, at, SHM_REMAP);
    return (char *)bare_call(SYS_shmat, id, (long)at, SHM_REMAP);
}

/* How many pages are neither in memory nor in swap. */
static size_t absent(int pagemap, const char *p, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes / PAGE; i++) {
        uint64_t entry = 0;
        off_t at = (off_t)(((uintptr_t)p / PAGE + i) * sizeof entry);
        EXPECT(pread(pagemap, &entry, sizeof entry, at) == (ssize_t)sizeof entry);
        n += !(entry >> 62);
    }
    return n;
}

int main(int argc, char **argv) {
    size_t bytes = 16 * MIB, pages = bytes / PAGE;
    EXPECT(argc == 2);
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    MUST(pagemap);
    char *p = demoted(bytes);
    /* Half of it comes home; the other half stays where it is. */
    for (size_t i = 0; i < pages; i += 2) check_page(p + i * PAGE, i, 1);
    int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    MUST(id);
    EXPECT(attach(argv[1], id, p) == p);
    MUST(shmctl(id, IPC_RMID, NULL));
    /* Without fork events all is brought home first; half of it has no home any more. */
    pid_t child = fork();
    MUST(child);
    if (child == 0) _exit(0);
    join_child(child);
    check_zero(p, bytes);
    fill(p, bytes, 7);
    pause_ms(500);
    check(p, bytes, 7);
    MUST(shmdt(p));

    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    EXPECT(mmap(p, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
    for (size_t i = 0; i < pages; i++)
        if (i % 8 != 7) make_page(p + i * PAGE, i, 2);
    /* With Terrace it goes down again; without it the time is waited for. */
    for (int n = 0; n < 40 && absent(pagemap, p, bytes) < pages / 2; n++) pause_ms(100);
    for (size_t i = 0; i < pages; i++) {
        if (i % 8 != 7) check_page(p + i * PAGE, i, 2);
        else check_zero(p + i * PAGE, PAGE);
    }
    return done();
}
