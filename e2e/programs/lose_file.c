/* The file of the tiers cannot be read any more: replaced behind everybody's back, past libc. The
 * pages that are home must stay usable; touching one in the file must end the program, not give it
 * other bytes. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB, pages = bytes / PAGE;
    char *p = demoted(bytes), path[64], name[256];
    int closed = 0;
    for (int fd = 3; fd < 4096; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        if (n < 0) continue;
        name[n] = 0;
        if (strstr(name, "(deleted)") == NULL) continue;
        /* A file of the program's own takes the number: it must not be written to. */
        int own = open("own", O_RDWR | O_CREAT, 0600);
        MUST(own);
        MUST(syscall(SYS_dup3, own, fd, 0));
        closed++;
    }
    EXPECT(closed > 0);
    say("CLOSED\n");
    for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, 1);
    return done();
}
