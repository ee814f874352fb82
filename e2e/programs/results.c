/* System calls that write their results to demoted memory, each to a page of its own, and read
 * their names from there. What they say is what they say untiered. */
#include "hazard.h"
#include <dirent.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sched.h>
#include <sys/xattr.h>

enum { BYTES = 16 << 20, ROUNDS = 3 };

static char *p;
static size_t turn;

/* A page in demoted memory, another one each time; `before_end` bytes lie before its end. */
static void *place(size_t before_end) {
    turn = (turn + 37) % (BYTES / PAGE - 2);
    return p + (turn + 1) * PAGE - before_end;
}

static char *name(const char *text) {
    char *at = place(strlen(text) / 2);
    strcpy(at, text);
    return at;
}

int main(void) {
    p = map(BYTES);
    MUST(mkdir("results", 0700));
    int fd = open("results/file", O_RDWR | O_CREAT, 0600);
    MUST(fd);
    MUST(ftruncate(fd, 12345));
    MUST(symlink("where it points", "results/link"));
    for (int n = 0; n < 300; n++) {
        char each[64];
        snprintf(each, sizeof each, "results/entry-with-a-long-name-%d", n);
        MUST(mknod(each, S_IFREG | 0600, 0));
    }
    for (int round = 0; round < ROUNDS; round++) {
        fill(p, BYTES, 1);
        char *file = name("results/file"), *link = name("results/link"), *folder = name("results");
        struct stat *st = place(sizeof *st / 2);
        struct statfs *fs = place(sizeof *fs / 2);
        struct statx *sx = place(sizeof *sx / 2);
        char *points = place(7), *here = place(20), *random = place(3000);
        struct utsname *host = place(sizeof *host / 2);
        struct sysinfo *info = place(sizeof *info / 2);
        struct rusage *usage = place(sizeof *usage / 2);
        struct rlimit *limit = place(sizeof *limit / 2);
        struct timeval *day = place(8);
        cpu_set_t *set = place(sizeof *set / 2);
        int *two = place(4), *status = place(2), *option = place(2);
        socklen_t *option_len = place(2);
        sigset_t *mask = place(sizeof *mask / 2);
        struct sigaction *action = place(sizeof *action / 2);
        struct timespec *left = place(8);
        unsigned char *in_core = place(100);
        *option_len = sizeof *option;
        wait_demoted(BYTES);

        MUST(stat(file, st));
        EXPECT(st->st_size == 12345);
        MUST(fstatat(AT_FDCWD, link, st, AT_SYMLINK_NOFOLLOW));
        EXPECT(S_ISLNK(st->st_mode));
        MUST(statfs(folder, fs));
        EXPECT(fs->f_bsize > 0);
        MUST(statx(AT_FDCWD, file, 0, STATX_BASIC_STATS, sx));
        EXPECT(sx->stx_size == 12345);
        EXPECT(readlink(link, points, 100) == 15 && memcmp(points, "where it points", 15) == 0);
        EXPECT(getcwd(here, 4096) == here && here[0] == '/');
        MUST(uname(host));
        EXPECT(strcmp(host->sysname, "Linux") == 0);
        MUST(sysinfo(info));
        EXPECT(info->totalram > 0);
        MUST(getrusage(RUSAGE_SELF, usage));
        EXPECT(usage->ru_maxrss > 0);
        MUST(getrlimit(RLIMIT_NOFILE, limit));
        EXPECT(limit->rlim_cur > 0);
        MUST(syscall(SYS_gettimeofday, day, NULL));
        EXPECT(day->tv_sec > 0);
        MUST(sched_getaffinity(0, sizeof *set, set));
        EXPECT(CPU_COUNT(set) > 0);
        MUST(pipe(two));
        EXPECT(write(two[1], points, 15) == 15 && read(two[0], here, 15) == 15);
        EXPECT(memcmp(here, "where it points", 15) == 0);
        close(two[0]);
        close(two[1]);
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
        MUST(getsockopt(two[0], SOL_SOCKET, SO_TYPE, option, option_len));
        EXPECT(*option == SOCK_STREAM && *option_len == sizeof *option);
        close(two[0]);
        close(two[1]);
        MUST(sigprocmask(SIG_BLOCK, NULL, mask));
        MUST(sigaction(SIGUSR1, NULL, action));
        EXPECT(action->sa_handler == SIG_DFL);
        *left = (struct timespec){0, 1000000};
        MUST(nanosleep(left, left));
        memset(random, 0, 8192);
        wait_demoted(BYTES);
        EXPECT(syscall(SYS_getrandom, random, 8192, 0) == 8192);
        size_t zeros = 0;
        for (size_t at = 0; at < 8192; at++) zeros += random[at] == 0;
        EXPECT(zeros < 200);
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) _exit(42);
        EXPECT(wait4(pid, status, 0, usage) == pid && WEXITSTATUS(*status) == 42);
        /* Of memory of its own: what is away counts as not in memory, which it is not. */
        MUST(mincore(p, 200 * PAGE, in_core));
        MUST(msync(p, BYTES, MS_SYNC));
        /* A folder, through a buffer over several demoted pages. */
        int dir = open(folder, O_RDONLY | O_DIRECTORY);
        MUST(dir);
        size_t entries = 0;
        for (;;) {
            char *buffer = place(1000);
            wait_demoted(round == 0 ? BYTES : 0);
            long got = syscall(SYS_getdents64, dir, buffer, 3000);
            MUST(got);
            if (got == 0) break;
            for (long at = 0; at < got;) {
                struct dirent64 *d = (void *)(buffer + at);
                entries += strncmp(d->d_name, "entry-with-a-long-name-", 23) == 0;
                at += d->d_reclen;
            }
        }
        close(dir);
        EXPECT(setxattr(file, name("user.hazard"), points, 15, 0) == 0 || errno == ENOTSUP ||
               errno == EPERM || errno == EOPNOTSUPP);
        say("ENTRIES %zu LINK %.15s\n", entries, points);
    }
    return done();
}
