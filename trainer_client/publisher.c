/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of heddle/publisher.h on the application's thread: a handle, one publication at a time (a table
 * of tensors or a directory, to a durable record), what became of a version, events.
 *
 *   application's thread                               loop's thread
 *   run  ----------------- shell_call ------------->   one command of trainer_client/publisher_node.h
 *        <------------------------------------------   OK, an error, or AGAIN
 *   AGAIN: poll(changed, interrupt, time) <---------   the node's changed()
 *
 * One application thread at a time; heddle_publisher_interrupt on any, also in signal handlers.  The
 * application owns the handle, which owns its shell, its node and what was read ahead.  Calls block in
 * run_until and wait_fd alone, until a time that their caller names: CLOCK_NEVER where the application gave a
 * timeout of -1, which wait and next_event allow. */
#include "client/broker_address.h"
#include "client/credentials.h"
#include "client/opening.h"
#include "client/shell.h"
#include "core/crew.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/sized.h"
#include "core/stop.h"
#include "formats/peft.h"
#include "trainer_client/publisher_node.h"
#include "trainer_client/reading.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TIMEOUT_MS 5000u
#define CLOSE_MS 3000u
#define DEADLINE_MS 60000u
#define SLEEP_MAX_MS 3600000u
#define CHECK_US 10000u /* between two looks at a deadline that is not known here */

/* Packing runs on the caller's thread: the call's deadline and its interrupt end it. */
typedef struct {
    stop_t stop;
    heddle_publisher_t *publisher;
    uint64_t start_us;
    uint32_t before_ms;      /* what had passed of the deadline that was asked for */
    atomic_uint deadline_ms; /* of what is read ahead: UINT_MAX, until a call wants it */
} patience_t;

struct heddle_publisher {
    shell_t *shell;
    publisher_node_t *node;
    int changed_fd, interrupt_fd; /* eventfds: the node has changed; heddle_publisher_interrupt */
    uint32_t timeout_ms;
    uint32_t fill_threads;       /* at most; at least 1 */
    uint32_t helper_count;       /* threads that were asked of the crew; 0: none yet */
    crew_t *crew;                /* of those that help to fill; NULL: none could be started */
    uint32_t close_ms, leave_ms; /* for a holder of the last version; for the broker's BYE */
    uint64_t asked_version;      /* the application has asked what became of it */
    char adapter[HEDDLE_NAME_MAX + 1];
    const content_kind_t *kind;
    char broker[512];           /* where it was sought, for people */
    heddle_publication_t *open; /* the one that is being written */
    pack_t *last;               /* of the publication before it; NULL: none */
    ahead_t *ahead;             /* the directory that is read while the publisher opens; NULL: none */
    patience_t ahead_patience;
    bool is_running;
};

struct heddle_publication {
    heddle_publisher_t *publisher;
    pack_t *pack;
    int slot;
    uint64_t start_us; /* when reading a directory began; 0: it counts from commit */
};

static int misuse(const char *call, const char *why)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s: %s", call, why);
    return error_publish(&error);
}

/* -- time and descriptors --------------------------------------------------------------------- */

/* The loop's clock. */
static uint64_t time_now(void) { return clock_now(clock_system()); }

static uint64_t time_until(int timeout_ms)
{
    return timeout_ms < 0 ? CLOCK_NEVER : time_now() + (uint64_t)timeout_ms * 1000;
}

/* Also called in signal handlers: one write, and errno is as before. */
static void raise_fd(int fd)
{
    uint64_t one = 1;
    int kept = errno;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
    errno = kept;
}

/* True when it was raised since it was lowered last. */
static bool lower_fd(int fd)
{
    uint64_t count;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

/* On the loop's thread. */
static void on_changed(void *publisher) { raise_fd(((heddle_publisher_t *)publisher)->changed_fd); }

void heddle_publisher_interrupt(heddle_publisher_t *p)
{
    if (p) raise_fd(p->interrupt_fd);
}

/* Only looks: the interrupt stays until a call has reported it. */
static bool is_interrupted(const heddle_publisher_t *p)
{
    struct pollfd fd = {.fd = p->interrupt_fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

/* OK: fd is readable.  AGAIN: until_us came first.  INTERRUPTED, which comes before the event that is waited
 * for.  The timeout is rounded up, since a poll that ends too early would only be repeated. */
static int wait_fd(heddle_publisher_t *p, int fd, uint64_t until_us)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = p->interrupt_fd, .events = POLLIN}};
    for (;;) {
        uint64_t now = time_now(), left_ms = until_us > now ? (until_us - now + 999) / 1000 : 0;
        int n = poll(fds, 2, (int)(left_ms < SLEEP_MAX_MS ? left_ms : SLEEP_MAX_MS));
        if (n > 0) return lower_fd(p->interrupt_fd) ? HEDDLE_ERR_INTERRUPTED : HEDDLE_OK;
        if (n == 0 && time_now() >= until_us) return HEDDLE_ERR_AGAIN;
    }
}

