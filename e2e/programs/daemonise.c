/* A daemon: the parent ends at once, by exit (default) or _exit, and the child goes on. */
#include "hazard.h"

int main(int argc, char **argv) {
    size_t bytes = 48 * MIB;
    char *p = demoted(bytes);
    pid_t pid = fork();
    MUST(pid);
    if (pid != 0) {
        if (argc > 1 && strcmp(argv[1], "_exit") == 0) _exit(0);
        exit(0);
    }
    setsid();
    pause_ms(500);
    check(p, bytes, 1);
    fill(p, bytes, 2);
    check(p, bytes, 2);
    return done();
}
