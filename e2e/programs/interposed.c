/* A program that has a read, an ioctl and a poll of its own in front of libc's, as some libraries for
 * sockets and for tests have. They look at notes in memory that is as good as any to be managed, and
 * our own threads call them, too. Built with -rdynamic. */
#include "hazard.h"
#include <poll.h>
#include <sys/ioctl.h>

enum { NOTES = 2048 };

static char *notes;
static atomic_long looked_at;

static void look(int fd) {
    if (notes != NULL && fd >= 0) {
        char *note = notes + (size_t)(fd % NOTES) * PAGE;
        if (*(volatile char *)note != 7) _exit(3);
        atomic_fetch_add(&looked_at, 1);
    }
}

ssize_t read(int fd, void *to, size_t bytes) {
    look(fd);
    return syscall(SYS_read, fd, to, bytes);
}

int ioctl(int fd, unsigned long what, ...) {
    va_list arguments;
    va_start(arguments, what);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    look(fd);
    return (int)syscall(SYS_ioctl, fd, what, argument);
}

int poll(struct pollfd *fds, nfds_t count, int limit_ms) {
    look((int)count);
    return (int)syscall(SYS_poll, fds, count, limit_ms);
}

int main(void) {
    char *made = map(NOTES * PAGE);
    memset(made, 7, NOTES * PAGE);
    char *data = map(8 * MIB);
    fill(data, 8 * MIB, 1);
    notes = made;
    for (int round = 0; round < 8; round++) {
        pause_ms(300);
        check(data, 8 * MIB, 1);
        int pipes[2];
        char byte = 1;
        EXPECT(pipe(pipes) == 0 && write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1);
        close(pipes[0]);
        close(pipes[1]);
    }
    EXPECT(atomic_load(&looked_at) >= 8);
    return done();
}