/* -- commands --------------------------------------------------------------------------------- */

/* CLOSED when the loop has ended, since no command is executed then; else what the node answers. */
static int do_command(heddle_publisher_t *p, command_t *c)
{
    heddle_error_t ignored;
    int rc = shell_call(p->shell, publisher_node_do, c);
    if (!rc) return c->rc;
    return error_fail(c->error ? c->error : &ignored, rc, "the publisher of %s has ended", p->adapter);
}

/* Runs it again whenever the node has changed.  AGAIN: until_us came first; INTERRUPTED.  The descriptor is
 * lowered before the command, so that a change during the command is not missed. */
static int run_until(heddle_publisher_t *p, command_t *c, uint64_t until_us)
{
    for (;;) {
        lower_fd(p->changed_fd);
        int rc = do_command(p, c);
        if (rc != HEDDLE_ERR_AGAIN) return rc;
        rc = wait_fd(p, p->changed_fd, until_us);
        if (rc == HEDDLE_ERR_INTERRUPTED && c->error) return error_fail(c->error, rc, "interrupted");
        if (rc) return rc;
    }
}

/* -- the deadline of packing ------------------------------------------------------------------ */

/* Called between pieces of packing, by any thread that packs. */
static int check_patience(const stop_t *stop, heddle_error_t *error)
{
    const patience_t *p = (const patience_t *)stop;
    const char *adapter = p->publisher->adapter;
    if (is_interrupted(p->publisher))
        return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted while %s was packed", adapter);
    uint64_t now_us = time_now();
    uint32_t deadline_ms = atomic_load(&p->deadline_ms);
    if (now_us < p->start_us + deadline_ms * 1000ull) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_DEADLINE, "%s was not packed within its deadline", adapter);
    unsigned long long spent_ms = (now_us - p->start_us) / 1000 + p->before_ms;
    error_expected(error, "all of it read and digested within %llu ms",
                   (unsigned long long)deadline_ms + p->before_ms);
    error_found(error, "not after %llu ms", spent_ms);
    error_hint(error, "give it a longer deadline; each tensor takes at least 4 KiB, so few large ones "
                      "pack faster than many small ones");
    return HEDDLE_ERR_DEADLINE;
}

/* From here on stop_check, on this thread, ends packing at the deadline or an interrupt. */
static void patience_begin(patience_t *p, heddle_publisher_t *publisher, uint64_t start_us,
                           uint32_t deadline_ms)
{
    *p = (patience_t){.stop = {check_patience}, .publisher = publisher, .start_us = start_us};
    atomic_init(&p->deadline_ms, deadline_ms);
    stop_begin(&p->stop);
}

/* The same, by the deadline of a call. */
static void patience_take(patience_t *p, heddle_publisher_t *publisher, uint64_t start_us,
                          const heddle_publish_opts_t *o)
{
    patience_begin(p, publisher, start_us, o->deadline_ms);
    if (o->asked_ms > o->deadline_ms) p->before_ms = o->asked_ms - o->deadline_ms;
}

/* An interrupt that ended the packing is spent: it must not end the next call too. */
static int patience_over(const patience_t *p, int rc, heddle_error_t *error)
{
    stop_end();
    if (rc == HEDDLE_ERR_INTERRUPTED) lower_fd(p->publisher->interrupt_fd);
    if (rc) error_where(error, p->publisher->adapter, 0, NULL, "pack");
    return rc;
}

/* -- open ------------------------------------------------------------------------------------- */

/* The shell first, then the node on it, then the thread that runs both.  On failure the caller closes what
 * was made. */
