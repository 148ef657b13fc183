/* SPDX-License-Identifier: Apache-2.0 */
#define HASH_NONFATAL_OOM 1
#include "broker/members/membership.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <uthash.h>

/* A fetch at more than this part of a --max-rate is limited by it. */
#define RATE_IS_LIMITED 0.8

/* See traits_of. */
#define TRAIT_TEXT (HEDDLE_NAME_MAX + 32)
struct trait {
    char text[TRAIT_TEXT];
    size_t count;
    UT_hash_handle hh;
};

/* ---- rows ---- */

static void free_texts(char **texts, uint32_t count)
{
    for (uint32_t i = 0; texts && i < count; i++) free(texts[i]);
    free(texts);
}

static void free_member(member_t *m)
{
    if (!m) return;
    free_texts(m->labels, m->label_count);
    free_texts(m->devices, m->device_count);
    free_texts(m->addresses, m->address_count);
    free(m->address);
    free(m->export_dir);
    free(m->host_share);
    free(m->subs);
    free(m);
}

/* NULL only without memory: an empty list has one unused place. */
static char **copy_texts(const char **texts, uint32_t count)
{
    char **copy = calloc(count + 1, sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) {
        copy[i] = strdup(texts[i]);
        if (copy[i]) continue;
        free_texts(copy, i);
        return NULL;
    }
    return copy;
}

void membership_init(membership_t *m, uint64_t lease_us, uint64_t keep)
{
    *m = (membership_t){.lease_us = lease_us, .keep = keep};
}

void membership_fini(membership_t *m)
{
    trait_t *trait, *next;
    HASH_ITER(hh, m->traits, trait, next)
    {
        HASH_DEL(m->traits, trait);
        free(trait);
    }
    free(m->tokens);
    free(m->former);
    for (size_t i = 0; i < m->worker_count; i++) free_member(m->workers[i]);
    for (size_t i = 0; i < m->publisher_count; i++) free_member(m->publishers[i]);
    free_member(m->closed);
    free(m->workers);
    free(m->publishers);
    *m = (membership_t){0};
}

void membership_start(membership_t *m, uint64_t epoch, uint64_t now_us, uint64_t grace_end_us)
{
    m->epoch = epoch;
    m->counter = 0;
    m->tick_us = now_us;
    m->grace_end_us = grace_end_us;
}

void membership_raise_epoch(membership_t *m, uint64_t epoch)
{
    if (epoch <= m->epoch) return;
    m->epoch = epoch;
    m->counter = 0;
}

/* ---- reading ---- */

/* Workers are sorted by their name, publishers by their adapter. */
static const char *key_of(const member_t *m) { return m->role == ROLE_WORKER ? m->name : m->subs[0].adapter; }

static int order_key(const void *row, const void *key) { return strcmp(key_of(row), key); }

static uint64_t token_of(const void *row) { return ((const member_t *)row)->token; }

static int order_former(const void *row, const void *token)
{
    uint64_t a = ((const former_token_t *)row)->token, b = *(const uint64_t *)token;
    return (a > b) - (a < b);
}

member_t *membership_by_token(const membership_t *m, uint64_t token)
{
    return sorted_find_number(m->tokens, m->token_count, token, token_of);
}

const member_t *membership_source(const membership_t *m, uint64_t token)
{
    const member_t *found = membership_by_token(m, token);
    const former_token_t *former = sorted_find(m->former, m->former_count, &token, order_former);
    return found || !former ? found : former->member;
}

member_t *membership_worker(const membership_t *m, const char *name)
{
    return sorted_find(m->workers, m->worker_count, name, order_key);
}

member_t *membership_publisher(const membership_t *m, const char *adapter)
{
    return sorted_find(m->publishers, m->publisher_count, adapter, order_key);
}

member_sub_t *member_sub(const member_t *member, const char *adapter)
{
    for (uint32_t i = 0; i < member->sub_count; i++)
        if (!strcmp(member->subs[i].adapter, adapter)) return &member->subs[i];
    return NULL;
}

const char *member_label(const member_t *member, const char *key)
{
    size_t bytes = strlen(key);
    for (uint32_t i = 0; i < member->label_count; i++)
        if (!strncmp(member->labels[i], key, bytes) && member->labels[i][bytes] == '=')
            return member->labels[i] + bytes + 1;
    return "";
}

bool member_is_ready(const member_t *member)
{
    return member && (member->state == MEMBER_READY || member->state == MEMBER_DRAINING);
}

bool member_is_draining(const member_t *member) { return member && member->state == MEMBER_DRAINING; }

bool member_limits(const member_t *member, uint64_t rate_bytes)
{
    return member && member->max_rate_bytes &&
           (double)rate_bytes > RATE_IS_LIMITED * (double)member->max_rate_bytes;
}

uint64_t member_paced(const member_t *member, uint64_t rate_bytes)
{
    bool is_ahead = member && member->max_rate_bytes && rate_bytes > member->max_rate_bytes;
    return is_ahead ? member->max_rate_bytes : rate_bytes;
}

