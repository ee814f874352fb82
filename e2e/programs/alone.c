/* A program of one thread, which libc takes for that: it does without locks, so that no thread of the
 * runtime's may come into the allocator, whatever the program does. Its own allocator tells. It has
 * children, lays a filter on all threads, and makes a thread, after which libc must hold it for a
 * program of many. */
#include "hazard.h"
#include <dlfcn.h>
#include <features.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#if __GLIBC_PREREQ(2, 36)
#include <sys/single_threaded.h>
#else
/* Before, the flag is not all there is, and is left alone. */
static char __libc_single_threaded = 2;
#endif

enum { ROOM = 256 << 20, HEAD = 16 };

static char room[ROOM];
static atomic_size_t used;
/* The one thread that may allocate; 0 for all. */
static atomic_int alone;
static atomic_int strangers;

static void enter(void) {
    int only = atomic_load(&alone);
    if (only != 0 && only != (int)syscall(SYS_gettid)) atomic_fetch_add(&strangers, 1);
}

void *malloc(size_t bytes) {
    enter();
    size_t all = (bytes + HEAD + 15) / 16 * 16;
    size_t at = atomic_fetch_add(&used, all);
    if (at + all > ROOM) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(room + at, &bytes, sizeof bytes);
    return room + at + HEAD;
}

void free(void *p) {
    (void)p;
    enter();
}

void *calloc(size_t count, size_t bytes) { return malloc(count * bytes); }

void *realloc(void *p, size_t bytes) {
    void *fresh = malloc(bytes);
    size_t had = 0;
    if (p != NULL) memcpy(&had, (char *)p - HEAD, sizeof had);
    if (fresh != NULL && p != NULL) memcpy(fresh, p, had < bytes ? had : bytes);
    return fresh;
}

static void none_but_this(void) {
    EXPECT(atomic_load(&strangers) == 0);
    EXPECT(__libc_single_threaded != 0);
}

/* A filter that lets everything pass, laid on all threads: those of the runtime's that can end do so
 * before, while libc still goes without locks. */
static void retire_the_runtime(void) {
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog all = {1, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all));
    pause_ms(100);
}

static void *second(void *argument) {
    free(malloc(100));
    return argument;
}

int main(void) {
    none_but_this();
    atomic_store(&alone, (int)syscall(SYS_gettid));
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    for (uint64_t round = 1; round <= 6; round++) {
        check(p, bytes, round);
        none_but_this();
        fill(p, bytes, round + 1);
        /* Libraries with memory of their own for each thread come and go. */
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (library != NULL) dlclose(library);
        pid_t child = fork();
        MUST(child);
        if (child == 0) {
            atomic_store(&alone, 0);
            for (int i = 0; i < 1000; i++) free(malloc(1000));
            check(p, bytes, round + 1);
            _exit(0);
        }
        join_child(child);
        wait_demoted(bytes);
        none_but_this();
    }
    check(p, bytes, 7);
    retire_the_runtime();
    check(p, bytes, 7);
    none_but_this();
    atomic_store(&alone, 0);
    /* A change of user, though none, is made by all threads, and none waits for those that ended. */
    MUST(setresuid((uid_t)-1, (uid_t)-1, (uid_t)-1));
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, second, NULL) == 0);
#if __GLIBC_PREREQ(2, 36)
    EXPECT(__libc_single_threaded == 0);
#endif
    EXPECT(pthread_join(thread, NULL) == 0);
    return done();
}
