/* A child that lives on shares every page of its parent, none of which can be moved meanwhile. */
#include "hazard.h"

int main(void) {
    size_t bytes = 64 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 1);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check(p, bytes, 1);
        for (;;) pause();
    }
    struct timespec some = {.tv_sec = 4};
    MUST(nanosleep(&some, NULL));
    check(p, bytes, 1);
    MUST(kill(pid, SIGKILL));
    MUST(waitpid(pid, NULL, 0));
    return done();
}
