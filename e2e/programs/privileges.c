/* A program that gives up privileges or its view of the system after its memory went down reads it all
 * the same, and what it does afterwards goes down again. argv[1] says what it gives up. */
#include "hazard.h"
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>

static void give_up(const char *what) {
    if (strcmp(what, "setuid") == 0) {
        MUST(setgroups(0, NULL));
        MUST(setresgid(65534, 65534, 65534));
        MUST(setresuid(65534, 65534, 65534)); /* clears PR_SET_DUMPABLE as well */
    } else if (strcmp(what, "undumpable") == 0) {
        MUST(prctl(PR_SET_DUMPABLE, 0));
    } else if (strcmp(what, "chroot") == 0) {
        MUST(mkdir("/tmp/terrace-empty-root", 0700) == 0 || errno == EEXIST ? 0 : -1);
        MUST(chroot("/tmp/terrace-empty-root"));
        MUST(chdir("/"));
        EXPECT(access("/proc/self/maps", F_OK) != 0);
        (void)rmdir("/tmp/terrace-empty-root");
    } else if (strcmp(what, "namespaces") == 0) {
        if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC) != 0) skip("no namespaces");
    } else if (strcmp(what, "files") == 0) {
        MUST(unshare(CLONE_FILES | CLONE_FS));
    } else if (strcmp(what, "prctls") == 0) {
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(prctl(PR_SET_PDEATHSIG, SIGTERM));
        MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
        MUST(prctl(PR_SET_TIMERSLACK, 1));
    } else {
        BAD("what?");
    }
}

static void children_too(char *p, size_t bytes) {
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check(p, bytes, 1);
        _exit(0);
    }
    join_child(pid);
}

int main(int argc, char **argv) {
    if (geteuid() != 0) skip("only root has something to give up");
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    give_up(argc > 1 ? argv[1] : "setuid");
    check(p, bytes, 1);
    /* New memory goes down too, and so does the old again. */
    char *q = map(bytes);
    fill(q, bytes, 2);
    wait_demoted(2 * bytes);
    children_too(p, bytes);
    check(p, bytes, 1);
    check(q, bytes, 2);
    return done();
}
