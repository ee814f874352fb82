/* Descriptors closed by an instruction of the program's own, which nobody can stand in front of: the
 * runtime's userfaultfd among them. The pager has a name of its own for that: bytes stay what they are, or
 * the program ends. */
#include "hazard.h"

int main(void) {
#ifdef __x86_64__
    char *volatile p = demoted(16 * MIB);
    EXPECT(bare_call(SYS_close_range, 3, 0xffffffff, 0) == 0);
    say("CLOSED\n");
    check(p, 16 * MIB, 1);
    pause_ms(1000);
    check(p, 16 * MIB, 1);
    return done();
#else
    skip("the instruction is x86-64's");
#endif
}
