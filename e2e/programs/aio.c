/* Linux AIO: control blocks, their list, results and buffers in demoted memory. */
#include "hazard.h"
#include <linux/aio_abi.h>

enum { PAGES = 2048, BATCH = 32 };

int main(void) {
    size_t bytes = PAGES * PAGE;
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, BATCH, &context) < 0) skip("no Linux AIO here");
    char name[] = "hazard-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd);
    unlink(name);
    char *p = map(bytes), *control = map(4 * MIB);
    fill(p, bytes, 1);
    memset(control, 1, 4 * MIB);
    struct iocb **list = (void *)(control + PAGE - 128);
    struct io_event *events = (void *)(control + 99 * PAGE - 500);
    for (int pass = 0; pass < 2; pass++) {
        int op = pass ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
        wait_demoted(bytes + 4 * MIB);
        for (size_t i = 0; i < PAGES; i += BATCH) {
            for (size_t k = 0; k < BATCH; k++) {
                list[k] = (void *)(control + (200 + k) * PAGE);
                *list[k] = (struct iocb){.aio_lio_opcode = (uint16_t)op, .aio_fildes = (uint32_t)fd,
                                         .aio_buf = (uintptr_t)(p + (i + k) * PAGE),
                                         .aio_nbytes = PAGE, .aio_offset = (int64_t)((i + k) * PAGE)};
            }
            if (i % 512 == 0) pause_ms(250);
            EXPECT(syscall(SYS_io_submit, context, BATCH, list) == BATCH);
            EXPECT(syscall(SYS_io_getevents, context, BATCH, BATCH, events, NULL) == BATCH);
            for (size_t k = 0; k < BATCH; k++) EXPECT(events[k].res == (int64_t)PAGE);
        }
        if (pass == 0) fill(p, bytes, 2);
    }
    check(p, bytes, 1);
    MUST(syscall(SYS_io_destroy, context));
    return done();
}
