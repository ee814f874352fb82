/* A call that succeeds leaves errno as it was, as libc's and the kernel's do, whatever the runtime
 * has to ask of the kernel for it. (An allocator gives memory up inside free, between a call that
 * failed and the look at why.) */
#include "hazard.h"

static const int BEFORE = ENOMSG;

#define KEEPS(call)                                                          \
    do {                                                                     \
        errno = BEFORE;                                                      \
        if ((long)(call) == -1) BAD("%s: %s", #call, strerror(errno));       \
        if (errno != BEFORE) BAD("%s: errno is %s", #call, strerror(errno)); \
    } while (0)

static void *nothing(void *p) { return p; }

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    for (int round = 0; round < 3; round++) {
        KEEPS(madvise(p + bytes / 2, bytes / 4, MADV_FREE));
        KEEPS(madvise(p + bytes / 2, PAGE, MADV_DONTNEED));
        KEEPS(mprotect(p, PAGE, PROT_READ));
        KEEPS(mprotect(p, PAGE, PROT_READ | PROT_WRITE));
    }
    char *room = map(bytes);
    void *at = mremap(p + bytes / 4 * 3, bytes / 4, bytes / 4, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    EXPECT(at == room);
    KEEPS(mremap(p, bytes / 4, bytes / 4, MREMAP_MAYMOVE | MREMAP_FIXED, room + bytes / 2));
    KEEPS(mremap(room + bytes / 2, bytes / 4, bytes / 8, 0));
    check(room + bytes / 2, bytes / 8, 1);

    errno = BEFORE;
    pid_t pid = fork();
    if (pid == 0) _exit(errno == BEFORE ? 0 : 1);
    EXPECT(pid > 0 && errno == BEFORE);
    join_child(pid);
    errno = BEFORE;
    pid = (pid_t)syscall(SYS_fork);
    if (pid == 0) _exit(0);
    EXPECT(pid > 0 && errno == BEFORE);
    join_child(pid);

    pthread_t thread;
    KEEPS(pthread_create(&thread, NULL, nothing, NULL) == 0 ? 0 : -1);
    pthread_join(thread, NULL);
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    KEEPS(pthread_mutex_init((pthread_mutex_t *)(p + bytes / 4 + PAGE), &robust) == 0 ? 0 : -1);
    if (geteuid() == 0) {
        KEEPS(mlockall(MCL_FUTURE));
        KEEPS(munlockall());
        KEEPS(setgid(0));
    }
    return done();
}
