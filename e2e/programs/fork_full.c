/* A program that has all the descriptors it is allowed forks: to announce the child to the runtime
 * the kernel needs one more. argv[1]: "full"; "lowered", to fewer than the runtime's numbers. */
#include "hazard.h"
#include <sys/resource.h>

enum { BYTES = 24 << 20, CHILDREN = 6 };

static char *p;
static atomic_bool is_over;

/* Faults while the children are given their pages. */
static void *read_on(void *unused) {
    uint64_t state = 88172645463325252u;
    while (!is_over) {
        size_t i = next_random(&state) % (BYTES / PAGE);
        check_page(p + i * PAGE, i, 1);
        pause_ms(1);
    }
    return unused;
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    p = demoted(BYTES);
    pthread_t reader;
    EXPECT(pthread_create(&reader, NULL, read_on, NULL) == 0);
    bool is_lowered = strcmp(argv[1], "lowered") == 0;
    rlim_t most = is_lowered ? 64 : 1024, hard = is_lowered ? 2048 : 1024;
    struct rlimit limit = {most, hard};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    for (int round = 0; round < 3; round++) {
        while (open("/dev/null", O_RDONLY) >= 0) {
        }
        EXPECT(errno == EMFILE);
        /* One after the other, none of which waits for the one before. */
        pid_t children[CHILDREN];
        for (int n = 0; n < CHILDREN; n++) {
            children[n] = fork();
            MUST(children[n]);
            if (children[n] == 0) {
                /* A child has children too, while it waits for its pages. */
                check(p, BYTES / 2, 1);
                pid_t own = n == 0 ? fork() : 0;
                MUST(own);
                check(p, BYTES, 1);
                if (own > 0) join_child(own);
                _exit(0);
            }
        }
        for (int n = 0; n < CHILDREN; n++) join_child(children[n]);
    }
    struct rlimit now;
    MUST(getrlimit(RLIMIT_NOFILE, &now));
    EXPECT(now.rlim_cur == most && now.rlim_max == hard);
    is_over = true;
    pthread_join(reader, NULL);
    check(p, BYTES, 1);
    return done();
}
