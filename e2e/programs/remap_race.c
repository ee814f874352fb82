/* mremap of what is on its way down at this very moment; with an argument in a process that may open no
 * descriptor any more, as sandboxes have it. */
#include "hazard.h"
#include <sys/resource.h>

int main(int argc, char **argv) {
    (void)argv;
    size_t bytes = 32 * MIB;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *space = mmap(NULL, 6 * bytes, PROT_NONE, flags, -1, 0);
    MUST(space);
    char *p = demoted(bytes);
    if (argc > 1) MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0}));
    uint64_t seed = 3;
    double end = now_s() + 4;
    for (unsigned n = 0; now_s() < end; n++) {
        char *to = space + (n % 3) * 2 * bytes + (next_random(&seed) % 512) * PAGE;
        EXPECT(mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        p = to;
        for (int k = 0; k < 500; k++) {
            size_t i = next_random(&seed) % (bytes / PAGE);
            check_page(p + i * PAGE, i, 1);
        }
        pause_ms((unsigned)(next_random(&seed) % 400));
    }
    check(p, bytes, 1);
    return done();
}
