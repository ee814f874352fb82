/* exec drops everything; the new program gets a runtime of its own, also from a second thread. */
#include "hazard.h"

static char **arguments;

static void *exec_again(void *arg) {
    (void)arg;
    execv(arguments[0], (char *[]){arguments[0], "last", NULL});
    BAD("exec: %s", strerror(errno));
}

int main(int argc, char **argv) {
    size_t bytes = 16 * MIB;
    arguments = argv;
    char *p = demoted(bytes);
    if (argc == 1) {
        execv("/proc/self/exe", (char *[]){argv[0], "second", NULL});
        BAD("exec: %s", strerror(errno));
    }
    check(p, bytes, 1);
    if (strcmp(argv[1], "second") == 0) {
        wait_demoted(bytes);
        pthread_t t;
        pthread_create(&t, NULL, exec_again, NULL);
        pthread_join(t, NULL);
    }
    return done();
}
