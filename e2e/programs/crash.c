/* Crashes while most of its memory is in tiers: `crash HOW`. What the dump holds is for the test to
 * see. */
#include "hazard.h"
#include <sys/resource.h>

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    MUST(setrlimit(RLIMIT_CORE, &limit));
    size_t bytes = 16 * MIB;
    char *p = demoted(bytes);
    say("AT %p %d\n", (void *)p, (int)getpid());
    char *volatile nowhere = (char *)16;
    if (strcmp(argv[1], "segv") == 0) *nowhere = 1;
    if (strcmp(argv[1], "abort") == 0) abort();
    if (strcmp(argv[1], "quit") == 0) {
        kill(getpid(), SIGQUIT);
        pause_ms(20000);
    }
    if (strcmp(argv[1], "wait") == 0) pause_ms(60000);
    BAD("still here");
}
