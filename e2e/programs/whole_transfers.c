/* Blocking calls that are taken for all or nothing (a large write to a pipe, recv with MSG_WAITALL)
 * while the program's threads are stopped again and again; and what must end them all the same. */
#include "hazard.h"
#include <arpa/inet.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { BYTES = 1 << 20, CHUNK = 16 << 10, RUNS = 10, ROUNDS = 6, RANDOM = 32 << 20 };

static _Atomic bool is_over;

/* What is at a place of the stream: each page of it is another. */
static char byte_at(size_t at) { return (char)(at ^ at >> 8 ^ at >> 13); }

static void put_bytes(char *to) {
    for (size_t i = 0; i < BYTES; i++) to[i] = byte_at(i);
}

static void see_bytes(const char *name, const char *p, size_t at, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (p[i] != byte_at(at + i)) BAD("%s: a wrong byte at %zu", name, at + i);
}

/* ---- the calls ------------------------------------------------------------------------------ */

static ssize_t by_write(int fd, char *p) {
    return write(fd, p, BYTES);
}

static ssize_t by_instruction(int fd, char *p) {
    return bare_call(SYS_write, fd, (long)p, BYTES);
}

static ssize_t by_send(int fd, char *p) {
    return send(fd, p, BYTES, 0);
}

static int cut(struct iovec *parts, char *p, int count) {
    size_t at = 0;
    for (int k = 0; k < count; k++) {
        size_t len = k + 1 == count ? BYTES - at : (size_t)(BYTES / count * (k % 3) / 2 + k % 2);
        parts[k] = (struct iovec){p + at, len};
        at += len;
    }
    return count;
}

static ssize_t by_writev(int fd, char *p) {
    struct iovec parts[12];
    return writev(fd, parts, cut(parts, p, 12));
}

static ssize_t by_sendmsg(int fd, char *p) {
    struct iovec parts[5];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)cut(parts, p, 5)};
    return sendmsg(fd, &message, 0);
}

static ssize_t by_recv(int fd, char *p) {
    return recv(fd, p, BYTES, MSG_WAITALL);
}

static ssize_t by_recvmsg(int fd, char *p) {
    struct iovec parts[5];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)cut(parts, p, 5)};
    return recvmsg(fd, &message, MSG_WAITALL);
}

/* ---- all of it, and the right bytes --------------------------------------------------------- */

struct stream {
    const char *name;
    ssize_t (*call)(int fd, char *p);
    int (*make)(int ends[2]);
    bool is_recv;
    int ends[2];
    pthread_t thread;
    _Atomic unsigned runs;
};

static int make_unix(int ends[2]) { return socketpair(AF_UNIX, SOCK_STREAM, 0, ends); }

static int make_tcp(int ends[2]) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int door = socket(AF_INET, SOCK_STREAM, 0);
    MUST(door);
    MUST(bind(door, (void *)&here, size));
    MUST(listen(door, 1));
    MUST(getsockname(door, (void *)&here, &size));
    MUST(ends[1] = socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(ends[1], (void *)&here, size));
    MUST(ends[0] = accept(door, NULL, NULL));
    return close(door);
}

static struct stream streams[] = {
    {.name = "write", .call = by_write, .make = pipe},
    {.name = "write by an instruction", .call = by_instruction, .make = pipe},
    {.name = "writev to a pipe", .call = by_writev, .make = pipe},
    {.name = "write to a socket", .call = by_write, .make = make_tcp},
    {.name = "send", .call = by_send, .make = make_unix},
    {.name = "send by TCP", .call = by_send, .make = make_tcp},
    {.name = "writev", .call = by_writev, .make = make_unix},
    {.name = "sendmsg", .call = by_sendmsg, .make = make_unix},
    {.name = "recv", .call = by_recv, .make = make_unix, .is_recv = true},
    {.name = "recv by TCP", .call = by_recv, .make = make_tcp, .is_recv = true},
    {.name = "recvmsg", .call = by_recvmsg, .make = make_unix, .is_recv = true},
};
enum { STREAMS = sizeof streams / sizeof *streams };

static void *other_end(void *arg) {
    struct stream *s = arg;
    char *p = map(BYTES);
    if (s->is_recv) put_bytes(p);
    for (;;)
        for (size_t at = 0, n; at < BYTES; at += n) {
            size_t len = BYTES - at < CHUNK ? BYTES - at : CHUNK;
            ssize_t done = s->is_recv ? write(s->ends[0], p + at, len) : read(s->ends[0], p, len);
            if (done <= 0) BAD("%s: the other end: %s", s->name, strerror(errno));
            n = (size_t)done;
            if (!s->is_recv) see_bytes(s->name, p, at, n);
            pause_ms(1);
        }
    return NULL;
}

static void *this_end(void *arg) {
    struct stream *s = arg;
    char *p = map(BYTES);
    if (!s->is_recv) put_bytes(p);
    while (!is_over) {
        if (s->is_recv) memset(p, 0, BYTES);
        ssize_t n = s->call(s->ends[1], p);
        if (n < 0) BAD("%s: %s", s->name, strerror(errno));
        if (n != BYTES) BAD("%s: %zd bytes of %d", s->name, n, BYTES);
        see_bytes(s->name, p, 0, BYTES);
        sigset_t blocked;
        MUST(-pthread_sigmask(SIG_SETMASK, NULL, &blocked));
        EXPECT(sigisemptyset(&blocked));
        s->runs++;
    }
    return NULL;
}

static _Atomic unsigned random_runs;

