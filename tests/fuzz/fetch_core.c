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
    uint64_t open[PIECES_MAX], landed[PIECES_MAX]; /* the source's token */
    bool ended;
} wild;

static const int ERRORS[] = {HEDDLE_ERR_AGAIN, HEDDLE_ERR_GONE, HEDDLE_ERR_NOT_FOUND, HEDDLE_ERR_LIMIT};

static void close_all(uint64_t token)
{
    for (uint32_t p = 0; p < wild.count; p++)
        if (wild.open[p] == token) wild.open[p] = 0;
}

static int any_ask(uint32_t piece, uint64_t token)
{
    uint32_t in_flight = 1;
    MUST(!wild.ended && piece < wild.count && !wild.open[piece] && !wild.landed[piece]);
    for (uint32_t p = 0; p < wild.count; p++) in_flight += wild.open[p] == token || wild.landed[p] == token;
    MUST(in_flight <= wild.window);
    int err = roll(8) ? HEDDLE_OK : roll(5) ? ERRORS[roll(4)] : HEDDLE_ERR_SLOW;
    if (!err) wild.open[piece] = token;
    return err;
}

static void look_at(const action_t *a)
{
    MUST(!wild.ended);
    switch (a->kind) {
    case FA_ASK: MUST(wild.open[a->piece] == a->token); break;
    case FA_DROP_ASK:
        MUST(a->piece < wild.count && wild.open[a->piece] == a->token);
        MUST(a->ask == ask_of[a->piece]);
        wild.open[a->piece] = 0;
        break;
    case FA_NEED_SOURCES: break;
    case FA_DONE:
        MUST(count_good(wild.count) == wild.count);
        wild.ended = true;
        break;
    case FA_FAILED: wild.ended = true; break;
    }
}

/* What lands of an ask that is open lands, and of no other. */
static void any_landing(uint32_t piece, bool is_of_last_ask)
{
    uint64_t ask = is_of_last_ask && piece < wild.count ? ask_of[piece] : 1 + roll(4);
    bool is_open = !wild.ended && piece < wild.count && wild.open[piece] && ask == ask_of[piece];
    MUST(fetch_land(f, piece, ask, now) == is_open);
    if (!is_open) return;
    wild.landed[piece] = wild.open[piece];
    wild.open[piece] = 0;
}

/* What the event itself says is not open, or has not landed, any more. */
static void end_asks(const event_t *e)
{
    bool is_piece = e->piece < wild.count;
    if (e->kind == FE_GONE) close_all(e->token);
    if (is_piece && (e->kind == FE_GOOD || e->kind == FE_BAD)) wild.landed[e->piece] = 0;
    if (e->kind != FE_REFUSED || !is_piece || !wild.open[e->piece] || e->ask != ask_of[e->piece]) return;
    wild.open[e->piece] = 0;
}

static void any_event(void)
{
    uint64_t list[2 * FETCH_SOURCES_MAX];
    event_t e = {.kind = (event_kind_t)roll(FE_CANCEL + 1),
                 .piece = (uint32_t)roll(wild.count + 2),
                 .token = roll(TOKENS + 2),
                 .err = ERRORS[roll(4)],
                 .sources = list};
    e.ask = e.piece < wild.count && roll(4) ? ask_of[e.piece] : 1 + roll(4);
    if (e.kind == FE_CANCEL && roll(8)) e.kind = FE_GOOD;
    if (e.kind == FE_SOURCES) e.source_count = (int)roll(sizeof list / sizeof *list + 1);
    for (int i = 0; i < e.source_count; i++) list[i] = 1 + roll(TOKENS);
    if (e.kind == FE_GOOD || e.kind == FE_BAD || roll(4) == 0) any_landing(e.piece, roll(4));
    end_asks(&e);
    now += roll(4) ? roll(100000) : roll(40000000);
    sharer_count = 1 + (uint32_t)roll(4);
    step(e);
    if (e.kind == FE_CANCEL) wild.ended = true;
    MUST(!wild.ended || fetch_deadline(f) == CLOCK_NEVER);
}

static void any_events(void)
{
    wild.count = (uint32_t)roll(PIECES_MAX + 1);
    wild.window = 1 + (uint32_t)roll(8);
    wild.ended = false;
    memset(wild.open, 0, sizeof wild.open);
    memset(wild.landed, 0, sizeof wild.landed);
    try_ask = any_ask;
    watch = look_at;
    uint64_t rotten[] = {1 + roll(TOKENS)};
    start_with((fetch_plan_t){.count = wild.count,
                              .piece_bytes = piece_of(wild.window),
                              .bad = rotten,
                              .bad_count = (uint32_t)roll(2)});
    while (bytes.left) any_event();
    stop();
    try_ask = NULL;
    watch = NULL;
    sharer_count = 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes = (input_t){data, size};
    rng = 0x9e3779b97f4a7c15ull ^ size;
    steps = 0;
    if (roll(2)) run_one(0, 1 + (uint32_t)roll(96));
    else any_events();
    count_steps(steps);
    return 0;
}
