/* vfork and posix_spawn borrow the address space; fork in a thread must not meet locked arenas. */
#include "hazard.h"
#include <spawn.h>

extern char **environ;

static atomic_bool stop;

static void *allocate(void *arg) {
    (void)arg;
    while (!stop) {
        void *volatile p = malloc(100);
        free(p);
    }
    return NULL;
}

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    EXPECT(system("true") == 0);
    EXPECT(system("exit 3") == 3 << 8);

    /* Arguments that are themselves demoted: the kernel reads them in exec. */
    wait_demoted(bytes);
    char *args = p + 100 * PAGE;
    check_page(args, 100, 1);
    strcpy(args, "test");
    strcpy(args + PAGE, "same");
    strcpy(args + 2 * PAGE, "=");
    wait_demoted(bytes);
    char *argv[] = {args, args + PAGE, args + 2 * PAGE, args + PAGE, NULL};
    pid_t pid;
    EXPECT(posix_spawnp(&pid, "test", NULL, NULL, argv, environ) == 0);
    join_child(pid);
    for (size_t i = 100; i < 103; i++) make_page(p + i * PAGE, i, 1);

    wait_demoted(bytes);
    volatile char *shared = p;
    pid = vfork();
    if (pid == 0) {
        shared[5 * PAGE] = 'v'; /* the child runs in its parent's memory */
        _exit(shared[6 * PAGE] == p[6 * PAGE] ? 0 : 9);
    }
    MUST(pid);
    join_child(pid);
    EXPECT(p[5 * PAGE] == 'v');
    make_page(p + 5 * PAGE, 5, 1);

    pthread_t t[2];
    for (int n = 0; n < 2; n++) pthread_create(&t[n], NULL, allocate, NULL);
    for (int n = 0; n < 20; n++) {
        pid = fork();
        MUST(pid);
        if (pid == 0) {
            void *volatile a = malloc(1000);
            free(a);
            check_page(p + (size_t)n * PAGE, (uint64_t)n, 1);
            _exit(0);
        }
        join_child(pid);
    }
    stop = true;
    for (int n = 0; n < 2; n++) pthread_join(t[n], NULL);
    check(p, bytes, 1);
    return done();
}
