/* A child that borrows this memory crashes in it; nothing of that is the parent's. */
#include "hazard.h"
#include <sys/resource.h>

enum { BYTES = 16 << 20 };

static void crash(void) {
    pid_t pid = vfork();
    MUST(pid);
    if (pid == 0) {
        char *volatile nowhere = (char *)16;
        *nowhere = 1;
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0));
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

int main(void) {
    struct rlimit none = {0, 0};
    MUST(setrlimit(RLIMIT_CORE, &none));
    char *p = demoted(BYTES);
    for (int i = 0; i < 3; i++) crash();
    check(p, BYTES, 1);
    wait_demoted(BYTES);
    check(p, BYTES, 1);
    return done();
}