static int start(const heddle_publisher_opts_t *o, heddle_publisher_t **ret_publisher, heddle_error_t *error)
{
    heddle_publisher_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a publisher");
    *ret_publisher = p;
    p->timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
    if (p->timeout_ms > INT32_MAX) p->timeout_ms = INT32_MAX;
    p->fill_threads = o->fill_threads ? o->fill_threads : crew_cores();
    p->close_ms = o->close_ms ? o->close_ms : CLOSE_MS;
    p->leave_ms = p->close_ms / 3; /* a third of it to leave, the rest for the transfer */
    error_text(p->adapter, sizeof p->adapter, o->adapter);
    p->kind = kind_find(o->kind);
    /* The environment is read under the lock of opening, since UCX changes it meanwhile. */
    opening_begin();
    error_text(p->broker, sizeof p->broker, broker_address(o->broker));
    bool is_guarded = regions_are_guarded();
    opening_end();
    /* Two descriptors, since a poll must tell an interrupt from a change of the node. */
    p->changed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->changed_fd < 0 || p->interrupt_fd < 0)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no descriptor is left for a publisher");
    if (o->read_dir) {
        /* Reading has no deadline yet: the call that will want it brings one. */
        patience_t *patience = &p->ahead_patience;
        *patience = (patience_t){.stop = {check_patience}, .publisher = p, .start_us = time_now()};
        atomic_init(&patience->deadline_ms, UINT_MAX);
        p->ahead = reading_ahead(o->read_dir, &p->ahead_patience.stop);
    }
    char roles[112];
    credentials_roles("publisher", (const char *const[]){o->adapter, NULL}, roles);
    shell_opts_t shell = {.broker = o->broker,
                          .transfer = true,
                          .data_device = o->data_device,
                          .insecure = o->insecure != 0,
                          .keys = {.broker_key = o->broker_key, .key = o->key, .roles = roles},
                          .max_rate_bytes = o->max_rate_bytes,
                          .quiet_events = o->quiet_events != 0,
                          .timeout_ms = p->timeout_ms,
                          .close_ms = p->close_ms - p->leave_ms};
    int rc = shell_open(&shell, &p->shell, error);
    if (rc) return rc;
    /* Without a name of its own a writer has that of its host and process, so that logs tell two apart. */
    char writer[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    name_default(writer);
    name_host(host);
    publisher_node_opts_t node = {.adapter = o->adapter,
                                  .kind = p->kind,
                                  .writer = o->writer ? o->writer : writer,
                                  .host = host,
                                  .broker = p->broker,
                                  .takeover = o->takeover != 0,
                                  .is_unread = o->quiet_events != 0,
                                  .max_rate_bytes = o->max_rate_bytes,
                                  .pid = (uint64_t)getpid(),
                                  .changed = on_changed,
                                  .self = p};
    node.is_sharing = true;
    node.host_share = o->host_share;
    node.is_guarded = is_guarded;
    random_bytes(&node.life, sizeof node.life);
    random_bytes(&node.seed, sizeof node.seed);
    rc = publisher_node_new(&node, shell_io(p->shell), &p->node, error);
    if (rc) return rc;
    int fds[PUBLISHER_FDS];
    uint32_t fd_count = publisher_node_fds(p->node, fds);
    for (uint32_t i = 0; !rc && i < fd_count; i++) rc = shell_poll(p->shell, fds[i], error);
    if (rc) return rc;
    rc = shell_start(p->shell, &publisher_node_ops, p->node, error);
    p->is_running = !rc;
    return rc;
}

/* Does not wait for the broker: a trainer can go on loading meanwhile. */
int heddle_publisher_start(const heddle_publisher_opts_t *opts, heddle_publisher_t **ret_publisher)
{
    heddle_error_t error;
    heddle_publisher_opts_t o;
    heddle_publisher_t *p = NULL;
    contexts_t contexts = {.root = NULL};
    if (!ret_publisher) return misuse("heddle_publisher_start", "ret_publisher is NULL");
    int rc = sized_take(&o, sizeof o, opts, "heddle_publisher_opts_t", &error);
    if (!rc) rc = name_check("adapter", o.adapter, &error);
    if (!rc && o.writer) rc = name_check("writer", o.writer, &error);
    if (!rc && !kind_find(o.kind)) rc = kind_refuse(o.kind, &error);
    if (!rc) rc = opening_context(&o.broker, &o.broker_key, &o.key, &contexts, &error);
    if (!rc) rc = start(&o, &p, &error);
    contexts_fini(&contexts);
    if (!rc) {
        *ret_publisher = p;
        return HEDDLE_OK;
    }
    heddle_publisher_close(&p);
    error_where(&error, o.adapter, 0, NULL, NULL);
    return error_publish(&error);
}

int heddle_publisher_opened(heddle_publisher_t *p)
{
    if (!p) return misuse("heddle_publisher_opened", "there is no publisher");
    heddle_error_t error = {0};
    command_t c = {.kind = COMMAND_OPENED, .error = &error};
    int rc = run_until(p, &c, time_until((int)p->timeout_ms));
    if (!rc) return HEDDLE_OK;
    if (rc == HEDDLE_ERR_AGAIN && !error.code) {
        error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "no broker answers at %s", p->broker);
        error_expected(&error, "an answer within %u ms", p->timeout_ms);
        broker_address_unreached(p->broker, shell_untried(p->shell), shell_is_reached(p->shell),
                                 "start one with `heddle broker`, or name it with opts.broker or "
                                 "HEDDLE_BROKER",
                                 &error);
    }
    error_where(&error, p->adapter, 0, NULL, NULL);
    return error_publish(&error);
}

int heddle_publisher_open(const heddle_publisher_opts_t *opts, heddle_publisher_t **ret_publisher)
{
    heddle_publisher_t *p = NULL;
    if (!ret_publisher) return misuse("heddle_publisher_open", "ret_publisher is NULL");
    int rc = heddle_publisher_start(opts, &p);
    if (!rc) rc = heddle_publisher_opened(p);
    if (!rc) {
        *ret_publisher = p;
        return HEDDLE_OK;
    }
    heddle_error_t why = *heddle_last_error(); /* closing may leave another one */
    heddle_publisher_close(&p);
    return error_publish(&why);
}

/* -- a region --------------------------------------------------------------------------------- */