static void *takes_random_bytes(void *arg) {
    int device = open("/dev/urandom", O_RDONLY);
    MUST(device);
    char *p = map(RANDOM);
    while (!is_over) {
        bool is_call = random_runs++ % 2 == 0;
        memset(p, 0, RANDOM);
        ssize_t n = is_call ? getrandom(p, RANDOM, 0) : read(device, p, RANDOM);
        if (n != RANDOM) BAD("%zd random bytes of %d", n, RANDOM);
        for (size_t at = 0; at < RANDOM; at += 64)
            if (memcmp(p + at, p + (at + 64) % RANDOM, 32) == 0) BAD("not random at %zu", at);
    }
    close(device);
    return arg;
}

/* ---- what ends a call that has transferred a part ------------------------------------------- */

static char source[BYTES];
static _Atomic int handled, cleaned;

static void handle(int signal) {
    (void)signal;
    handled++;
}

static void clean(void *what) {
    EXPECT(*(int *)what == 4711);
    cleaned++;
}

static void *writes(void *arg) {
    int mark = 4711;
    ssize_t n;
    pthread_cleanup_push(clean, &mark);
    n = write(*(int *)arg, source, BYTES);
    pthread_cleanup_pop(0);
    return (void *)n;
}

/* Bytes in a pipe. */
static int held(int end) {
    int n;
    MUST(ioctl(end, FIONREAD, &n));
    return n;
}

/* Has a thread wait in a write of which a part is gone, for long enough for some stops. The part
 * that was taken is counted. */
static pthread_t wait_in_write(int ends[2], ssize_t *taken) {
    static char got[20000];
    pthread_t thread;
    MUST(pipe(ends));
    MUST(-pthread_create(&thread, NULL, writes, &ends[1]));
    int full = fcntl(ends[0], F_GETPIPE_SZ);
    *taken = 0;
    for (int k = 0; k < 3; k++) {
        while (held(ends[0]) < full - (int)PAGE) pause_ms(1);
        pause_ms(60);
        ssize_t n = read(ends[0], got, sizeof got);
        EXPECT(n == sizeof got);
        *taken += n;
    }
    while (held(ends[0]) < full - (int)PAGE) pause_ms(1);
    pause_ms(20);
    return thread;
}

static void end_by_a_signal(int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    MUST(sigaction(SIGUSR1, &action, NULL));
    int ends[2], before = handled;
    ssize_t taken;
    void *n;
    pthread_t thread = wait_in_write(ends, &taken);
    MUST(-pthread_kill(thread, SIGUSR1));
    MUST(-pthread_join(thread, &n));
    EXPECT(handled == before + 1);
    if ((ssize_t)n != taken + held(ends[0]))
        BAD("write says %zd, and %zd are gone", (ssize_t)n, taken + held(ends[0]));
    close(ends[0]);
    close(ends[1]);
}

static void end_by_cancellation(void) {
    int ends[2], before = cleaned;
    ssize_t taken;
    void *n;
    pthread_t thread = wait_in_write(ends, &taken);
    MUST(-pthread_cancel(thread));
    MUST(-pthread_join(thread, &n));
    EXPECT(n == PTHREAD_CANCELED);
    EXPECT(cleaned == before + 1);
    close(ends[0]);
    close(ends[1]);
}

static void end_by_the_reader(void) {
    int ends[2];
    ssize_t taken;
    void *n;
    pthread_t thread = wait_in_write(ends, &taken);
    ssize_t in = held(ends[0]);
    close(ends[0]);
    MUST(-pthread_join(thread, &n));
    if ((ssize_t)n != taken + in) BAD("write says %zd, and %zd were gone", (ssize_t)n, taken + in);
    close(ends[1]);
}

static void *receives(void *arg) {
    static char into[BYTES];
    return (void *)recv(*(int *)arg, into, BYTES, MSG_WAITALL);
}

static void end_by_the_sender(void) {
    int ends[2];
    void *n;
    pthread_t thread;
    MUST(make_unix(ends));
    MUST(-pthread_create(&thread, NULL, receives, &ends[1]));
    for (int k = 0; k < 5; k++) {
        EXPECT(write(ends[0], source, 1000) == 1000);
        pause_ms(30);
    }
    close(ends[0]);
    MUST(-pthread_join(thread, &n));
    if ((ssize_t)n != 5000) BAD("recv says %zd at the end of 5000 bytes", (ssize_t)n);
    close(ends[1]);
}

static void what_does_not_wait(void) {
    int ends[2];
    MUST(pipe2(ends, O_NONBLOCK));
    ssize_t n = write(ends[1], source, BYTES);
    if (n != held(ends[0]) || n >= BYTES) BAD("write without waiting: %zd", n);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    size_t bytes = 16 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 1);
    pthread_t random, other;
    for (int k = 0; k < STREAMS; k++) {
        MUST(streams[k].make(streams[k].ends));
        MUST(-pthread_create(&other, NULL, other_end, &streams[k]));
        MUST(-pthread_create(&streams[k].thread, NULL, this_end, &streams[k]));
    }
    MUST(-pthread_create(&random, NULL, takes_random_bytes, NULL));
    for (int k = 0; k < ROUNDS; k++) {
        end_by_a_signal(k % 2 ? SA_RESTART : 0);
        end_by_cancellation();
        end_by_the_reader();
        end_by_the_sender();
        what_does_not_wait();
        wait_demoted(bytes);
        check(p, bytes, 1);
    }
    for (int k = 0; k < STREAMS; k++)
        while (streams[k].runs < RUNS) pause_ms(1);
    while (random_runs <= RUNS) pause_ms(1);
    is_over = true;
    for (int k = 0; k < STREAMS; k++) pthread_join(streams[k].thread, NULL);
    pthread_join(random, NULL);
    return done();
}
