/* Descriptors closed by an instruction of the program's own, which nobody can stand in front of: the
 * runtime's userfaultfd among them. What is in tiers may read as zeros then, but not for long. */
#include "hazard.h"

int main(void) {
#ifdef __x86_64__
    char *volatile p = demoted(16 * MIB);
    EXPECT(bare_call(SYS_close_range, 3, 0xffffffff, 0) == 0);
    say("CLOSED\n");
    (void)*(volatile char *)p;
    pause_ms(60000);
    BAD("still here");
#else
    skip("the instruction is x86-64's");
#endif
}