/* A loop that has ended needs no slot back, hence no check. */
static void give_back(heddle_publisher_t *p, int slot)
{
    do_command(p, &(command_t){.kind = COMMAND_GIVE_BACK, .slot = slot});
}

/* Waits for a slot at most for the publisher's timeout, and for its memory until the call's deadline. The
 * error names what keeps the older one. */
static int take_slot(heddle_publisher_t *p, publication_take_t *take, heddle_error_t *error)
{
    uint64_t until_us = time_until((int)p->timeout_ms);
    command_t c = {.kind = COMMAND_TAKE, .error = error, .take = *take};
    bool is_making;
    int rc;
    do {
        rc = run_until(p, &c, time_now() + CHECK_US);
        is_making = rc == HEDDLE_ERR_AGAIN && command_is_making(&c);
        int stopped = is_making ? stop_check(error) : HEDDLE_OK;
        if (stopped) rc = stopped;
    } while (rc == HEDDLE_ERR_AGAIN && (is_making || time_now() < until_us));
    *take = c.take;
    if (rc) {
        do_command(p, &(command_t){.kind = COMMAND_GIVE_UP});
        if (rc != HEDDLE_ERR_AGAIN) return rc;
        error_fail(error, HEDDLE_ERR_NO_SLOT, "every region of the publisher is in use");
        error_expected(error, "the older one free within %u ms", p->timeout_ms);
        error_found(error, "bytes of it still on their way to a worker");
        error_hint(error, "publish again: a worker that stands still is dropped after a while");
        return HEDDLE_ERR_NO_SLOT;
    }
    rc = stop_check(error); /* it may have been waited for */
    if (rc) give_back(p, take->slot);
    return rc;
}

/* -- begin, write and abort ------------------------------------------------------------------- */

/* Takes the pack, also on failure. */
static int open_publication(heddle_publisher_t *p, pack_t *pack, int slot,
                            heddle_publication_t **ret_publication, heddle_error_t *error)
{
    heddle_publication_t *pub = calloc(1, sizeof *pub);
    if (!pub) {
        give_back(p, slot);
        pack_destroy(&pack);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a publication");
    }
    *pub = (heddle_publication_t){.publisher = p, .pack = pack, .slot = slot};
    p->open = *ret_publication = pub;
    return HEDDLE_OK;
}

static int take_pack(heddle_publisher_t *p, const pack_input_t *in, pack_t **ret_pack, heddle_error_t *error)
{
    if (!p->last || !pack_renew(p->last, in)) return pack_new(in, ret_pack, error);
    *ret_pack = p->last;
    p->last = NULL;
    return HEDDLE_OK;
}

/* The table is checked and laid out before a region is taken, so that a mistake costs no memory. */
int heddle_publication_begin(heddle_publisher_t *p, const heddle_tensor_t *tensors, uint32_t count,
                             const void *config, size_t config_bytes, const char *metadata,
                             heddle_publication_t **ret_publication)
{
    static const char CALL[] = "heddle_publication_begin", PT[] = "{\"format\":\"pt\"}";
    heddle_error_t error;
    if (!p || !ret_publication || (count && !tensors) || (config_bytes && !config))
        return misuse(CALL, "a pointer is NULL");
    if (p->open) return misuse(CALL, "another publication is open");
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].size != sizeof *tensors)
            return misuse(CALL, "the size of a row is not sizeof(heddle_tensor_t)");
    if (!metadata) metadata = PT;
    const char *only = p->kind->config; /* NULL: the application's */
    if (only && !config_bytes) config = only, config_bytes = strlen(only);
    pack_input_t in = {.tensors = tensors,
                       .count = count,
                       .kind = p->kind,
                       .config = bytes_of(config, config_bytes),
                       .metadata = bytes_of(metadata, strlen(metadata))};
    pack_t *pack = NULL;
    publication_take_t take = {0};
    patience_t patience;
    uint64_t start_us = time_now();
    int rc = take_pack(p, &in, &pack, &error);
    if (!rc) {
        take.bytes = pack_bytes(pack);
        patience_begin(&patience, p, start_us, p->timeout_ms);
        rc = patience_over(&patience, take_slot(p, &take, &error), &error);
    }
    if (rc == HEDDLE_ERR_DEADLINE) {
        error_fail(&error, rc, "the memory of %s was not made in time", p->adapter);
        error_expected(&error, "%llu bytes within %u ms", (unsigned long long)take.bytes, p->timeout_ms);
        error_found(&error, "not after %llu ms", (unsigned long long)((time_now() - start_us) / 1000));
        error_hint(&error,
                   "a longer opts.timeout_ms gives more time; later publications use the memory again");
    }
    if (!rc) {
        pack_lay(pack, take.region->base);
        rc = open_publication(p, pack, take.slot, ret_publication, &error);
    } else {
        pack_destroy(&pack);
    }
    if (rc) error_where(&error, p->adapter, 0, NULL, "pack");
    return rc ? error_publish(&error) : HEDDLE_OK;
}

