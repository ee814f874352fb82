/* The file of the tiers cannot be read any more: it is cut off, and replaced behind everybody's back,
 * past libc. Or, with the argument "damage", it can, and a bit in every 64 bytes is another. The pages
 * that are home must stay usable; touching one in the file must end the program, not give it other
 * bytes. */
#include "hazard.h"

static void damage(const char *path) {
    static unsigned char bytes[64 * 1024];
    int file = open(path, O_RDWR);
    MUST(file);
    off_t at = 0;
    for (ssize_t n; (n = pread(file, bytes, sizeof bytes, at)) > 0; at += n) {
        for (ssize_t i = 0; i < n; i += 64) bytes[i] ^= 4;
        EXPECT(pwrite(file, bytes, (size_t)n, at) == n);
    }
    EXPECT(at > 0);
    MUST(fdatasync(file));
    MUST(close(file));
}

int main(int argc, char **argv) {
    int damages = argc > 1 && strcmp(argv[1], "damage") == 0;
    size_t bytes = 16 * MIB, pages = bytes / PAGE;
    char *p = demoted(bytes), path[64], name[256];
    int closed = 0;
    /* Before: a page that moves on to another tier is read, too. */
    if (damages) say("DAMAGE\n");
    for (int fd = 3; fd < 4096; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        if (n < 0) continue;
        name[n] = 0;
        if (strstr(name, "(deleted)") == NULL) continue;
        closed++;
        if (damages) {
            damage(path);
            continue;
        }
        int lost = open(path, O_RDWR | O_CLOEXEC);
        MUST(lost);
        /* A file of the program's own takes the number: it must not be written to. */
        int own = open("own", O_RDWR | O_CREAT, 0600);
        MUST(own);
        /* The runtime keeps its descriptors from libc. */
        MUST(bare_call(SYS_dup3, own, fd, 0));
        /* Only now: a move that still writes to it would leave zeros before what it writes. */
        pause_ms(20);
        MUST(ftruncate(lost, 0));
        MUST(close(lost));
    }
    EXPECT(closed > 0);
    if (!damages) say("CLOSED\n");
    for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, 1);
    return done();
}
