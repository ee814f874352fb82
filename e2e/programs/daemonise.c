/* A daemon: the parent ends at once, in one of many ways, and the child goes on whole. */
#include "hazard.h"

int main(int argc, char **argv) {
    size_t bytes = 48 * MIB;
    const char *how = argc > 1 ? argv[1] : "exit";
    char *p = demoted(bytes);
    if (strcmp(how, "daemon") == 0) {
        MUST(daemon(1, 1));
    } else {
        pid_t pid = fork();
        MUST(pid);
        if (pid != 0) {
            if (strcmp(how, "_exit") == 0) _exit(0);
            if (strcmp(how, "quick_exit") == 0) quick_exit(0);
            if (strcmp(how, "killed") == 0) raise(SIGKILL);
            exit(0);
        }
        setsid();
    }
    pause_ms(500);
    check(p, bytes, 1);
    fill(p, bytes, 2);
    check(p, bytes, 2);
    return done();
}
