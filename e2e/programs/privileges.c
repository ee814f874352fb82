/* A program that gives up privileges or its view of the system after its memory went down reads it all
 * the same, and what it does afterwards goes down again. argv[1] says what it gives up. */
#include "hazard.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>

/* A user and what he may do, of every thread there is: its line of /proc/PID/task/TID/status. */
static void all_are(const char *name, const char *value) {
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) BAD("/proc/self/task: %s", strerror(errno));
    for (struct dirent *d; (d = readdir(threads)) != NULL;) {
        char path[300], text[4096], *at;
        if (d->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        at = strstr(text, name);
        if (at == NULL) continue;
        at += strlen(name);
        if (strncmp(at, value, strlen(value)) != 0)
            BAD("thread %.12s: %s%.40s", d->d_name, name, at);
    }
    closedir(threads);
}

/* As daemons do that keep a right: the user changes, the right is taken up again and used. */
static void keep_one(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct keeps[2] = {0}, none[2] = {0};
    keeps[0].effective = keeps[0].permitted = 1 << CAP_SETGID;
    MUST(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    MUST(setresuid(65534, 65534, 65534));
    MUST(syscall(SYS_capset, &header, keeps));
    gid_t groups[2] = {65533, 65534};
    MUST(setgroups(2, groups));
    MUST(setresgid(65534, 65534, 65534));
    MUST(syscall(SYS_capset, &header, none));
    EXPECT(setresgid(0, 0, 0) == -1 && errno == EPERM);
    EXPECT(setuid(0) == -1 && errno == EPERM);
    /* None of the runtime's threads kept what was given up. */
    pause_ms(300);
    all_are("Uid:\t", "65534\t65534\t65534");
    all_are("CapEff:\t", "0000000000000000");
    all_are("CapPrm:\t", "0000000000000000");
}

/* A list of groups that was made long ago: its page is in a tier when libc has every thread of the
 * process read it, the one that serves faults with them. */
static void take_groups(void) {
    size_t bytes = 4 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 3);
    gid_t *groups = (gid_t *)(p + 700 * PAGE);
    groups[0] = 65533;
    groups[1] = 65534;
    wait_demoted(16 * MIB + bytes);
    unsigned char is_home = 1;
    for (int n = 0; is_home && n < 100; n++) {
        MUST(mincore(p + 700 * PAGE, PAGE, &is_home));
        pause_ms(is_home ? 20 : 0);
    }
    if (is_home && getenv("TERRACE_SOCKET") != NULL) BAD("the list never went down");
    MUST(setgroups(2, groups));
    all_are("Groups:\t", "65533 65534");
    EXPECT(setgroups(2, (gid_t *)8) == -1 && errno == EFAULT);
    EXPECT(setgroups((size_t)1 << 20, groups) == -1 && errno == EINVAL);
    all_are("Groups:\t", "65533 65534");
    MUST(setgroups(0, NULL));
}

static void give_up(const char *what) {
    if (strcmp(what, "setuid") == 0) {
        MUST(setgroups(0, NULL));
        MUST(setresgid(65534, 65534, 65534));
        MUST(setresuid(65534, 65534, 65534)); /* clears PR_SET_DUMPABLE as well */
        /* libc has all threads follow, the runtime's with them. */
        all_are("Uid:\t", "65534\t65534\t65534");
        all_are("Gid:\t", "65534\t65534\t65534");
    } else if (strcmp(what, "initgroups") == 0) {
        MUST(initgroups("nobody", 65533));
        all_are("Groups:\t", "65533 ");
        MUST(setuid(65534));
        all_are("Uid:\t", "65534\t65534\t65534");
    } else if (strcmp(what, "groups") == 0) {
        take_groups();
    } else if (strcmp(what, "keepcaps") == 0) {
        keep_one();
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
