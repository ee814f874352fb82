/* io_uring: plain reads and writes, vectors, and registered buffers, all in demoted memory. */
#include "hazard.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

enum { PAGES = 4096, ENTRIES = 32, REGISTERED = 64 };

static int ring;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static void open_ring(void) {
    struct io_uring_params params = {0};
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring < 0) skip("io_uring is not permitted here");
    size_t sq = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    size_t all = sq > cq ? sq : cq;
    int how = PROT_READ | PROT_WRITE;
    char *r = mmap(NULL, all, how, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    EXPECT(r != MAP_FAILED && params.features & IORING_FEAT_SINGLE_MMAP);
    sqes = mmap(NULL, params.sq_entries * sizeof *sqes, how, MAP_SHARED, ring, IORING_OFF_SQES);
    EXPECT(sqes != MAP_FAILED);
    sq_tail = (void *)(r + params.sq_off.tail);
    sq_mask = (void *)(r + params.sq_off.ring_mask);
    sq_array = (void *)(r + params.sq_off.array);
    cq_head = (void *)(r + params.cq_off.head);
    cq_tail = (void *)(r + params.cq_off.tail);
    cq_mask = (void *)(r + params.cq_off.ring_mask);
    cqes = (void *)(r + params.cq_off.cqes);
}

static void push(struct io_uring_sqe e) {
    unsigned tail = *sq_tail, at = tail & *sq_mask;
    sqes[at] = e;
    sq_array[at] = at;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
}

/* Submits what was pushed and waits for all of it; each must have done `bytes`. */
static void finish(unsigned count, int bytes) {
    for (unsigned submitted = 0; submitted < count;) {
        long n = syscall(SYS_io_uring_enter, ring, count - submitted, 0, 0, NULL, 0);
        if (n < 0 && errno != EINTR) BAD("io_uring_enter: %s", strerror(errno));
        submitted += n > 0 ? (unsigned)n : 0;
    }
    for (unsigned seen = 0; seen < count;) {
        unsigned head = *cq_head;
        if (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE)) {
            syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
            continue;
        }
        int res = cqes[head & *cq_mask].res;
        if (res != bytes) BAD("io_uring: %s", res < 0 ? strerror(-res) : "short");
        __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
        seen++;
    }
}

static struct io_uring_sqe io(int op, int fd, void *at, size_t len, size_t offset) {
    return (struct io_uring_sqe){.opcode = (uint8_t)op, .fd = fd, .addr = (uintptr_t)at,
                                 .len = (uint32_t)len, .off = offset};
}

int main(void) {
    size_t bytes = PAGES * PAGE;
    open_ring();
    char *p = demoted(bytes);
    char name[] = "hazard-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd);
    unlink(name);
    /* Plain writes out of demoted memory, forced to a kernel thread half of the time. */
    for (size_t i = 0; i < PAGES; i += ENTRIES) {
        for (size_t k = i; k < i + ENTRIES; k++) {
            struct io_uring_sqe e = io(IORING_OP_WRITE, fd, p + k * PAGE, PAGE, k * PAGE);
            e.flags = k % 2 ? IOSQE_ASYNC : 0;
            push(e);
        }
        finish(ENTRIES, PAGE);
    }
    say("WRITTEN\n");
    fill(p, bytes, 2);
    wait_demoted(bytes);
    for (size_t i = 0; i < PAGES; i += ENTRIES) {
        for (size_t k = i; k < i + ENTRIES; k++) {
            struct io_uring_sqe e = io(IORING_OP_READ, fd, p + k * PAGE, PAGE, k * PAGE);
            e.flags = k % 2 ? IOSQE_ASYNC : 0;
            push(e);
        }
        finish(ENTRIES, PAGE);
    }
    check(p, bytes, 1);
    say("READ\n");
    /* Registered buffers: the kernel pins them, and writes to the pages that it pinned. */
    wait_demoted(bytes);
    struct iovec *vector = (void *)(p + (PAGES - 1) * PAGE);
    for (size_t k = 0; k < REGISTERED; k++) vector[k] = (struct iovec){p + k * 16 * PAGE, 4 * PAGE};
    wait_demoted(bytes);
    MUST(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, vector, REGISTERED));
    make_page((char *)vector, PAGES - 1, 1);
    for (int round = 0; round < 4; round++) {
        for (size_t k = 0; k < REGISTERED; k++)
            for (size_t n = 0; n < 4; n++) make_page(p + (k * 16 + n) * PAGE, k * 16 + n, 3);
        pause_ms(300);
        for (size_t i = 0; i < REGISTERED; i += ENTRIES) {
            for (size_t k = i; k < i + ENTRIES; k++) {
                char *at = p + k * 16 * PAGE;
                struct io_uring_sqe e = io(IORING_OP_WRITE_FIXED, fd, at, 4 * PAGE, k * 4 * PAGE);
                e.buf_index = (uint16_t)k;
                push(e);
            }
            finish(ENTRIES, 4 * PAGE);
        }
        for (size_t k = 0; k < REGISTERED; k++) memset(p + k * 16 * PAGE, 9, 4 * PAGE);
        pause_ms(300);
        for (size_t i = 0; i < REGISTERED; i += ENTRIES) {
            for (size_t k = i; k < i + ENTRIES; k++) {
                char *at = p + k * 16 * PAGE;
                struct io_uring_sqe e = io(IORING_OP_READ_FIXED, fd, at, 4 * PAGE, k * 4 * PAGE);
                e.buf_index = (uint16_t)k;
                push(e);
            }
            finish(ENTRIES, 4 * PAGE);
        }
        for (size_t k = 0; k < REGISTERED; k++)
            for (size_t n = 0; n < 4; n++) check_page(p + (k * 16 + n) * PAGE, k * 16 + n, 3);
    }
    say("FIXED\n");
    MUST(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0));
    wait_demoted(bytes);
    for (size_t k = 0; k < PAGES; k++) check_page(p + k * PAGE, k, k < 1024 && k % 16 < 4 ? 3 : 1);
    return done();
}