void *heddle_publication_tensor(heddle_publication_t *pub, uint32_t index)
{
    return pub ? pack_tensor(pub->pack, index) : NULL;
}

/* NULL: for the calling thread alone.  They are kept for the next version: one that is started for each, and
 * waited for until it has ended, costs most of a second where an engine keeps its core busy. */
static crew_t *helpers_for(heddle_publisher_t *p, uint64_t bytes)
{
    uint32_t count = pack_fill_threads(bytes, p->fill_threads) - 1;
    if (count > p->helper_count) {
        crew_end(&p->crew);
        p->crew = crew_new(count);
        p->helper_count = count;
    }
    return count ? p->crew : NULL;
}

int heddle_publication_write(heddle_publication_t *pub, const void *const *sources)
{
    if (!pub || !sources) return misuse("heddle_publication_write", "a pointer is NULL");
    pack_fill(pub->pack, sources, helpers_for(pub->publisher, pub->pack->layout.payload_bytes));
    return HEDDLE_OK;
}

/* The slot is the node's by now, or was given back. */
static void end(heddle_publication_t *pub)
{
    pack_destroy(&pub->publisher->last);
    pub->publisher->last = pub->pack;
    pub->publisher->open = NULL;
    free(pub);
}

void heddle_publication_abort(heddle_publication_t **pub)
{
    if (!pub || !*pub) return;
    heddle_publication_t *it = *pub;
    *pub = NULL;
    give_back(it->publisher, it->slot);
    end(it);
}

/* -- commit ----------------------------------------------------------------------------------- */

/* The options as this release defines them, checked and with defaults.  Checked before anything is sealed: a
 * refusal by the broker would come after all the work.  The ranges are a table, so that each has the same
 * error. */
static int take_opts(const heddle_publish_opts_t *opts, heddle_publish_opts_t *ret_opts,
                     heddle_error_t *error)
{
    static const char ENUM[] = "take one of the names that heddle/publisher.h has for it";
    int rc = sized_take(ret_opts, sizeof *ret_opts, opts, "heddle_publish_opts_t", error);
    if (!ret_opts->deadline_ms) ret_opts->deadline_ms = DEADLINE_MS;
    const heddle_publish_opts_t *o = ret_opts;
    const struct {
        const char *what;
        int64_t value, least, most;
        const char *hint;
    } CHOICES[] = {{"step", o->step, -1, LIMIT_EXACT, "steps count from 0; -1 says that there is none"},
                   {"activation", o->activation, HEDDLE_ACTIVATION_ALL, HEDDLE_ACTIVATION_MANUAL, ENUM},
                   {"if_unchanged", o->if_unchanged, HEDDLE_UNCHANGED_FAIL, HEDDLE_UNCHANGED_PUBLISH, ENUM}};
    for (size_t i = 0; !rc && i < sizeof CHOICES / sizeof *CHOICES; i++) {
        if (CHOICES[i].value >= CHOICES[i].least && CHOICES[i].value <= CHOICES[i].most) continue;
        rc = error_fail(error, HEDDLE_ERR_USAGE, "the %s is out of range", CHOICES[i].what);
        error_expected(error, "%lld to %lld", (long long)CHOICES[i].least, (long long)CHOICES[i].most);
        error_found(error, "%lld", (long long)CHOICES[i].value);
        error_hint(error, "%s", CHOICES[i].hint);
    }
    if (!rc && o->request_id) rc = name_check("request id", o->request_id, error);
    for (uint32_t i = 0; !rc && o->meta && o->meta[i]; i++) {
        if (i < LIMIT_META) {
            rc = label_check(o->meta[i], error);
            continue;
        }
        rc = error_fail(error, HEDDLE_ERR_LIMIT, "meta has too many pairs");
        error_expected(error, "at most %u", LIMIT_META);
        error_found(error, "more");
        error_hint(error, "put what belongs together into one value");
    }
    return rc;
}

/* What the broker recorded, as the application sees it; the pack is sealed. */
static heddle_published_t published_of(const heddle_publication_t *pub, const publish_request_t *request,
                                       uint64_t sealed_us)
{
    const publish_result_t *r = &request->result;
    uint64_t start_us = request->start_us;
    heddle_published_t published = {.size = sizeof published,
                                    .version = r->version,
                                    .replayed = r->replayed,
                                    .unchanged = r->unchanged,
                                    .created = !r->replayed && !r->unchanged,
                                    .data_bytes = pub->pack->layout.data_bytes,
                                    .tensor_count = pub->pack->layout.count,
                                    .chunk_count = request->sealed->chunk_count,
                                    .pack_ms = (double)(sealed_us - start_us) / 1000.0,
                                    .commit_ms = (double)(r->published_us - start_us) / 1000.0};
    digest_text(&r->digest, published.digest);
    tag_text(pub->publisher->adapter, r->version, &r->digest, published.tag);
    error_text(published.request_id, sizeof published.request_id, request->opts.request_id);
    memcpy(published.features, pub->pack->features, sizeof published.features);
    memcpy(published.held, r->held, sizeof published.held);
    return published;
}

