/* Memory that is scanned comes back as it was, whole blocks at a time, while some of it is written,
 * freed and taken out again between the scans. */
#include "hazard.h"

int main(void) {
    enum { SCANS = 4 };
    size_t bytes = 24 * MIB, pages = bytes / PAGE;
    char *p = demoted(bytes);
    static uint64_t version[24 * 256];
    for (size_t i = 0; i < pages; i++) version[i] = 1;
    uint64_t seed = 3;
    for (int scan = 0; scan < SCANS; scan++) {
        /* Holes in most blocks first: pages that came home one by one, some of them written. */
        for (size_t n = 0; n < pages * (size_t)scan / SCANS; n++) {
            size_t i = next_random(&seed) % pages;
            if (n % 3)
                check_page(p + i * PAGE, i, version[i]);
            else
                make_page(p + i * PAGE, i, ++version[i]);
        }
        for (size_t i = 0; i < pages; i++) check_page(p + i * PAGE, i, version[i]);
        wait_demoted(bytes);
    }
    for (size_t i = pages; i-- > 0;) check_page(p + i * PAGE, i, version[i]);
    return done();
}
