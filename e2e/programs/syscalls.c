/* The kernel reads from and writes to demoted buffers: pipes, files, O_DIRECT, vectors. */
#include "hazard.h"
#include <sys/socket.h>
#include <sys/uio.h>

enum { BYTES = 16 << 20 };

static char *p;

static void *drain(void *arg) {
    int fd = (int)(intptr_t)arg;
    static char page[4096];
    for (size_t i = 0; i < BYTES / PAGE; i++) {
        for (size_t got = 0; got < PAGE;) {
            ssize_t n = read(fd, page + got, PAGE - got);
            if (n <= 0) BAD("pipe: %s", strerror(errno));
            got += (size_t)n;
        }
        check_page(page, i, 1);
    }
    return NULL;
}

static void into(int fd, char *from, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, from, bytes);
        if (n <= 0) BAD("write: %s", strerror(errno));
        from += n;
        bytes -= (size_t)n;
    }
}

static void out_of(int fd, char *to, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = read(fd, to, bytes);
        if (n <= 0) BAD("read: %s", strerror(errno));
        to += n;
        bytes -= (size_t)n;
    }
}

/* Out of demoted memory into a file, dropped, and back into demoted memory. */
static void through_file(int flags) {
    char name[] = "hazard-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd);
    if (flags) {
        close(fd);
        fd = open(name, O_RDWR | flags);
    }
    unlink(name);
    if (fd < 0) return; /* this file system has no O_DIRECT */
    wait_demoted(BYTES);
    into(fd, p, BYTES);
    fill(p, BYTES, 2);
    wait_demoted(BYTES);
    MUST(lseek(fd, 0, SEEK_SET));
    out_of(fd, p, BYTES);
    check(p, BYTES, 1);
    close(fd);
}

int main(void) {
    p = map(BYTES);
    fill(p, BYTES, 1);
    wait_demoted(BYTES);

    int ends[2];
    MUST(pipe(ends));
    pthread_t reader;
    pthread_create(&reader, NULL, drain, (void *)(intptr_t)ends[0]);
    into(ends[1], p, BYTES);
    pthread_join(reader, NULL);

    through_file(0);
    through_file(O_DIRECT);

    /* A vector of single pages in random order over a socket. */
    wait_demoted(BYTES);
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    uint64_t seed = 9;
    for (int n = 0; n < 200; n++) {
        struct iovec vector[8];
        size_t which[8];
        char got[8 * 4096];
        for (int k = 0; k < 8; k++) {
            which[k] = next_random(&seed) % (BYTES / PAGE);
            vector[k] = (struct iovec){p + which[k] * PAGE, PAGE};
        }
        EXPECT(writev(pair[0], vector, 8) == 8 * 4096);
        out_of(pair[1], got, sizeof got);
        for (int k = 0; k < 8; k++) check_page(got + k * 4096, which[k], 1);
    }
    return done();
}