/* Seals, then publishes. The publication is gone after the call, whatever its result: a sealed pack cannot be
 * written again, and its slot belongs to the node then. */
int heddle_publication_commit(heddle_publication_t **publication, const heddle_publish_opts_t *opts,
                              heddle_published_t *ret_published)
{
    heddle_error_t error;
    if (!publication || !*publication) return misuse("heddle_publication_commit", "there is no publication");
    heddle_publication_t *pub = *publication;
    heddle_publisher_t *p = pub->publisher;
    *publication = NULL;
    sealed_t sealed;
    uint64_t start_us = pub->start_us ? pub->start_us : time_now();
    publish_request_t request = {.slot = pub->slot,
                                 .pack = pub->pack,
                                 .sealed = &sealed,
                                 .start_us = start_us};
    int rc = take_opts(opts, &request.opts, &error);
    if (rc) error_where(&error, p->adapter, 0, NULL, "commit");
    if (!rc) {
        /* The seal digests what is not digested yet, which the deadline or an interrupt may end. */
        patience_t patience;
        patience_take(&patience, p, start_us, &request.opts);
        rc = pack_seal(pub->pack, &sealed, &error);
        if (!rc) rc = stop_check(&error);
        rc = patience_over(&patience, rc, &error);
    }
    if (rc) {
        heddle_publication_abort(&pub);
        return error_publish(&error);
    }
    uint64_t sealed_us = time_now();
    request.until_us = start_us + request.opts.deadline_ms * 1000ull;
    /* Without a request id of the caller's a random one, which no other process can have used. */
    char id[40] = "r-";
    uint8_t random[16];
    random_bytes(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++) snprintf(id + 2 + 2 * i, 3, "%02x", random[i]);
    request.is_random_id = !request.opts.request_id;
    if (request.is_random_id) request.opts.request_id = id;
    /* The node owns the slot from here on. The loop's thread sets is_done, and raises the descriptor
     * afterwards. An answer that comes while this call gives up still counts. */
    command_t c = {.kind = COMMAND_PUBLISH, .error = &error, .request = &request};
    int closed = do_command(p, &c);
    while (!closed && !rc && !atomic_load(&request.is_done)) {
        rc = wait_fd(p, p->changed_fd, request.until_us);
        if (!rc) lower_fd(p->changed_fd);
    }
    c.kind = COMMAND_ABANDON;
    if (!closed && rc) closed = do_command(p, &c);
    if (!closed) error = request.error;
    /* Only the shell knows how far the connection came. */
    if (error.code == HEDDLE_ERR_UNAVAILABLE && rc && !error.found[0])
        error_found(&error, "%s",
                    shell_is_reached(p->shell) ? "a connection, but no answer" : "no connection");
    if (error.code && !closed && rc == HEDDLE_ERR_INTERRUPTED) {
        /* The hint says whether the version may be recorded, which an interrupt does not change. */
        heddle_error_t why = error;
        error_fail(&error, rc, "interrupted");
        error_hint(&error, "%s", why.hint);
    }
    if (error.code) {
        error_where(&error, p->adapter, 0, NULL, error.phase[0] ? NULL : "commit");
        end(pub);
        return error_publish(&error);
    }
    heddle_published_t published = published_of(pub, &request, sealed_us);
    end(pub);
    sized_give(ret_published, &published, sizeof published);
    return HEDDLE_OK;
}

/* -- files ------------------------------------------------------------------------------------ */

/* A deadline of 0 stops the reading thread at its next check. */
static void drop_ahead(heddle_publisher_t *p)
{
    reading_t reading = {0};
    memory_region_t *region = NULL;
    heddle_error_t ignored;
    if (!p->ahead) return;
    atomic_store(&p->ahead_patience.deadline_ms, 0);
    reading_join(&p->ahead, &reading, &region, &ignored);
    reading_close(&reading);
    memory_region_destroy(&region);
}

/* What a version is read from: one of the two. */
typedef struct {
    const char *dir;
    const char *const *files;
} origin_t;

/* Reads into a region, unless the directory was read ahead, while the publisher opened, into a region of
 * its own, which then becomes the pool's and the slot's.  What was read ahead counts only if it is this
 * directory and still unchanged; the error that ended it is found again, or no longer there. */
