/* mremap to a chosen place of memory of which Terrace follows only what comes later in it: all of it moves,
 * or nothing, whether it is one mapping of the program's or several. The argument says which. */
#include "hazard.h"

static const size_t region = 2 * MIB;

/* Address space on a 2 MiB boundary. */
static char *reserve(size_t bytes) {
    char *p = mmap(NULL, bytes + region, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(p != MAP_FAILED);
    return (char *)(((uintptr_t)p + region - 1) / region * region);
}

static char *map_at(char *p, size_t bytes, int prot) {
    EXPECT(mmap(p, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
    return p;
}

/* Whether the kernel moves several mappings together (Linux 6.17). */
static bool moves_several(void) {
    char *p = map(4 * PAGE), *to = map(4 * PAGE);
    MUST(mprotect(p + 2 * PAGE, 2 * PAGE, PROT_READ));
    return mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
}

/* Whether the kernel counts pages before it compares the two sizes, which must be equal if the old place
 * stays. Older ones compare bytes. Asked past libc, so that only the kernel answers. */
static bool counts_pages_first(void) {
#ifdef __x86_64__
    char *p = map(2 * PAGE);
    register long flags __asm__("r10") = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_mremap), "D"(p), "S"(2 * PAGE - 1), "d"(2 * PAGE), "r"(flags)
                     : "rcx", "r11", "memory");
    return result > 0 || result < -4095;
#else
    return true;
#endif
}

int main(int argc, char **argv) {
    size_t head = 64 * PAGE, bytes = 16 * region;
    EXPECT(argc == 2);
    bool stays = strcmp(argv[1], "dontunmap") == 0, several = strcmp(argv[1], "several") == 0;
    if (several && !moves_several()) skip("mremap moves one mapping at a time");
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (stays ? MREMAP_DONTUNMAP : 0);
    char *p = map_at(reserve(bytes), bytes, PROT_READ | PROT_WRITE);
    /* Of the first 2 MiB little is used, too little to follow them. */
    fill(p, head, 5);
    fill(p + region, bytes - region, 1);
    if (several) MUST(mprotect(p, head, PROT_READ));
    wait_demoted(bytes - region);

    /* (One more than it has bytes: the kernel counts pages.) */
    char *to = reserve(bytes);
    size_t named = bytes - (!stays || counts_pages_first() ? 1 : 0);
    EXPECT(mremap(p, named, bytes, flags, to) == to);
    check(to, head, 5);
    check(to + region, bytes - region, 1);
    check_zero(to + head, region - head);
    if (stays) check_zero(p, bytes);

    /* And back, all of it registered or nothing, as it comes. */
    wait_demoted(bytes - region);
    EXPECT(mremap(to, bytes, bytes, flags, p) == p);
    check(p, head, 5);
    check(p + region, bytes - region, 1);
    return done();
}
