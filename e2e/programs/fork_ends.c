/* What was shared with children that have ended goes down like anything else, though no byte of it
 * is written again: the kernel takes it for shared until then. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 1);
    for (int n = 0; n < 3; n++) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            check(p, bytes, 1);
            _exit(0);
        }
        join_child(pid);
    }
    wait_demoted(bytes);
    check(p, bytes, 1);
    return done();
}