static int read_origin(heddle_publisher_t *p, const origin_t *from, const patience_t *patience,
                       heddle_publication_t **ret_publication, heddle_error_t *error)
{
    reading_t r = {0};
    publication_take_t take = {0};
    bool is_ahead = from->dir && reading_is_of(p->ahead, from->dir);
    if (is_ahead) {
        /* From here on it has the deadline of this call. */
        heddle_error_t ignored;
        uint64_t passed_ms = (patience->start_us - p->ahead_patience.start_us) / 1000;
        uint64_t until_ms = passed_ms + atomic_load(&patience->deadline_ms);
        atomic_store(&p->ahead_patience.deadline_ms, until_ms < UINT_MAX ? (unsigned)until_ms : UINT_MAX);
        is_ahead = !reading_join(&p->ahead, &r, &take.own, &ignored);
    } else {
        drop_ahead(p);
    }
    int rc;
    if (is_ahead) {
        take.bytes = take.own->bytes;
        rc = take_slot(p, &take, error);
        memory_region_destroy(&take.own); /* unless it was taken over */
    } else {
        rc = from->dir ? reading_open(&r, from->dir, error) : reading_open_files(&r, from->files, error);
        if (!rc) take.bytes = pack_bytes(r.pack), rc = take_slot(p, &take, error);
        if (!rc) {
            rc = reading_into(&r, take.region->own, error);
            if (rc) give_back(p, take.slot);
        }
    }
    if (!rc) {
        rc = open_publication(p, r.pack, take.slot, ret_publication, error);
        r.pack = NULL;
    }
    reading_close(&r);
    if (!rc) (*ret_publication)->start_us = patience->start_us;
    return rc;
}

/* A directory is a LoRA, and files are weights: what the publisher was opened for must be the same. */
static int check_origin(const heddle_publisher_t *p, const content_kind_t *kind, heddle_error_t *error)
{
    if (p->kind == kind) return HEDDLE_OK;
    int rc =
        error_fail(error, HEDDLE_ERR_USAGE, "the publisher of %s is of kind %s", p->adapter, p->kind->name);
    error_contrast(error, kind->name, p->kind->name);
    error_hint(error, p->kind == &KIND_LORA ? "a publisher of kind lora publishes a directory of PEFT's"
                                            : "a publisher of kind tensors publishes safetensors files");
    return rc;
}

/* Reading counts against the deadline of the call, so that a slow disk cannot exceed it. */
static int publish_origin(heddle_publisher_t *p, const origin_t *from, const heddle_publish_opts_t *opts,
                          heddle_published_t *ret_published)
{
    heddle_error_t error;
    heddle_publication_t *pub = NULL;
    heddle_publish_opts_t o;
    patience_t patience;
    int rc = check_origin(p, from->dir ? &KIND_LORA : &KIND_TENSORS, &error);
    if (!rc) rc = take_opts(opts, &o, &error);
    if (rc) return error_publish(&error);
    patience_take(&patience, p, time_now(), &o);
    rc = patience_over(&patience, read_origin(p, from, &patience, &pub, &error), &error);
    return rc ? error_publish(&error) : heddle_publication_commit(&pub, opts, ret_published);
}

int heddle_publisher_publish_dir(heddle_publisher_t *p, const char *dir, const heddle_publish_opts_t *opts,
                                 heddle_published_t *ret_published)
{
    if (!p || !dir) return misuse("heddle_publisher_publish_dir", "a pointer is NULL");
    if (p->open) return misuse("heddle_publisher_publish_dir", "another publication is open");
    return publish_origin(p, &(origin_t){.dir = dir}, opts, ret_published);
}

int heddle_publisher_publish_files(heddle_publisher_t *p, const char *const *files,
                                   const heddle_publish_opts_t *opts, heddle_published_t *ret_published)
{
    if (!p || !files) return misuse("heddle_publisher_publish_files", "a pointer is NULL");
    if (p->open) return misuse("heddle_publisher_publish_files", "another publication is open");
    return publish_origin(p, &(origin_t){.files = files}, opts, ret_published);
}

/* -- what became of a version ----------------------------------------------------------------- */

/* The report is filled also where the wait failed: it says how far the version came. On the heap, because a
 * report is 26 KB, and stacks of callers may be small. */
static int look(heddle_publisher_t *p, command_kind_t kind, command_look_t at, int timeout_ms,
                heddle_report_t *ret_report)
{
    heddle_error_t error = {0}, ignored;
    at.waited_ms = timeout_ms > 0 ? (uint32_t)timeout_ms : 0;
    at.report = calloc(1, sizeof *at.report);
    if (!at.report) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a report");
        return error_publish(&error);
    }
    command_t c = {.kind = kind, .error = &error, .look = at};
    int rc = run_until(p, &c, time_until(timeout_ms));
    if (rc == HEDDLE_ERR_AGAIN || rc == HEDDLE_ERR_INTERRUPTED) {
        /* The broker may have reported since, so that it is judged once more; an interrupt stays one. */
        bool is_late = rc == HEDDLE_ERR_AGAIN;
        c.kind = COMMAND_LATE;
        if (!is_late) c.error = &ignored;
        int late = do_command(p, &c);
        if (is_late) rc = late;
        /* Of a version that failed the broker has said so itself. */
        bool is_open = rc == HEDDLE_ERR_DEADLINE || rc == HEDDLE_ERR_NO_WORKERS;
        if (is_open && at.report->silent_ms && strcmp(at.report->state, "failed") != 0)
            error_silent_broker(&error, p->broker, at.report->silent_ms);
    }
    sized_give(ret_report, at.report, sizeof *at.report);
    free(at.report);
    return rc ? error_publish(&error) : HEDDLE_OK;
}

