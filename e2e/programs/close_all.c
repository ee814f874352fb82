/* Daemons close every descriptor they do not know; ours must survive, however they do it. */
#include "hazard.h"

int __close(int fd);
int __dup2(int from, int to);

int main(int argc, char **argv) {
    size_t bytes = 16 * MIB;
    const char *how = argc > 1 ? argv[1] : "close";
    char *p = demoted(bytes);
    int file = open("/dev/null", O_RDWR);
    MUST(file);
    if (strcmp(how, "close") == 0) {
        for (int fd = 3; fd < 65536; fd++) close(fd);
    } else if (strcmp(how, "close_range") == 0) {
        MUST(close_range(3, ~0u, 0));
    } else if (strcmp(how, "close_on_exec") == 0) {
        MUST(close_range(3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */));
        close(file);
    } else if (strcmp(how, "closefrom") == 0) {
        closefrom(3);
    } else if (strcmp(how, "dup2") == 0) {
        /* A number of one's own choice may be ours: refused or not, nothing breaks. */
        for (int fd = 3; fd < 1100; fd++) dup2(2, fd);
        for (int fd = 3; fd < 1100; fd++) close(fd);
    } else if (strcmp(how, "by_old_names") == 0) {
        for (int fd = 3; fd < 1100; fd++) __dup2(2, fd);
        for (int fd = 3; fd < 65536; fd++) __close(fd);
    } else if (strcmp(how, "sys_close") == 0) {
        for (long fd = 3; fd < 65536; fd++) syscall(SYS_close, fd);
    } else if (strcmp(how, "sys_close_range") == 0) {
        EXPECT(syscall(SYS_close_range, 3, ~0u, 0) == 0);
        EXPECT(syscall(SYS_close_range, 4, 3, 0) == -1 && errno == EINVAL);
    } else if (strcmp(how, "sys_dup") == 0) {
        for (long fd = 3; fd < 1100; fd++) syscall(fd % 2 ? SYS_dup2 : SYS_dup3, 2, fd, 0);
        EXPECT(syscall(SYS_dup2, 2, file) == file && syscall(SYS_dup3, 2, file, 0) == file);
        EXPECT(syscall(SYS_dup3, 2, 2, 0) == -1 && errno == EINVAL);
        for (long fd = 3; fd < 1100; fd++) syscall(SYS_close, fd);
        EXPECT(syscall(SYS_close, file) == -1 && errno == EBADF);
    } else if (strcmp(how, "reuse") == 0) {
        /* The numbers get new owners: files that read as zeros at any offset. */
        for (int fd = 3; fd < 65536; fd++) close(fd);
        for (int n = 0; n < 60; n++) MUST(open("/dev/zero", O_RDWR));
        check(p, bytes, 1);
        fill(p, bytes, 2);
        pause_ms(2000);
        check(p, bytes, 2);
        for (int fd = 3; fd < 65536; fd++) close(fd);
        fill(p, bytes, 1);
    } else if (strcmp(how, "fork") == 0) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            for (int fd = 3; fd < 65536; fd++) close(fd);
            check(p, bytes, 1);
            _exit(0);
        }
        join_child(pid);
        close(file);
    }
    EXPECT(fcntl(file, F_GETFD) == -1 && errno == EBADF);
    check(p, bytes, 1);
    fill(p, bytes, 2);
    wait_demoted(bytes); /* the planner can still be heard */
    check(p, bytes, 2);
    return done();
}
