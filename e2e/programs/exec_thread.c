/* exec by a thread that is not main, by a descriptor, or with an environment of the program's own,
 * with arguments in demoted memory. What is executed starts anew, tiered or not, and says so. */
#include "hazard.h"

static const char *how;
static char *self;

static void *execute(void *arg) {
    char *p = arg;
    char *words = p + 100 * PAGE;
    check_page(words, 100, 1);
    strcpy(words, "again");
    strcpy(words + PAGE, how);
    strcpy(words + 2 * PAGE, "MARK=here");
    wait_demoted(16 * MIB);
    char *argv[] = {words, words + PAGE, NULL};
    char *bare[] = {words + 2 * PAGE, NULL};
    char *other[] = {words + 2 * PAGE, "LD_PRELOAD=", NULL};
    int fd = open(self, O_RDONLY | O_CLOEXEC);
    MUST(fd);
    if (strcmp(how, "thread") == 0) execv(self, argv);
    if (strcmp(how, "fexecve") == 0) fexecve(fd, argv, bare);
    if (strcmp(how, "execveat") == 0) syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
    if (strcmp(how, "preload") == 0) execve(self, argv, other);
    BAD("exec: %s", strerror(errno));
}

int main(int argc, char **argv) {
    how = argc > 1 ? argv[1] : "thread";
    static char path[512];
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    self = path;
    size_t bytes = 16 * MIB;
    if (strcmp(argv[0], "again") == 0) {
        bool bare = strcmp(how, "fexecve") == 0 || strcmp(how, "preload") == 0;
        EXPECT(!bare || strcmp(getenv("MARK"), "here") == 0);
        char *p = map(bytes);
        fill(p, bytes, 3);
        if (!bare) wait_demoted(bytes);
        check(p, bytes, 3);
        /* Nothing of the old program's is open here. */
        for (int fd = 3; fd < 1024 && bare; fd++) {
            char name[64], target[256] = "";
            snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
            if (readlink(name, target, sizeof target - 1) < 0) continue;
            EXPECT(strstr(target, "userfaultfd") == NULL && strstr(target, "/proc/") == NULL);
        }
        return done();
    }
    char *p = demoted(bytes);
    pthread_t t;
    pthread_create(&t, NULL, execute, p);
    pthread_join(t, NULL);
    return 1;
}