int heddle_publisher_wait(heddle_publisher_t *p, uint64_t version, int phase, heddle_quorum_t quorum,
                          int timeout_ms, heddle_report_t *ret_report)
{
    if (!p) return misuse("heddle_publisher_wait", "there is no publisher");
    if (phase != HEDDLE_PHASE_STAGED && phase != HEDDLE_PHASE_ACTIVE)
        return misuse("heddle_publisher_wait",
                      "the phase is neither HEDDLE_PHASE_STAGED nor HEDDLE_PHASE_ACTIVE");
    if (quorum.kind != HEDDLE_QUORUM_NONE) p->asked_version = version;
    command_look_t at = {.version = version, .want = {.phase = (heddle_phase_t)phase, .quorum = quorum}};
    return look(p, COMMAND_JUDGE, at, timeout_ms, ret_report);
}

int heddle_publisher_report(heddle_publisher_t *p, uint64_t version, heddle_report_t *ret_report)
{
    if (!p) return misuse("heddle_publisher_report", "there is no publisher");
    command_look_t at = {.version = version, .want = {.phase = HEDDLE_PHASE_STAGED}};
    return look(p, COMMAND_REPORT, at, 0, ret_report);
}

/* -- events ----------------------------------------------------------------------------------- */

int heddle_publisher_fd(const heddle_publisher_t *p) { return p ? shell_fd(p->shell) : -1; }

/* The interrupt of the handle ends this wait too, not only that of the shell. */
int heddle_publisher_next_event(heddle_publisher_t *p, int timeout_ms, heddle_event_t *ret_event)
{
    heddle_error_t error;
    heddle_event_t event;
    if (!p) return misuse("heddle_publisher_next_event", "there is no publisher");
    uint64_t until_us = time_until(timeout_ms);
    int rc = shell_next_event(p->shell, 0, &event);
    while (rc == HEDDLE_ERR_AGAIN && (rc = wait_fd(p, shell_fd(p->shell), until_us)) == HEDDLE_OK)
        rc = shell_next_event(p->shell, 0, &event);
    if (rc) {
        error_fail(&error, rc, rc == HEDDLE_ERR_INTERRUPTED ? "interrupted" : "no event of %s came",
                   p->adapter);
        return error_publish(&error);
    }
    sized_give(ret_event, &event, sizeof event);
    return HEDDLE_OK;
}

/* -- close ------------------------------------------------------------------------------------ */

/* A version whose only source is this process ends with it, so that close waits for a worker to take the one
 * that was committed last, unless the publisher was interrupted.  Without a worker that fetches it the broker
 * may still be about to announce it, which it does soon or not at all: a quarter of leave_ms is enough. */
static void wait_elsewhere(heddle_publisher_t *p)
{
    heddle_error_t error = {0};
    command_t c = {.kind = COMMAND_IS_ELSEWHERE, .error = &error, .elsewhere = {.wanted_us = time_now()}};
    uint64_t until_us = time_until((int)p->close_ms), soon_us = p->leave_ms * 1000ull / 4;
    int rc = do_command(p, &c);
    while (rc == HEDDLE_ERR_AGAIN) {
        uint64_t end_us =
            c.elsewhere.is_wanted ? until_us : clock_earlier(c.elsewhere.wanted_us + soon_us, until_us);
        if (time_now() >= end_us) break;
        rc = run_until(p, &c, end_us);
    }
    bool is_lost = rc == HEDDLE_ERR_AGAIN || rc == HEDDLE_ERR_VERSION_FAILED;
    if (is_lost && error.version != p->asked_version)
        log_emit(LOG_WARN, "publisher.unheld", "%s; %s", error.message, error.hint);
}

/* An absent broker or a stopped worker must not hold up the end: leaving takes no longer than leave_ms. */
void heddle_publisher_close(heddle_publisher_t **publisher)
{
    heddle_publisher_t *p = publisher ? *publisher : NULL;
    if (!p) return;
    *publisher = NULL;
    if (shell_is_forked(p->shell)) return;
    drop_ahead(p);
    heddle_publication_abort(&p->open);
    pack_destroy(&p->last);
    crew_end(&p->crew);
    if (p->is_running) {
        if (!is_interrupted(p)) wait_elsewhere(p);
        uint64_t until_us = time_until((int)p->leave_ms);
        lower_fd(p->interrupt_fd); /* meant for the call before: what is bounded needs no interrupting */
        if (do_command(p, &(command_t){.kind = COMMAND_LEAVE}) == HEDDLE_OK)
            run_until(p, &(command_t){.kind = COMMAND_HAS_LEFT}, until_us);
        shell_stop(p->shell);
    }
    publisher_node_destroy(&p->node);
    shell_close(&p->shell);
    if (p->changed_fd >= 0) close(p->changed_fd);
    if (p->interrupt_fd >= 0) close(p->interrupt_fd);
    free(p);
}
