/* A forked child reads everything as it was, while its parent reads and overwrites it. */
#include "hazard.h"

int main(void) {
    size_t bytes = 24 * MIB;
    char *p = demoted(bytes);
    for (uint64_t version = 1; version <= 3; version++) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            pause_ms(version == 2 ? 300 : 0);
            check(p, bytes, version);
            fill(p, bytes, 99);
            check(p, bytes, 99);
            _exit(0);
        }
        if (version != 3) check(p, bytes, version);
        fill(p, bytes, version + 1);
        join_child(pid);
        check(p, bytes, version + 1);
        wait_demoted(bytes);
    }
    check(p, bytes, 4);
    return done();
}
