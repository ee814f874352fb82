/* posix_spawn with file actions and attributes, all of them in demoted memory. */
#include "hazard.h"
#include <spawn.h>

extern char **environ;

int main(void) {
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    char *names = p + 64 * PAGE;
    strcpy(names, "/bin/sh");
    strcpy(names + PAGE, "-c");
    strcpy(names + 2 * PAGE, "read word && test \"$word\" = there && test -z \"$(jobs)\"");
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "there\n", 6));
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    EXPECT(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0);
    EXPECT(posix_spawn_file_actions_adddup2(&actions, ends[0], 0) == 0);
    EXPECT(posix_spawn_file_actions_addclose(&actions, ends[1]) == 0);
    EXPECT(posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0) == 0);
    EXPECT(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF) == 0);
    /* The action list and the names go down, and the child reads them on its parent's memory. */
    posix_spawn_file_actions_t *moved = (posix_spawn_file_actions_t *)(names + 3 * PAGE);
    memcpy(moved, &actions, sizeof actions);
    for (int round = 0; round < 3; round++) {
        wait_demoted(bytes);
        char *argv[] = {names, names + PAGE, names + 2 * PAGE, NULL};
        pid_t pid;
        EXPECT(posix_spawn(&pid, names, moved, &attributes, argv, environ) == 0);
        join_child(pid);
        MUST(write(ends[1], "there\n", 6));
    }
    for (size_t i = 64; i < 68; i++) make_page(p + i * PAGE, i, 1);
    check(p, bytes, 1);
    return done();
}
