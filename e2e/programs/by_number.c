/* System calls past libc's functions: by syscall(2). A guard empties what is in tiers; a forked child's
 * mapping in parts is resized as one, by a thread that is to be cancelled at the next point for that. */
#include "parted.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

#define MORE (PARTED + 8 * MIB)

static char *mapping;
static atomic_bool resized;

static void *resize(void *by_function) {
    pthread_cancel(pthread_self());
    if (by_function != NULL)
        mapping = mremap(mapping, PARTED, MORE, MREMAP_MAYMOVE);
    else
        mapping = (char *)syscall(SYS_mremap, mapping, PARTED, MORE, MREMAP_MAYMOVE, 0);
    resized = true;
    pthread_testcancel();
    return NULL;
}

static void resize_in_child(void *by_function) {
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        pthread_t thread;
        void *result;
        EXPECT(pthread_create(&thread, NULL, resize, by_function) == 0);
        EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        if (!resized) BAD("mremap is no point where a thread may be cancelled");
        MUST(mapping);
        check_parted(mapping);
        check_zero(mapping + PARTED, MORE - PARTED);
        _exit(0);
    }
    join_child(pid);
}

static void guard(char *p) {
    size_t from = 100 * PAGE, len = 20 * PAGE;
    if (syscall(SYS_madvise, p + from, len, MADV_GUARD_INSTALL) != 0) return; /* before 6.13 */
    EXPECT(syscall(SYS_madvise, p + from, len, MADV_GUARD_REMOVE) == 0);
    check_zero(p + from, len);
    for (size_t i = from / PAGE; i < (from + len) / PAGE; i++) make_page(p + i * PAGE, i, 1);
}

int main(void) {
    mapping = map(PARTED);
    fill_parted(mapping);
    wait_demoted(2 * FULL * MIB);
    guard(mapping);
    wait_demoted(2 * FULL * MIB);
    resize_in_child(NULL);
    wait_demoted(2 * FULL * MIB);
    resize_in_child(mapping);
    check_parted(mapping);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check_parted(mapping);
        syscall(SYS_exit_group, 7);
    }
    int status;
    MUST(waitpid(pid, &status, 0));
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return done();
}