bool member_subscribes(const member_t *member, const char *adapter)
{
    return member_is_ready(member) && member_sub(member, adapter);
}

uint64_t member_silent_ms(const member_t *member, uint64_t now_us)
{
    return now_us > member->received_us ? (now_us - member->received_us) / 1000 : 0;
}

bool member_is_silent(const membership_t *m, const member_t *member, uint64_t now_us)
{
    return member_silent_ms(member, now_us) * 1000 > m->lease_us / 2;
}

const char *member_state_name(member_state_t state)
{
    static const char *const NAMES[] = {[MEMBER_READY] = "ready",
                                        [MEMBER_DRAINING] = "draining",
                                        [MEMBER_LEFT] = "left",
                                        [MEMBER_LOST] = "lost"};
    return state >= MEMBER_READY && state <= MEMBER_LOST ? NAMES[state] : "unknown";
}

/* ---- queues ---- */

/* When the member leaves its queue, unless something is received from it before. */
static uint64_t queue_end_us(const member_t *m)
{
    return member_is_ready(m) ? m->lease_end_us : m->ended_us + MEMBER_LISTED_US;
}

/* Nearly always the new one ends last, so its place is searched for from the end. */
static void enqueue(member_queue_t *q, member_t *member)
{
    member_t *before = q->last;
    while (before && queue_end_us(before) > queue_end_us(member)) before = before->before;
    member_t *after = before ? before->after : q->first;
    member->before = before;
    member->after = after;
    *(before ? &before->after : &q->first) = member;
    *(after ? &after->before : &q->last) = member;
}

static void dequeue(member_queue_t *q, member_t *member)
{
    *(member->before ? &member->before->after : &q->first) = member->after;
    *(member->after ? &member->after->before : &q->last) = member->before;
    member->before = member->after = NULL;
}

/* ---- traits ---- */

static size_t trait_count(const membership_t *m, const char *text)
{
    trait_t *trait;
    HASH_FIND_STR(m->traits, text, trait);
    return trait ? trait->count : 0;
}

static bool add_trait(membership_t *m, const char *text)
{
    trait_t *trait;
    HASH_FIND_STR(m->traits, text, trait);
    if (!trait) {
        trait = calloc(1, sizeof *trait);
        if (!trait) return false;
        error_text(trait->text, sizeof trait->text, text);
        HASH_ADD_STR(m->traits, text, trait);
        if (!trait->hh.tbl) {
            free(trait);
            return false;
        }
    }
    trait->count++;
    return true;
}

static void drop_trait(membership_t *m, const char *text)
{
    trait_t *trait;
    HASH_FIND_STR(m->traits, text, trait);
    if (!trait || --trait->count) return;
    HASH_DEL(m->traits, trait);
    free(trait);
}

/* What a member must have in common with all others, and its value there: "ucx" and "ucx 1.13.1" for its UCX
 * version, "group tp" and "group tp 4" for how many ranks its group has.  Returns how many texts. */
enum { TRAITS_MAX = 4 };
static size_t traits_of(const char *ucx, const char *group, uint64_t ranks, char ret[TRAITS_MAX][TRAIT_TEXT])
{
    size_t count = 0;
    if (ucx) {
        error_text(ret[count++], TRAIT_TEXT, "ucx");
        text_printf(ret[count++], TRAIT_TEXT, "ucx %s", ucx);
    }
    if (group && *group) {
        text_printf(ret[count++], TRAIT_TEXT, "group %s", group);
        text_printf(ret[count++], TRAIT_TEXT, "group %s %llu", group, (unsigned long long)ranks);
    }
    return count;
}

static size_t member_traits(const member_t *m, char ret[TRAITS_MAX][TRAIT_TEXT])
{
    return traits_of(strcmp(m->backend, "ucx") ? NULL : m->ucx, m->group, m->ranks, ret);
}

/* All READY members have the one value, apart from the session that the new one replaces (NULL: none).  A
 * JOIN costs the same however many workers there are; only a refusal looks for a member to name. */
static bool all_agree(const membership_t *m, char trait[2][TRAIT_TEXT], const member_t *replaced)
{
    size_t all = trait_count(m, trait[0]), same = trait_count(m, trait[1]);
    char own[TRAITS_MAX][TRAIT_TEXT];
    size_t own_count = member_is_ready(replaced) ? member_traits(replaced, own) : 0;
    for (size_t i = 0; i < own_count; i++) {
        all -= !strcmp(own[i], trait[0]);
        same -= !strcmp(own[i], trait[1]);
    }
    return all == same;
}

/* ---- checks of JOIN and OPEN ---- */

/* A worker without adapters would hold a lease for nothing, and one that names an adapter twice would be
 * counted twice by each rollout. */
