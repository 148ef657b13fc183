/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 how | ... |: a worker's fetch.  Either a whole one from sources whose tempers and luck the bytes
 * decide (tests/unit/fetch_walk.h): it must end with every piece good.  Or any events at all, of sources
 * and pieces that exist or not: it asks of nobody what is there already or asked elsewhere, and ends
 * once. */
#include "../unit/fetch_walk.h"

enum { PIECES_MAX = 64, TOKENS = 6 };

static input_t bytes;
static uint64_t rng; /* when the bytes are used up: a fetch must end, and luck turns */

static uint64_t roll(uint64_t n)
{
    if (bytes.left) return input_below(&bytes, n);
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

/* ---- any events ---- */

static struct {
    uint32_t count, window;
    uint64_t open[PIECES_MAX];
    bool ended;
} wild;

static void close_all(uint64_t token)
{
    for (uint32_t p = 0; p < wild.count; p++)
        if (wild.open[p] == token) wild.open[p] = 0;
}

static void take(const fetch_action_t *a)
{
    uint32_t in_flight = 0;
    MUST(!wild.ended);
    switch (a->kind) {
    case FA_ASK:
        MUST(a->piece < wild.count && !wild.open[a->piece] && !fetch_is_good(f, a->piece));
        wild.open[a->piece] = a->token;
        for (uint32_t p = 0; p < wild.count; p++) in_flight += wild.open[p] == a->token;
        MUST(in_flight <= wild.window);
        break;
    case FA_DROP_ASK:
        MUST(a->piece < wild.count && wild.open[a->piece] == a->token);
        wild.open[a->piece] = 0;
        break;
    case FA_DROP_PEER: close_all(a->token); break;
    case FA_NEED_SOURCES: break;
    case FA_DONE:
        MUST(fetch_good_count(f) == wild.count);
        wild.ended = true;
        break;
    case FA_FAILED:
        MUST(a->err == HEDDLE_ERR_GONE || a->err == HEDDLE_ERR_DIGEST_MISMATCH);
        wild.ended = true;
        break;
    }
}

/* What the event itself says is not open any more. */
static void end_asks(const fetch_event_t *e)
{
    bool about_piece = e->kind == FE_GOOD || e->kind == FE_BAD || e->kind == FE_REFUSED;
    bool of_whom_was_asked = e->kind == FE_GOOD && !e->token;
    bool is_open = e->piece < wild.count && wild.open[e->piece] &&
                   (of_whom_was_asked || wild.open[e->piece] == e->token);
    if (e->kind == FE_GONE || (e->kind == FE_REFUSED && e->err == HEDDLE_ERR_GONE && is_open))
        close_all(e->token);
    if (about_piece && is_open) wild.open[e->piece] = 0;
}

static void any_event(void)
{
    fetch_source_t list[2 * FETCH_SOURCES_MAX];
    static const int ERRORS[] = {HEDDLE_ERR_AGAIN, HEDDLE_ERR_GONE, HEDDLE_ERR_NOT_FOUND,
                                 HEDDLE_ERR_LIMIT};
    fetch_event_t e = {.kind = (fetch_event_kind_t)roll(FE_CANCEL + 1),
                       .piece = (uint32_t)roll(wild.count + 2),
                       .token = roll(TOKENS + 2),
                       .err = ERRORS[roll(4)],
                       .sources = list};
    if (e.kind == FE_CANCEL && roll(8)) e.kind = FE_GOOD;
    if (e.kind == FE_SOURCES) e.source_count = (int)roll(sizeof list / sizeof *list + 1);
    for (int i = 0; i < e.source_count; i++) list[i].token = 1 + roll(TOKENS);
    end_asks(&e);
    now += roll(4) ? roll(100000) : roll(40000000);
    step(e);
    for (int i = 0; i < act_count; i++) take(&acts[i]);
    while (act_count == 256) { /* there is more to say */
        tick();
        for (int i = 0; i < act_count; i++) take(&acts[i]);
    }
    if (e.kind == FE_CANCEL) wild.ended = true;
    MUST(!wild.ended || fetch_deadline(f) == CLOCK_NEVER);
}

static void any_events(void)
{
    wild.count = (uint32_t)roll(PIECES_MAX + 1);
    wild.window = 1 + (uint32_t)roll(8);
    wild.ended = false;
    memset(wild.open, 0, sizeof wild.open);
    uint64_t rotten[] = {1 + roll(TOKENS)};
    start_with((fetch_plan_t){.count = wild.count,
                              .window_bytes = wild.window * PIECE,
                              .fail_us = roll(2) ? 5000000 : 0,
                              .bad = rotten,
                              .bad_count = (uint32_t)roll(2)});
    while (bytes.left) any_event();
    stop();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes = (input_t){data, size};
    rng = 0x9e3779b97f4a7c15ull ^ size;
    steps = 0;
    if (roll(2))
        run_one(0, 1 + (uint32_t)roll(96));
    else
        any_events();
    count_steps(steps);
    return 0;
}
