/* A forked child moves and resizes a mapping of which only parts were registered at the fork. The
 * kernel never joins those again in the child, and refuses to resize them as one. */
#include "parted.h"

static void resize(char *p) {
    size_t bytes = PARTED, more = bytes + 8 * MIB;
    char *moved = mremap(p, bytes, more, MREMAP_MAYMOVE);
    MUST(moved);
    check_parted(moved);
    check_zero(moved + bytes, more - bytes);
    /* What has moved as several is resized and moved again. */
    char *there = map(bytes);
    char *at = mremap(moved, more, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    if (at != there) BAD("moved and shrunk: at %p, %s", (void *)at, strerror(errno));
    check_parted(there);
    char *left = mremap(there, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (left != MAP_FAILED) { /* since Linux 5.7 */
        check_zero(there, bytes);
        there = left;
    }
    check_parted(there);
    at = mremap(there, bytes, FULL * MIB, 0);
    if (at != there) BAD("shrunk: at %p, %s", (void *)at, strerror(errno));
    check(there, FULL * MIB, 1);
    /* Of what the program itself keeps apart nothing changes. */
    MUST(mprotect(there + 4 * MIB, MIB, PROT_READ));
    EXPECT(mremap(there, FULL * MIB, (FULL + 1) * MIB, MREMAP_MAYMOVE) == MAP_FAILED);
    EXPECT(errno == EFAULT);
    check(there, FULL * MIB, 1);
}

int main(void) {
    char *p = map(PARTED);
    fill_parted(p);
    wait_demoted(2 * FULL * MIB);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        pid_t grandchild = fork();
        MUST(grandchild);
        if (grandchild == 0) {
            resize(p);
            _exit(0);
        }
        join_child(grandchild);
        resize(p);
        _exit(0);
    }
    join_child(pid);
    resize(p);
    return done();
}
