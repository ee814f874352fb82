/* A stack that grows by itself (MAP_GROWSDOWN): registered while small, it grows over its old end.
 * All in the 8 MiB that a stack may have. */
#include "hazard.h"

int main(void) {
    size_t room = 32 * MIB, used = 6 * MIB;
    char *low = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(low != MAP_FAILED);
    MUST(munmap(low, room));
    char *top = low + room;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE;
    char *p = mmap(top - used, used, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p != top - used) skip("no room to grow down");
    fill(p, used, 1);
    wait_demoted(used);
    for (size_t grown = PAGE; grown <= MIB; grown += PAGE)
        make_page(p - grown, grown / PAGE, 2);
    pause_ms(1000);
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) {
        check(p, used, 1);
        for (size_t grown = PAGE; grown <= MIB; grown += PAGE)
            check_page(p - grown, grown / PAGE, 2);
        _exit(0);
    }
    join_child(pid);
    check(p, used, 1);
    for (size_t grown = PAGE; grown <= MIB; grown += PAGE)
        check_page(p - grown, grown / PAGE, 2);
    return done();
}