static int check_subscriptions(const msg_join_t *join, heddle_error_t *error)
{
    if (!join->adapter_count || join->adapter_count > LIMIT_ADAPTERS_PER_WORKER) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "worker %s subscribes to %u adapters", join->name,
                            join->adapter_count);
        error_expected(error, "1 to %u", LIMIT_ADAPTERS_PER_WORKER);
        error_hint(error, "subscribe to 1 to %u adapters", LIMIT_ADAPTERS_PER_WORKER);
        return rc;
    }
    for (uint32_t i = 0; i < join->adapter_count; i++) {
        int rc = name_check("adapter", join->adapters[i].adapter, error);
        if (rc) return rc;
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(join->adapters[i].adapter, join->adapters[k].adapter))
                return error_fail(error, HEDDLE_ERR_USAGE, "worker %s subscribes to %s twice", join->name,
                                  join->adapters[i].adapter);
    }
    return HEDDLE_OK;
}

/* With too few slots a worker could never have the active version, the arriving one and the kept ones at
 * the same time. */
static int check_slots(const membership_t *m, const msg_join_t *join, heddle_error_t *error)
{
    uint64_t need = 2 + m->keep;
    if (!join->slots || join->slots >= need) return HEDDLE_OK;
    int rc = error_fail(
        error, HEDDLE_ERR_TOO_FEW_SLOTS, "worker %s has %llu slot%s for each adapter, %llu are needed",
        join->name, (unsigned long long)join->slots, join->slots == 1 ? "" : "s", (unsigned long long)need);
    error_where(error, NULL, 0, join->name, NULL);
    error_expected(error, "%llu or more: the active version, the arriving one, and %llu kept",
                   (unsigned long long)need, (unsigned long long)m->keep);
    error_found(error, "%llu", (unsigned long long)join->slots);
    error_hint(error, "set opts.slots to %llu, or start the broker with a smaller --keep",
               (unsigned long long)need);
    return rc;
}

static const member_t *other_ucx(member_t *const *rows, size_t count, const char *ucx, const member_t *but)
{
    for (size_t i = 0; i < count; i++) {
        const member_t *m = rows[i];
        if (m != but && member_is_ready(m) && !strcmp(m->backend, "ucx") && strcmp(m->ucx, ucx)) return m;
    }
    return NULL;
}

/* UCX processes of different versions cannot talk to each other, and may crash when they try: the second
 * version is refused before that.  `replaced`: the session that the new one replaces; NULL: none. */
static int check_ucx(const membership_t *m, const char *backend, const char *ucx, const char *name,
                     const member_t *replaced, heddle_error_t *error)
{
    char traits[TRAITS_MAX][TRAIT_TEXT];
    if (!backend || strcmp(backend, "ucx") != 0) return HEDDLE_OK;
    if (!ucx) ucx = "";
    traits_of(ucx, NULL, 0, traits);
    if (all_agree(m, traits, replaced)) return HEDDLE_OK;
    const member_t *other = other_ucx(m->workers, m->worker_count, ucx, replaced);
    if (!other) other = other_ucx(m->publishers, m->publisher_count, ucx, replaced);
    int rc = error_fail(error, HEDDLE_ERR_UCX_VERSION, "%s has UCX %s, %s has UCX %s", name, ucx, other->name,
                        other->ucx);
    error_contrast(error, other->ucx, ucx);
    error_hint(error, "install the same UCX version on all hosts of the cluster");
    return rc;
}

/* Two live processes with one name would fence each other for ever, so the second one is refused. */
static int worker_alive(const member_t *holder, uint64_t now_us, heddle_error_t *error)
{
    int rc =
        error_fail(error, HEDDLE_ERR_WORKER_ALIVE,
                   "worker %s is alive on %s, pid %llu, last message %llu ms ago", holder->name, holder->host,
                   (unsigned long long)holder->pid, (unsigned long long)member_silent_ms(holder, now_us));
    error_where(error, NULL, 0, holder->name, NULL);
    error_contrast(error, "a name that no live worker has", holder->name);
    error_hint(error, "choose another opts.name, or end that worker; opts.join_timeout_ms bounds this wait");
    error->retriable = 1;
    return rc;
}

/* All workers of a group must be started with the same number of ranks. */
static int check_ranks(const membership_t *m, const msg_join_t *join, const member_t *replaced,
                       heddle_error_t *error)
{
    char traits[TRAITS_MAX][TRAIT_TEXT];
    if (!traits_of(NULL, join->group, join->ranks, traits)) return HEDDLE_OK; /* in no group */
    if (all_agree(m, traits, replaced)) return HEDDLE_OK;
    for (size_t i = 0; i < m->worker_count; i++) {
        const member_t *other = m->workers[i];
        bool differs = other != replaced && member_is_ready(other) && !strcmp(other->group, join->group) &&
                       other->ranks != join->ranks;
        if (!differs) continue;
        int rc =
            error_fail(error, HEDDLE_ERR_USAGE, "worker %s joins group %s of %llu ranks, %s one of %u",
                       join->name, join->group, (unsigned long long)join->ranks, other->name, other->ranks);
        error_where(error, NULL, 0, join->name, NULL);
        error_expected(error, "%u ranks", other->ranks);
        error_found(error, "%llu", (unsigned long long)join->ranks);
        error_hint(error, "start each worker of a group with the same number of ranks");
        return rc;
    }
    return HEDDLE_OK;
}

