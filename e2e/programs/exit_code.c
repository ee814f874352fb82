/* Not a hazard: says that it was started, and ends with the status or the signal it is given. */
#include "hazard.h"

int main(int argc, char **argv) {
    say("STARTED\n");
    if (argc < 2) return 0;
    if (argv[1][0] == 's') raise(atoi(argv[1] + 1));
    return atoi(argv[1]);
}
