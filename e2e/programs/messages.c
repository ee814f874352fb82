/* sendmsg, recvmsg, sendmmsg, recvmmsg: headers, vectors, names, control data and buffers, all of
 * it in demoted memory. */
#include "hazard.h"
#include <sys/socket.h>

enum { MESSAGES = 32, BYTES = 16 << 20 };

/* One message with all it needs, each part on a page of its own. */
struct part {
    struct iovec vector[2];
    char rest[4096 - 2 * sizeof(struct iovec)];
};

static struct part *out, *in;
static char *p;

static void prepare(struct mmsghdr *m, struct part *parts, size_t first) {
    for (size_t k = 0; k < MESSAGES; k++) {
        parts[k].vector[0] = (struct iovec){p + (first + 2 * k) * PAGE, PAGE};
        parts[k].vector[1] = (struct iovec){p + (first + 2 * k + 1) * PAGE, 1000};
        m[k] = (struct mmsghdr){.msg_hdr = {.msg_iov = parts[k].vector, .msg_iovlen = 2}};
    }
}

static void compare(size_t first) {
    char page[4096];
    for (size_t k = 0; k < MESSAGES; k++) {
        check_page(p + (first + 2 * k) * PAGE, 2 * k, 1);
        make_page(page, 2 * k + 1, 1);
        EXPECT(memcmp(p + (first + 2 * k + 1) * PAGE, page, 1000) == 0);
    }
}

int main(void) {
    p = map(BYTES);
    fill(p, BYTES, 1);
    out = (void *)(p + 8 * MIB);
    in = (void *)(p + 9 * MIB);
    struct mmsghdr *many = (void *)(p + 10 * MIB - 64); /* across a page's end */
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    int room = 1 << 20;
    MUST(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room));
    for (int round = 0; round < 4; round++) {
        prepare(many, out, 0);
        wait_demoted(BYTES);
        int sent = 0, come = 0;
        while (come < MESSAGES) {
            /* The queue takes as many as the system allows at a time. */
            prepare(many, out, 0);
            int n = sendmmsg(pair[0], many + sent, (unsigned)(MESSAGES - sent), MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN) BAD("sendmmsg: %s", strerror(errno));
            sent += n > 0 ? n : 0;
            prepare(many, in, 1024);
            n = recvmmsg(pair[1], many + come, (unsigned)(sent - come), MSG_DONTWAIT, NULL);
            if (n < 0 && errno != EAGAIN) BAD("recvmmsg: %s", strerror(errno));
            for (int k = come; k < come + n; k++) EXPECT(many[k].msg_len == PAGE + 1000);
            come += n > 0 ? n : 0;
        }
        compare(1024);
        say("ROUND %d %d\n", round, come);
    }
    /* A descriptor in control data. */
    wait_demoted(BYTES);
    struct msghdr *one = (void *)(p + 11 * MIB);
    char *control = p + 12 * MIB - 8;
    struct iovec *vector = (void *)(p + 13 * MIB);
    *vector = (struct iovec){p, PAGE};
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    *one = (struct msghdr){.msg_iov = vector, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(one);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    int ends[2];
    MUST(pipe(ends));
    memcpy(CMSG_DATA(c), &ends[1], sizeof(int));
    wait_demoted(BYTES);
    EXPECT(sendmsg(pair[0], one, 0) == (ssize_t)PAGE);
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    vector->iov_base = p + 14 * MIB;
    wait_demoted(BYTES);
    EXPECT(recvmsg(pair[1], one, 0) == (ssize_t)PAGE);
    check_page(p + 14 * MIB, 0, 1);
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(one)), sizeof(int));
    EXPECT(passed != ends[1]);
    EXPECT(write(passed, p + PAGE, 100) == 100);
    wait_demoted(BYTES);
    EXPECT(read(ends[0], p + 5 * PAGE, 100) == 100);
    EXPECT(memcmp(p + 5 * PAGE, p + PAGE, 100) == 0);
    return done();
}