int membership_decide_join(const membership_t *m, const msg_join_t *join, const member_hello_t *hello,
                           uint64_t now_us, uint64_t *ret_retry_ms, heddle_error_t *error)
{
    int rc = name_check("worker", join->name, error);
    for (uint32_t i = 0; !rc && i < join->label_count; i++) rc = label_check(join->labels[i], error);
    if (!rc) rc = group_check(join->group, join->rank, join->ranks, error);
    if (!rc) rc = check_subscriptions(join, error);
    if (!rc) rc = check_slots(m, join, error);
    if (rc) return rc;
    const member_t *holder = membership_worker(m, join->name);
    rc = check_ucx(m, join->backend, join->ucx, join->name, holder, error);
    if (!rc) rc = check_ranks(m, join, holder, error);
    if (rc) return rc;
    if (!holder && m->worker_count >= LIMIT_PEERS)
        return error_fail(error, HEDDLE_ERR_LIMIT,
                          "worker %s cannot join: %u workers are here, which is the limit", join->name,
                          LIMIT_PEERS);
    bool is_other = member_is_ready(holder) && memcmp(&holder->life, &hello->life, sizeof hello->life) != 0;
    if (!is_other || holder->is_gone || now_us - holder->received_us >= m->lease_us / 2) return HEDDLE_OK;
    *ret_retry_ms = m->lease_us / 4000;
    return worker_alive(holder, now_us, error);
}

int membership_decide_open(const membership_t *m, const msg_open_t *open, heddle_error_t *error)
{
    int rc = name_check("adapter", open->adapter, error);
    if (!rc) rc = name_check("writer", open->writer, error);
    if (rc) return rc;
    const member_t *replaced = membership_publisher(m, open->adapter);
    return check_ucx(m, open->backend, open->ucx, open->writer, replaced, error);
}

/* ---- coming in ---- */

bool membership_gave(const membership_t *m, uint64_t token)
{
    uint64_t epoch = token >> 32, counter = token & UINT32_MAX;
    return counter && (epoch < m->epoch || (epoch == m->epoch && counter <= m->counter));
}

uint64_t membership_next_token(membership_t *m) { return m->epoch << 32 | ++m->counter; }

static member_t *new_member(const membership_t *m, role_t role, const char *name, const member_hello_t *hello,
                            instant_t now)
{
    member_t *member = calloc(1, sizeof *member);
    if (!member) return NULL;
    *member = (member_t){.peer = hello->peer,
                         .role = role,
                         .state = MEMBER_READY,
                         .life = hello->life,
                         .pid = hello->pid,
                         .joined_ms = now.wall_ms,
                         .joined_us = now.us,
                         .came = now,
                         .received_us = now.us,
                         .lease_end_us = now.us + m->lease_us};
    error_text(member->name, sizeof member->name, name);
    error_text(member->host, sizeof member->host, hello->host ? hello->host : "");
    return member;
}

static bool add_subs(member_t *member, const msg_subscription_t *subs, uint32_t count)
{
    member->subs = calloc(count, sizeof *member->subs);
    if (!member->subs) return false;
    member->sub_count = count;
    for (uint32_t i = 0; i < count; i++) {
        member->subs[i] = (member_sub_t){.held_count = 0};
        serving_restated(&member->subs[i].serving, subs[i].decision, subs[i].version);
        error_text(member->subs[i].adapter, sizeof member->subs[i].adapter, subs[i].adapter);
    }
    return true;
}

void member_addresses(const member_t *m, char *ret_text, size_t size)
{
    buf_t text = {0};
    for (uint32_t i = 0; i < m->address_count; i++) buf_printf(&text, "%s%s", i ? ", " : "", m->addresses[i]);
    error_text(ret_text, size, buf_text(&text));
    buf_fini(&text);
}

/* Notes the former addresses where a new session of the same process has others. */
static void compare_addresses(member_t *now, const member_t *before)
{
    char old[sizeof now->moved_from], new[sizeof now->moved_from];
    if (memcmp(&now->life, &before->life, sizeof now->life) != 0) return;
    member_addresses(before, old, sizeof old);
    member_addresses(now, new, sizeof new);
    if (old[0] && new[0] && strcmp(old, new) != 0) memcpy(now->moved_from, old, sizeof old);
}

/* True where the member can be reached on loopback alone.  A member that sent no address counts as
 * reachable. */
static bool is_on_loopback(const member_t *m)
{
    bool is = m->address_count > 0;
    for (uint32_t i = 0; i < m->address_count; i++)
        is = is && (!strncmp(m->addresses[i], "127.", 4) || !strcmp(m->addresses[i], "::1"));
    return is;
}

