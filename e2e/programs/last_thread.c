/* A process ends when its last thread returns, main's among them (pthread_exit), and runs its exit
 * handlers then. argv[1]: "main": after main ended, in a thread that verifies memory; "forked": in a
 * child that was forked in a thread, and whose only thread returns; "executed": as main, in a child
 * that executes this program. argv[2]: how long that thread takes, ms. */
#include "hazard.h"

enum { BYTES = 24 << 20 };

static char *p;
static unsigned takes_ms;

static void at_end(void) { say("OK\n"); }

static void *work(void *arg) {
    (void)arg;
    pause_ms(takes_ms);
    check(p, BYTES, 1);
    return NULL;
}

static void *fork_and_return(void *arg) {
    pid_t pid = fork();
    MUST(pid);
    if (pid == 0) return work(arg);
    int status;
    MUST(waitpid(pid, &status, 0));
    EXPECT(status == 0);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "main";
    takes_ms = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    if (strcmp(how, "executed") == 0) {
        pid_t pid = fork();
        MUST(pid);
        if (pid == 0) {
            execl("/proc/self/exe", argv[0], "main", argv[2], (char *)NULL);
            _exit(3);
        }
        int status;
        MUST(waitpid(pid, &status, 0));
        EXPECT(status == 0);
        return 0;
    }
    p = map(BYTES);
    fill(p, BYTES, 1);
    atexit(at_end);
    pthread_t t;
    EXPECT(pthread_create(&t, NULL, strcmp(how, "forked") == 0 ? fork_and_return : work, NULL) == 0);
    pthread_exit(NULL);
}
