/* mlock brings demoted pages in and keeps them; munlock lets them go again. */
#include "hazard.h"
#include <sys/resource.h>

int main(void) {
    size_t bytes = 8 * MIB;
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (geteuid() != 0 && limit.rlim_cur < bytes) skip("RLIMIT_MEMLOCK is under 8 MiB");
    char *p = demoted(bytes);
    MUST(mlock(p, bytes));
    unsigned char there[8 * 256];
    MUST(mincore(p, bytes, there));
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (!(there[i] & 1)) BAD("page %zu is locked and not in memory", i);
    pause_ms(1500);
    MUST(mincore(p, bytes, there));
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (!(there[i] & 1)) BAD("page %zu was taken although it is locked", i);
    check(p, bytes, 1);
    MUST(munlock(p, bytes));
    wait_demoted(bytes);
    check(p, bytes, 1);
    return done();
}
