/* shmat with SHM_REMAP, by an instruction that nobody sees, over memory that is on its way down and
 * of which most does not shrink, so that it is to come home: the runtime goes on all the same. */
#include "hazard.h"
#include <sys/shm.h>

enum { ROUNDS = 12, SMALL = 2 << 20, BIG = 16 << 20 };

static int pagemap;

static size_t absent(const char *p) {
    static uint64_t entries[SMALL / 4096];
    off_t at = (off_t)((uintptr_t)p / PAGE * sizeof entries[0]);
    EXPECT(pread(pagemap, entries, sizeof entries, at) == (ssize_t)sizeof entries);
    size_t n = 0;
    for (size_t i = 0; i < SMALL / PAGE; i++) n += !(entries[i] >> 62);
    return n;
}

int main(void) {
    MUST(pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    uint64_t random = 88172645463325252u;
    char *p[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        p[k] = map(4 * SMALL);
        p[k] = (char *)(((uintptr_t)p[k] + SMALL - 1) & ~(uintptr_t)(SMALL - 1));
        for (size_t i = 0; i < SMALL / 8; i++) ((uint64_t *)p[k])[i] = next_random(&random);
        for (size_t i = 0; i < SMALL / PAGE; i += 4) make_page(p[k] + i * PAGE, i, 5);
    }
    int left = ROUNDS;
    for (double end = now_s() + 15; left > 0 && now_s() < end;) {
        for (int k = 0; k < ROUNDS; k++) {
            if (p[k] == NULL || absent(p[k]) < SMALL / PAGE / 4) continue;
            int id = shmget(IPC_PRIVATE, SMALL, IPC_CREAT | 0600);
            MUST(id);
            EXPECT(bare_call(SYS_shmat, id, (long)p[k], SHM_REMAP) == (long)p[k]);
            MUST(shmctl(id, IPC_RMID, NULL));
            check_zero(p[k], SMALL);
            p[k] = NULL;
            left--;
        }
    }
    char *big = demoted(BIG);
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0 || errno == ENOMEM || errno == EPERM ? 0 : -1);
    munlockall();
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check(big, BIG, 1);
        _exit(0);
    }
    join_child(pid);
    check(big, BIG, 1);
    return done();
}
