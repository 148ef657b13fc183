/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is read from another: this process's own, found as another's would be. */
#include "transfer/near.h"
#include "transfer/region.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 65536u
#define LINE 71u

static near_board_t board;
static region_t *region;
static near_view_t *view;
static uint8_t into[BYTES];

static void set_up(void)
{
    heddle_error_t error;
    cr_assert(near_board_open(&board));
    cr_assert_eq(region_new(BYTES, &region, &error), HEDDLE_OK);
    for (size_t i = 0; i < BYTES; i++) ((uint8_t *)region->base)[i] = (uint8_t)(i * 7 + 1);
    near_id_t id = near_board_id(&board);
    view = near_view_open(&id);
    cr_assert_not_null(view);
}

static void tear_down(void)
{
    near_view_close(&view);
    near_board_close(&board);
    region_unref(&region);
}

TestSuite(near, .init = set_up, .fini = tear_down);

static near_loan_t loan_of(uint32_t pin)
{
    return (near_loan_t){.file = near_file(region->fd), .fd = (uint32_t)region->fd, .pin = pin, .line = LINE,
                         .offset = 4096, .bytes = 5000};
}

Test(near, a_range_is_copied_while_its_pin_holds)
{
    uint32_t pin = near_pin(&board, LINE);
    near_loan_t loan = loan_of(pin);
    cr_assert(near_copy(view, &loan, into));
    cr_assert_eq(memcmp(into, (uint8_t *)region->base + 4096, 5000), 0);
    cr_assert_eq(into[5000], 0);
    near_unpin(&board, pin);
    cr_assert_not(near_copy(view, &loan, into), "the loan has ended");
    cr_assert_eq(near_pin(&board, LINE + 1), pin);
    cr_assert_not(near_copy(view, &loan, into), "the pin is another connection's");
}

Test(near, what_is_out_of_range_is_not_read)
{
    uint32_t pin = near_pin(&board, LINE);
    const near_loan_t good = loan_of(pin);
    near_loan_t bad = good;
    bad.offset = region->bytes - 4999;
    cr_assert_not(near_copy(view, &bad, into));
    bad.offset = UINT64_MAX - 10;
    cr_assert_not(near_copy(view, &bad, into));
    bad = good, bad.pin = 0;
    cr_assert_not(near_copy(view, &bad, into));
    bad.pin = NEAR_PINS + 1;
    cr_assert_not(near_copy(view, &bad, into));
    bad = good, bad.file++;
    cr_assert_not(near_copy(view, &bad, into), "another file");
    bad.file = 0;
    cr_assert_not(near_copy(view, &bad, into));
    bad = good, bad.fd = 4000000;
    cr_assert_not(near_copy(view, &bad, into), "no such descriptor");
    cr_assert(near_copy(view, &good, into));
}

/* It could be truncated under us: that would be a signal. */
Test(near, what_is_not_sealed_is_not_mapped)
{
    int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    near_loan_t loan = {.file = near_file(fd), .fd = (uint32_t)fd, .pin = near_pin(&board, LINE), .line = LINE,
                        .bytes = 16};
    cr_assert_not(near_copy(view, &loan, into));
    close(fd);
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    loan.fd = (uint32_t)pipes[0], loan.file = near_file(pipes[0]);
    cr_assert_not(near_copy(view, &loan, into), "not even memory");
}

Test(near, more_regions_than_stay_mapped)
{
    heddle_error_t error;
    region_t *regions[NEAR_MAPS + 3];
    uint32_t pin = near_pin(&board, LINE);
    for (uint32_t i = 0; i < NEAR_MAPS + 3; i++) {
        cr_assert_eq(region_new(4096, &regions[i], &error), HEDDLE_OK);
        memset(regions[i]->base, (int)i + 1, 4096);
    }
    for (uint32_t k = 0; k < 3 * (NEAR_MAPS + 3); k++) {
        uint32_t i = k % (NEAR_MAPS + 3);
        near_loan_t loan = {.file = near_file(regions[i]->fd), .fd = (uint32_t)regions[i]->fd, .pin = pin,
                            .line = LINE, .bytes = 4096};
        cr_assert(near_copy(view, &loan, into));
        cr_assert(into[0] == i + 1 && into[4095] == i + 1);
    }
    for (uint32_t i = 0; i < NEAR_MAPS + 3; i++) region_unref(&regions[i]);
}

Test(near, only_who_it_says)
{
    near_id_t id = near_board_id(&board), other = id;
    other.proof ^= 2;
    cr_assert_null(near_view_open(&other), "proof");
    other = id, other.network++;
    cr_assert_null(near_view_open(&other), "another network is another host");
    other = id, other.board = 4000000;
    cr_assert_null(near_view_open(&other), "board");
    other = id, other.board = (uint64_t)region->fd;
    cr_assert_null(near_view_open(&other), "a board has one size");
    other = id, other.process = 0;
    cr_assert_null(near_view_open(&other), "process");
    near_board_t closed = {0};
    other = near_board_id(&closed);
    cr_assert_null(near_view_open(&other), "nobody");
}

Test(near, pins_are_limited)
{
    for (uint32_t i = 1; i <= NEAR_PINS; i++) cr_assert_eq(near_pin(&board, i), i);
    cr_assert_eq(near_pin(&board, LINE), 0);
    near_unpin(&board, 0);
    near_unpin(&board, 500);
    cr_assert_eq(near_pin(&board, LINE), 500);
}

/* The process is gone, and what was mapped of it is still there to be read. */
Test(near, a_source_that_ends_takes_nothing_away)
{
    int line[2];
    cr_assert_eq(pipe(line), 0);
    pid_t child = fork();
    if (child == 0) {
        near_board_t theirs;
        struct { near_id_t id; near_loan_t loan; } told;
        if (!near_board_open(&theirs)) _exit(1);
        told.id = near_board_id(&theirs);
        told.loan = loan_of(near_pin(&theirs, LINE));
        if (write(line[1], &told, sizeof told) != sizeof told) _exit(1);
        for (;;) pause();
    }
    struct { near_id_t id; near_loan_t loan; } told;
    cr_assert_eq(read(line[0], &told, sizeof told), (ssize_t)sizeof told);
    near_view_t *theirs = near_view_open(&told.id);
    cr_assert_not_null(theirs);
    cr_assert(near_copy(theirs, &told.loan, into));
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    memset(into, 0, sizeof into);
    cr_assert(near_copy(theirs, &told.loan, into));
    cr_assert_eq(memcmp(into, (uint8_t *)region->base + 4096, 5000), 0);
    near_view_close(&theirs);
    cr_assert_null(near_view_open(&told.id), "but it is not found again");
}
