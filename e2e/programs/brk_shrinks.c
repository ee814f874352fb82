/* A heap that shrinks over demoted pages and grows again has zeros there. */
#include "hazard.h"

int main(void) {
    size_t bytes = 16 * MIB, half = 8 * MIB;
    char *p = sbrk(0);
    p = (char *)(((uintptr_t)p + PAGE - 1) & ~(PAGE - 1));
    EXPECT(brk(p + bytes) == 0);
    fill(p, bytes, 1);
    wait_demoted(bytes);
    EXPECT(brk(p + half) == 0);
    EXPECT(brk(p + bytes) == 0);
    check_zero(p + half, half);
    check(p, half, 1);
    fill(p, bytes, 2);
    wait_demoted(bytes);
    check(p, bytes, 2);
    return done();
}
