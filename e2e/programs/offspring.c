/* A child that was forked, lives long and holds memory of its own. argv[1]: "plain"; "threads": its
 * parent has threads that allocate while it forks; "again": the child's child; "filter": after a
 * seccomp filter; "unshare": the child does what only a process of one thread may; "locked": it
 * locks its memory, and looks that nothing was filled that it has not asked for. The child says
 * `CHILD PID` when its memory is filled, rests until its standard input ends, and verifies it. */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>

enum { BYTES = 80 << 20, SMALL = 4 << 20 };

static _Atomic bool ended;

static void *allocate(void *arg) {
    (void)arg;
    while (!ended) {
        size_t size = 64 + (size_t)rand() % 200000;
        char *p = malloc(size);
        memset(p, 7, size);
        free(p);
    }
    return NULL;
}

static void allow_all(void) {
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void live(char *of_parent, const char *how) {
    if (strcmp(how, "unshare") == 0) {
        /* EINVAL is for a process of several threads: before it may have a runtime of its own. */
        if (unshare(CLONE_NEWUSER) != 0 && errno != EPERM) BAD("unshare: %s", strerror(errno));
    }
    bool locked = strcmp(how, "locked") == 0;
    if (locked) lock_all();
    check(of_parent, SMALL, 3);
    char *p = map(BYTES);
    fill(p, BYTES, 5);
    fill(of_parent, SMALL / 2, 4);
    say("CHILD %d\n", getpid());
    char c;
    while (read(0, &c, 1) > 0) {
    }
    check(p, BYTES, 5);
    if (locked) see_resident(BYTES);
    check(of_parent, SMALL / 2, 4);
    for (size_t i = SMALL / 2 / PAGE; i < SMALL / PAGE; i++) check_page(of_parent + i * PAGE, i, 3);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "plain";
    char *p = map(SMALL);
    fill(p, SMALL, 3);
    pthread_t t[2];
    bool threads = strcmp(how, "threads") == 0;
    for (int n = 0; threads && n < 2; n++) pthread_create(&t[n], NULL, allocate, NULL);
    pause_ms(300);
    if (strcmp(how, "filter") == 0) allow_all();
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        if (strcmp(how, "again") == 0) {
            pid_t inner = fork();
            MUST(inner);
            if (inner == 0) live(p, how);
            join_child(inner);
            _exit(0);
        }
        live(p, how);
    }
    join_child(pid);
    ended = true;
    for (int n = 0; threads && n < 2; n++) pthread_join(t[n], NULL);
    say("OK\n");
    return 0;
}
