/* A program that was executed in a child of a program under Terrace. argv[1]: "small": it looks for
 * descriptors that are not its own, and ends; "large": it holds memory, says `CHILD PID`, rests
 * until its standard input ends, and verifies it; "locked": it locks all memory, present and to
 * come, does the same, and looks that nothing was filled that it has not asked for. With argv[2] it
 * is that program. */
#include "hazard.h"

enum { BYTES = 80 << 20 };

static void see_descriptors(void) {
    for (int fd = 3; fd < 2000; fd++)
        if (fcntl(fd, F_GETFD) != -1) BAD("descriptor %d is open", fd);
}

static int run(const char *how) {
    if (strcmp(how, "small") == 0) {
        pause_ms(300); /* a runtime that began with it would be up */
        see_descriptors();
        return 0;
    }
    bool locked = strcmp(how, "locked") == 0;
    if (locked) lock_all();
    char *p = map(BYTES);
    fill(p, BYTES, 5);
    say("CHILD %d\n", getpid());
    char c;
    while (read(0, &c, 1) > 0) {
    }
    check(p, BYTES, 5);
    if (locked) see_resident(BYTES);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2) return run(argv[1]);
    char *p = map(MIB);
    fill(p, MIB, 3);
    for (int fd = 3; fd < 100; fd++) close(fd);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        execl("/proc/self/exe", argv[0], argc > 1 ? argv[1] : "small", "child", (char *)NULL);
        _exit(3);
    }
    int status;
    MUST(waitpid(pid, &status, 0));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return 77;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) BAD("status %x", status);
    check(p, MIB, 3);
    say("OK\n");
    return 0;
}