size_t membership_cut_off(const membership_t *m, const member_t *publisher)
{
    size_t count = 0;
    if (!publisher->network || !is_on_loopback(publisher)) return 0;
    for (size_t i = 0; i < m->worker_count; i++) {
        const member_t *w = m->workers[i];
        if (!member_subscribes(w, publisher->subs[0].adapter)) continue;
        /* A worker of its place holds its memory, and needs no network.  UCX reaches a loopback address only
         * from loopback, and only on the same host (`network`).  A worker that did not tell where it is may
         * reach it. */
        bool is_unknown = !w->network || !w->address_count;
        bool can_hold = w->place && w->place == publisher->place;
        if (can_hold || is_unknown || (w->network == publisher->network && is_on_loopback(w))) return 0;
        count++;
    }
    return count;
}

static bool set_transport(member_t *member, const char *backend, const char *ucx, bytes_t address)
{
    error_text(member->backend, sizeof member->backend, backend ? backend : "");
    error_text(member->ucx, sizeof member->ucx, ucx ? ucx : "");
    member->address = malloc(address.bytes + 1);
    if (!member->address) return false;
    if (address.bytes) memcpy(member->address, address.data, address.bytes);
    member->address_bytes = address.bytes;
    return true;
}

static void set_former(member_t *member, uint64_t prev_token, const uint64_t *tokens, uint32_t count)
{
    if (!prev_token) return;
    member->former[member->former_count++] = (former_token_t){prev_token, member};
    for (uint32_t i = 0; i < count; i++)
        member->former[member->former_count++] = (former_token_t){tokens[i], member};
}

/* A new worker's row, complete and not yet in any list.  NULL: no memory. */
static member_t *worker_of(const membership_t *m, const msg_join_t *join, const member_hello_t *hello,
                           instant_t now)
{
    member_t *w = new_member(m, ROLE_WORKER, join->name, hello, now);
    if (!w) return NULL;
    w->slots = join->slots ? join->slots : 2 + m->keep;
    w->counts = join->counts;
    w->max_rate_bytes = join->max_rate_bytes;
    w->no_relay = join->no_relay;
    w->labels = copy_texts(join->labels, join->label_count);
    w->label_count = w->labels ? join->label_count : 0;
    w->devices = copy_texts(join->devices, join->device_count);
    w->device_count = w->devices ? join->device_count : 0;
    w->addresses = copy_texts(join->addresses, join->address_count);
    w->address_count = w->addresses ? join->address_count : 0;
    w->network = join->network;
    w->place = join->place;
    error_text(w->unheld, sizeof w->unheld, join->unheld ? join->unheld : "");
    set_former(w, join->prev_token, join->former_tokens, join->former_count);
    error_text(w->group, sizeof w->group, join->group ? join->group : "");
    w->rank = (uint32_t)join->rank;
    w->ranks = (uint32_t)join->ranks;
    w->export_dir = strdup(join->export_dir ? join->export_dir : "");
    w->host_share = strdup(join->host_share ? join->host_share : "");
    if (w->labels && w->devices && w->addresses && w->export_dir && w->host_share &&
        add_subs(w, join->adapters, join->adapter_count) &&
        set_transport(w, join->backend, join->ucx, join->address))
        return w;
    free_member(w);
    return NULL;
}

/* The member is READY from now on: it is found by its token, has a lease, and its traits count.  False: no
 * memory, nothing changed. */
static bool add_ready(membership_t *m, member_t *member, uint64_t now_us)
{
    char traits[TRAITS_MAX][TRAIT_TEXT];
    size_t count = member_traits(member, traits), added = 0;
    if (!sorted_grow(&m->tokens, m->token_count, &m->token_capacity)) return false;
    while (m->former_capacity < m->former_count + member->former_count)
        if (!sorted_grow(&m->former, m->former_capacity, &m->former_capacity)) return false;
    while (added < count && add_trait(m, traits[added])) added++;
    if (added < count) {
        while (added-- > 0) drop_trait(m, traits[added]);
        return false;
    }
    if (!m->token_count) m->tick_us = now_us; /* without members no tick was due */
    bool found;
    size_t at = sorted_place_number(m->tokens, m->token_count, member->token, token_of, &found);
    sorted_insert(m->tokens, &m->token_count, at, member);
    /* These tokens are what the member says of itself.  Of several that name the same, the first one has
     * it. */
    for (uint32_t i = 0; i < member->former_count; i++) {
        at = sorted_place(m->former, m->former_count, &member->former[i].token, order_former, &found);
        if (!found) sorted_insert(m->former, &m->former_count, at, &member->former[i]);
    }
    enqueue(&m->leases, member);
    return true;
}

static void drop_ready(membership_t *m, member_t *member)
{
    char traits[TRAITS_MAX][TRAIT_TEXT];
    for (size_t i = member_traits(member, traits); i-- > 0;) drop_trait(m, traits[i]);
    dequeue(&m->leases, member);
    bool found;
    size_t at = sorted_place_number(m->tokens, m->token_count, member->token, token_of, &found);
    sorted_remove(m->tokens, &m->token_count, at);
    for (uint32_t i = 0; i < member->former_count; i++) {
        at = sorted_place(m->former, m->former_count, &member->former[i].token, order_former, &found);
        if (found && m->former[at] == &member->former[i]) sorted_remove(m->former, &m->former_count, at);
    }
}

