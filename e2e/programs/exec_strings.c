/* execve whose path, vectors and strings all lie in demoted memory. */
#include "hazard.h"

enum { STRINGS = 400 };

static uint64_t digest(char **strings) {
    uint64_t sum = 14695981039346656037u;
    for (; *strings; strings++)
        for (const char *c = *strings; *c; c++) sum = (sum ^ (uint64_t)(unsigned char)*c) * 1099511628211u;
    return sum;
}

extern char **environ;

int main(int argc, char **argv) {
    if (argc > 10) {
        /* argv[0] is the name, argv[1] the parent's digest of what follows. */
        char want[32];
        snprintf(want, sizeof want, "%016llx", (unsigned long long)digest(argv + 2));
        if (strcmp(want, argv[1]) != 0) BAD("arguments: %s, not %s", want, argv[1]);
        int kept = 0;
        for (int n = 0; n < STRINGS; n++) {
            char name[32], value[64];
            snprintf(name, sizeof name, "HAZARD_%d", n);
            snprintf(value, sizeof value, "value %d of many", n * 7);
            const char *got = getenv(name);
            kept += got && strcmp(got, value) == 0;
        }
        say("ARGUMENTS %d ENVIRONMENT %d\n", argc, kept);
        EXPECT(kept == STRINGS);
        return done();
    }
    size_t bytes = 16 * MIB;
    char *p = map(bytes);
    fill(p, bytes, 1);
    /* A string a page, across the page's end; the vectors on pages of their own. */
    char **arguments = (void *)(p + 12 * MIB), **environment = (void *)(p + 13 * MIB - 512);
    int count = 0, variables = 0;
    arguments[count++] = argv[0];
    char *check_at = p + 14 * MIB - 5;
    arguments[count++] = check_at;
    for (int n = 0; n < STRINGS; n++) {
        char *at = p + (size_t)(n + 1) * PAGE - 9;
        sprintf(at, "argument %d: %0*d", n, 1 + n * 3 % 900, n);
        arguments[count++] = at;
    }
    arguments[count] = NULL;
    for (char **e = environ; *e; e++) environment[variables++] = *e;
    for (int n = 0; n < STRINGS; n++) {
        char *at = p + 4 * MIB + (size_t)(n + 1) * PAGE - 7;
        sprintf(at, "HAZARD_%d=value %d of many", n, n * 7);
        environment[variables++] = at;
    }
    environment[variables] = NULL;
    sprintf(check_at, "%016llx", (unsigned long long)digest(arguments + 2));
    char *path = p + 15 * MIB - 3;
    strcpy(path, "/proc/self/exe");
    wait_demoted(bytes);
    execve(path, arguments, environment);
    BAD("execve: %s", strerror(errno));
}
