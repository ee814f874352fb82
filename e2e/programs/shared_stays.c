/* Shared memory of every kind is never taken: two processes see one memory. */
#include "hazard.h"
#include <sys/shm.h>

int main(void) {
    size_t bytes = 8 * MIB;
    int rw = PROT_READ | PROT_WRITE, fd = memfd_create("shared", 0);
    MUST(fd);
    MUST(ftruncate(fd, (off_t)bytes));
    int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    MUST(id);
    char *all[3] = {
        mmap(NULL, bytes, rw, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
        mmap(NULL, bytes, rw, MAP_SHARED, fd, 0),
        shmat(id, NULL, 0),
    };
    MUST(shmctl(id, IPC_RMID, NULL));
    for (int n = 0; n < 3; n++) fill(all[n], bytes, 1);
    char *p = demoted(16 * MIB);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        for (int n = 0; n < 3; n++) {
            check(all[n], bytes, 1);
            fill(all[n], bytes, 2);
        }
        MUST(madvise(all[0], bytes / 2, MADV_REMOVE));
        _exit(0);
    }
    join_child(pid);
    check_zero(all[0], bytes / 2);
    for (size_t i = bytes / 2 / PAGE; i < bytes / PAGE; i++) check_page(all[0] + i * PAGE, i, 2);
    check(all[1], bytes, 2);
    check(all[2], bytes, 2);
    check(p, 16 * MIB, 1);
    return done();
}