/* The former session of the process knew since when it serves what JOIN says. */
static void keep_since(member_t *now, const member_t *before)
{
    if (memcmp(&now->life, &before->life, sizeof now->life) != 0) return;
    if (member_is_ready(before)) now->came = before->came;
    for (uint32_t i = 0; i < now->sub_count; i++) {
        const member_sub_t *was = member_sub(before, now->subs[i].adapter);
        if (was) serving_renewed(&now->subs[i].serving, &was->serving, member_is_ready(before));
    }
}

/* Counters only grow.  A peer that does not send one sends 0, which changes nothing. */
static void count_up(uint64_t *counter, uint64_t reported)
{
    if (reported > *counter) *counter = reported;
}

/* Did the process of the old session go on, so that this session had to be ended under it?  One that took no
 * leave and has lost its connection was killed, as a rule, and the new one is its restart: it counts when a
 * message of the process comes again.  The count goes on in a session that follows at once, or is of the same
 * process; a name that had become free begins at 0. */
static void count_fences(member_t *w, const member_t *old)
{
    bool is_same_life = !memcmp(&old->life, &w->life, sizeof w->life), is_ready = member_is_ready(old);
    bool went_on = is_ready ? !is_same_life && !old->is_gone : old->state == MEMBER_LOST && is_same_life;
    bool is_unreported =
        is_ready ? !is_same_life && old->is_gone : old->state == MEMBER_LOST && !is_same_life;
    if (is_ready || is_same_life) w->counts.fenced = old->counts.fenced + went_on;
    else w->counts.fenced = 0;
    w->ended_token = is_unreported ? old->token : is_ready ? old->ended_token : 0;
}

bool membership_note_rival(member_t *worker, uint64_t token)
{
    if (!worker->ended_token || worker->ended_token != token) return false;
    worker->ended_token = 0;
    worker->counts.fenced++;
    return true;
}

/* The new session is READY.  The one that was READY under its name until now ends; it is fenced if it was of
 * another process.  NO_MEMORY: the new row is freed, and nothing changed. */
