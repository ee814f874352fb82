/* A program with a userfaultfd of its own: what it registers is its own, before we look and after its
 * memory went down, and its faults come to it. */
#include "hazard.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

enum { BYTES = 8 << 20 };

static int fd;
static _Atomic unsigned served;

static void *serve(void *arg) {
    (void)arg;
    static char page[4096] __attribute__((aligned(4096)));
    for (;;) {
        struct uffd_msg message;
        if (read(fd, &message, sizeof message) != sizeof message) return NULL;
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        char *at = (char *)(message.arg.pagefault.address & ~(PAGE - 1));
        make_page(page, (uintptr_t)at / PAGE, 77);
        struct uffdio_copy copy = {.dst = (uintptr_t)at, .src = (uintptr_t)page, .len = PAGE};
        served++;
        ioctl(fd, UFFDIO_COPY, &copy);
    }
}

static int claim(char *p, size_t bytes) {
    struct uffdio_register range = {
        .range = {(uintptr_t)p, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(fd, UFFDIO_REGISTER, &range);
}

int main(void) {
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0) skip("no userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    MUST(ioctl(fd, UFFDIO_API, &api));
    pthread_t t;
    pthread_create(&t, NULL, serve, NULL);
    /* Its own from the start: three quarters are filled by it, the rest by its handler. */
    char *own = map(BYTES);
    MUST(claim(own, BYTES));
    for (size_t i = 0; i < BYTES / PAGE; i++) check_page(own + i * PAGE, (uintptr_t)own / PAGE + i, 77);
    EXPECT(served == BYTES / PAGE);
    char *p = demoted(2 * BYTES);
    check(p, 2 * BYTES, 1);
    MUST(madvise(own, BYTES / 2, MADV_DONTNEED));
    check_page(own, (uintptr_t)own / PAGE, 77);
    EXPECT(served == BYTES / PAGE + 1);
    /* What was in tiers, claimed: what is there stays, what is missing is its own. */
    wait_demoted(2 * BYTES);
    if (claim(p, BYTES) != 0) {
        say("NOTE memory in tiers cannot be claimed: %s\n", strerror(errno));
        EXPECT(errno == EBUSY);
        check(p, 2 * BYTES, 1);
    } else {
        check(p, 2 * BYTES, 1);
    }
    return done();
}
