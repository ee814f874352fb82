/* Another process reads and writes demoted memory: process_vm_readv, process_vm_writev. */
#include "hazard.h"
#include <sys/uio.h>

int main(void) {
    size_t bytes = 16 * MIB;
    int go[2];
    MUST(pipe(go));
    char *p = map(bytes);
    /* The peer is forked first, so that it has nothing of this memory itself. */
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        char c, *copy = map(bytes);
        pid_t target = getppid();
        EXPECT(read(go[0], &c, 1) == 1);
        for (size_t at = 0; at < bytes; at += 256 * PAGE) {
            struct iovec here = {copy + at, 256 * PAGE}, there = {p + at, 256 * PAGE};
            ssize_t n = process_vm_readv(target, &here, 1, &there, 1, 0);
            if (n != (ssize_t)(256 * PAGE)) BAD("process_vm_readv: %zd, %s", n, strerror(errno));
        }
        check(copy, bytes, 1);
        EXPECT(read(go[0], &c, 1) == 1);
        fill(copy, bytes, 2);
        for (size_t at = 0; at < bytes; at += 256 * PAGE) {
            struct iovec here = {copy + at, 256 * PAGE}, there = {p + at, 256 * PAGE};
            ssize_t n = process_vm_writev(target, &here, 1, &there, 1, 0);
            if (n != (ssize_t)(256 * PAGE)) BAD("process_vm_writev: %zd, %s", n, strerror(errno));
        }
        _exit(0);
    }
    fill(p, bytes, 1);
    wait_demoted(bytes);
    MUST(write(go[1], "1", 1));
    pause_ms(500);
    wait_demoted(bytes);
    MUST(write(go[1], "2", 1));
    join_child(pid);
    check(p, bytes, 2);
    return done();
}