static int admit(membership_t *m, member_t *new, uint64_t token, instant_t now, admitted_t *ret)
{
    bool is_worker = new->role == ROLE_WORKER, found;
    member_t ***rows = is_worker ? &m->workers : &m->publishers;
    size_t *count = is_worker ? &m->worker_count : &m->publisher_count;
    size_t *capacity = is_worker ? &m->worker_capacity : &m->publisher_capacity;
    new->token = token;
    if (!sorted_grow(rows, *count, capacity) || !add_ready(m, new, now.us)) {
        free_member(new);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *ret = (admitted_t){.member = new};
    size_t at = sorted_place(*rows, *count, key_of(new), order_key, &found);
    if (!found) {
        sorted_insert(*rows, count, at, new);
        return HEDDLE_OK;
    }
    member_t *old = (*rows)[at];
    if (is_worker) count_fences(new, old), keep_since(new, old);
    bool is_same_life = !memcmp(&old->life, &new->life, sizeof old->life);
    if (is_same_life) new->trust = old->trust;
    if (is_same_life) new->drain_undone = old->drain_undone;
    if (is_same_life && old->drain_ms) { /* also where it was lost meanwhile */
        new->state = MEMBER_DRAINING;
        new->drain_ms = old->drain_ms;
    }
    compare_addresses(new, old);
    if (member_is_ready(old)) {
        drop_ready(m, old);
        ret->replaced_peer = old->peer;
        ret->replaced_token = old->token;
        ret->is_fenced = !is_same_life;
        ret->was_gone = old->is_gone;
    } else {
        dequeue(&m->ended, old);
        m->ended_count--;
    }
    free_member(old);
    (*rows)[at] = new;
    return HEDDLE_OK;
}

int membership_join(membership_t *m, const msg_join_t *join, const member_hello_t *hello, instant_t now,
                    admitted_t *ret)
{
    member_t *w = worker_of(m, join, hello, now);
    int rc = w ? admit(m, w, membership_next_token(m), now, ret) : HEDDLE_ERR_NO_MEMORY;
    if (!rc) count_up(&w->counts.fenced, join->counts.fenced);
    return rc;
}

/* A publisher is a member with one subscription, its adapter: so leases, tokens and fences need no second
 * form. */
static member_t *publisher_of(const membership_t *m, const msg_open_t *open, const member_hello_t *hello,
                              instant_t now)
{
    member_t *p = new_member(m, ROLE_PUBLISHER, open->writer, hello, now);
    if (!p) return NULL;
    msg_subscription_t own = {.adapter = open->adapter};
    p->export_dir = strdup("");
    p->host_share = strdup("");
    p->addresses = copy_texts(open->addresses, open->address_count);
    p->address_count = p->addresses ? open->address_count : 0;
    p->network = open->network;
    p->place = open->place;
    p->max_rate_bytes = open->max_rate_bytes;
    set_former(p, open->prev_token, open->former_tokens, open->former_count);
    if (p->export_dir && p->host_share && p->addresses && add_subs(p, &own, 1) &&
        set_transport(p, open->backend, open->ucx, open->address))
        return p;
    free_member(p);
    return NULL;
}

int membership_open(membership_t *m, const msg_open_t *open, const member_hello_t *hello, uint64_t token,
                    instant_t now, admitted_t *ret)
{
    member_t *p = publisher_of(m, open, hello, now);
    return p ? admit(m, p, token, now, ret) : HEDDLE_ERR_NO_MEMORY;
}

/* ---- being here ---- */

/* The member moves to the end of the queue of leases, because its lease now ends last. */
void membership_received(membership_t *m, member_t *member, uint64_t now_us)
{
    dequeue(&m->leases, member);
    member->received_us = now_us;
    member->lease_end_us = now_us + m->lease_us;
    member->is_gone = false;
    enqueue(&m->leases, member);
}

/* Heartbeats come four to a lease.  After a time in which the broker or the link stood still, several come at
 * once, and their bytes took the whole of that time. */
static void note_rate(const membership_t *m, member_sub_t *sub, const msg_progress_t *p, uint64_t now_us)
{
    uint64_t least_us = m->lease_us / 16;
    bool goes_on = p->fetching && p->fetching == sub->fetching && sub->beat_us;
    sub->rate_bytes = 0;
    if (!goes_on) sub->from_us = 0;
    if (!goes_on) return;
    if (!sub->from_us || now_us - sub->beat_us >= least_us) {
        sub->from_us = sub->beat_us;
        sub->from_bytes = sub->bytes_done;
    }
    uint64_t took_us = now_us - sub->from_us;
    if (took_us >= least_us && p->bytes_done > sub->from_bytes)
        sub->rate_bytes = (p->bytes_done - sub->from_bytes) * 1000000 / took_us;
}

void membership_heartbeat(membership_t *m, member_t *member, const msg_heartbeat_t *hb, uint64_t now_us)
{
    membership_received(m, member, now_us);
    member->beat_seq = hb->seq;
    if (member->role != ROLE_WORKER) return;
    for (uint32_t i = 0; i < hb->adapter_count; i++) {
        const msg_progress_t *p = &hb->adapters[i];
        member_sub_t *sub = member_sub(member, p->adapter);
        if (!sub) continue;
        note_rate(m, sub, p, now_us);
        sub->beat_us = p->fetching ? now_us : 0;
        sub->fetching = p->fetching;
        sub->bytes_done = p->bytes_done;
        sub->data_bytes = p->data_bytes;
        sub->source = p->source;
        sub->held_count = p->held_count;
    }
    uint64_t fenced = member->counts.fenced; /* the broker counts it too */
    member->counts = hb->counts;
    count_up(&member->counts.fenced, fenced);
    error_text(member->unheld, sizeof member->unheld, hb->unheld ? hb->unheld : "");
}

bool membership_drain(member_t *member, instant_t now)
{
    if (member->state != MEMBER_READY) return false;
    member->state = MEMBER_DRAINING;
    member->drain_ms = now.wall_ms;
    member->drain_undone = false;
    return true;
}

bool membership_hear_drain(member_t *member, bool draining, bool own_wish)
{
    member->own_wish = draining && own_wish;
    return draining && (own_wish || !member->drain_undone);
}

bool membership_undrain(member_t *member, int *ret_code, heddle_error_t *error)
{
    const char *why = member->own_wish              ? "it leaves by its own wish, as at a signal"
                      : member->drain == DRAIN_DONE ? "others have what it had, and it leaves now"
                                                    : NULL;
    if (!member_is_ready(member)) why = "it has left, or was lost";
    *ret_code = HEDDLE_OK;
    if (member->state == MEMBER_READY) return false;
    if (why) {
        *ret_code = error_fail(error, HEDDLE_ERR_REQUEST_CONFLICT, "the drain of %s cannot be taken back: %s",
                               member->name, why);
        error_where(error, NULL, 0, member->name, NULL);
        error_expected(error, "a worker that an operator drains");
        error_found(error, "%s", why);
        error_hint(error, "start another worker in its place");
        return false;
    }
    member->state = MEMBER_READY;
    member->drain_ms = 0;
    member->drain = DRAIN_NONE;
    member->drain_undone = true;
    return true;
}

static void stop_fetching(member_sub_t *sub)
{
    sub->fetching = sub->bytes_done = sub->data_bytes = sub->source = 0;
    sub->beat_us = sub->rate_bytes = sub->from_us = 0;
}

void member_clear_fetch(member_t *member, const char *adapter, uint64_t version)
{
    member_sub_t *sub = member_sub(member, adapter);
    if (sub && sub->fetching == version) stop_fetching(sub);
}

void membership_staged(member_t *member, const msg_staged_t *m)
{
    member_clear_fetch(member, m->adapter, m->version);
    count_up(&member->counts.bytes_in, m->bytes_in);
    count_up(&member->counts.bytes_out, m->bytes_out);
    count_up(&member->counts.chunks_bad, m->chunks_bad);
    count_up(&member->counts.retries, m->retries);
}

/* ---- going ---- */

/* A publisher's row lives on until the next one ends: what follows from its end is read from it. */
static void end_row(membership_t *m, member_t *member, member_end_t end, instant_t now)
{
    static const struct {
        member_state_t state;
        int code;
        const char *why;
    } ENDS[] = {
        [END_LEFT] = {MEMBER_LEFT, HEDDLE_OK, ""},
        [END_LAPSED] = {MEMBER_LOST, HEDDLE_ERR_UNAVAILABLE, "its lease ended: no message for %llu ms"},
        [END_SHUT_OUT] = {MEMBER_LOST, HEDDLE_ERR_DENIED, "its key was revoked"},
        [END_NOT_RETURNED] = {MEMBER_LOST, HEDDLE_ERR_UNAVAILABLE,
                              "did not return after the broker's restart"},
    };
    member->state = ENDS[end].state;
    member->end_code = ENDS[end].code;
    text_printf(member->end_message, sizeof member->end_message, ENDS[end].why,
                (unsigned long long)member_silent_ms(member, now.us));
    member->ended_us = now.us;
    member->ended_ms = now.wall_ms;
    if (member->role == ROLE_PUBLISHER) {
        free_member(m->closed);
        m->closed = member;
    } else {
        enqueue(&m->ended, member);
        m->ended_count++;
    }
}

void membership_end(membership_t *m, member_t *member, member_end_t end, instant_t now)
{
    bool found;
    if (member->trust.is_unmet) {
        /* It had ended already, perhaps, when others did not reach it: what these reach is open again. */
        for (size_t i = 0; i < m->worker_count; i++) m->workers[i]->trust.cut_off_ms = 0;
    }
    drop_ready(m, member);
    if (member->role == ROLE_PUBLISHER) {
        size_t at = sorted_place(m->publishers, m->publisher_count, key_of(member), order_key, &found);
        sorted_remove(m->publishers, &m->publisher_count, at);
    }
    for (uint32_t i = 0; i < member->sub_count; i++) stop_fetching(&member->subs[i]);
    end_row(m, member, end, now);
}

member_t *membership_add_lost(membership_t *m, const msg_join_t *past, const member_hello_t *hello,
                              instant_t now)
{
    bool found;
    size_t at = sorted_place(m->workers, m->worker_count, past->name, order_key, &found);
    if (found || m->worker_count >= LIMIT_PEERS) return NULL;
    member_t *w = worker_of(m, past, hello, now);
    if (!w || !sorted_grow(&m->workers, m->worker_count, &m->worker_capacity)) {
        free_member(w);
        return NULL;
    }
    sorted_insert(m->workers, &m->worker_count, at, w);
    end_row(m, w, END_NOT_RETURNED, now);
    return w;
}

/* At the last tick there was grace left. */
static bool has_grace(const membership_t *m) { return m->tick_us < m->grace_end_us; }

void membership_give_grace(membership_t *m, uint64_t now_us)
{
    if (m->token_count && now_us + m->lease_us > m->grace_end_us) m->grace_end_us = now_us + m->lease_us;
}

/* If this tick is late, the broker itself may have been stopped, and JOINs and heartbeats wait unread.  So
 * that time does not count as grace, and after a long one no lease ends before members have had a lease of
 * time. */
void membership_tick(membership_t *m, instant_t now)
{
    uint64_t due_us = m->tick_us + m->lease_us / 4;
    uint64_t late_us = m->tick_us && now.us > due_us ? now.us - due_us : 0;
    if (has_grace(m)) m->grace_end_us += late_us;
    if (late_us > m->lease_us / 2) membership_give_grace(m, now.us);
    m->tick_us = now.us;
    member_t *oldest;
    while ((oldest = m->ended.first) != NULL) {
        if (m->ended_count <= MEMBER_ENDED_MAX && queue_end_us(oldest) > now.us) break;
        bool found;
        size_t at = sorted_place(m->workers, m->worker_count, oldest->name, order_key, &found);
        sorted_remove(m->workers, &m->worker_count, at);
        dequeue(&m->ended, oldest);
        m->ended_count--;
        free_member(oldest);
    }
}

member_t *membership_lapsed(const membership_t *m, uint64_t now_us)
{
    member_t *first = m->leases.first;
    return now_us >= m->grace_end_us && first && first->lease_end_us <= now_us ? first : NULL;
}

uint64_t membership_deadline(const membership_t *m)
{
    uint64_t next = m->ended.first ? queue_end_us(m->ended.first) : CLOCK_NEVER;
    if (!m->leases.first && !has_grace(m)) return next;
    uint64_t lease = m->leases.first ? m->leases.first->lease_end_us : 0;
    if (lease < m->grace_end_us) lease = m->grace_end_us;
    return clock_earlier(clock_earlier(lease, m->tick_us + m->lease_us / 4), next);
}
