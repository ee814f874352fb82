/* A grandchild reads everything although its parent ends at once. */
#include "hazard.h"

int main(void) {
    size_t bytes = 24 * MIB;
    char *p = demoted(bytes);
    int ends[2];
    MUST(pipe(ends));
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        make_page(p, 0, 2);
        pid_t grandchild = fork();
        MUST(grandchild);
        if (grandchild != 0) _exit(0);
        check_page(p, 0, 2);
        for (size_t i = 1; i < bytes / PAGE; i++) check_page(p + i * PAGE, i, 1);
        MUST(write(ends[1], "y", 1));
        _exit(0);
    }
    join_child(pid);
    fill(p, bytes, 3);
    close(ends[1]);
    char c = 'n';
    EXPECT(read(ends[0], &c, 1) == 1 && c == 'y');
    check(p, bytes, 3);
    return done();
}
