/* SPDX-License-Identifier: Apache-2.0 */
/* Findings first, each with its level; that of all is the worst of them, and the line is made of both. */
#include "cli/verdict.h"

#include "core/bytes.h"
#include "core/clock.h"
#include "core/listing.h"
#include "core/units.h"

#include <stdbool.h>
#include <string.h>

static const char *const LEVELS[] = {"ok", "warning", "critical", "unknown"};

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int64_t number_of(const json_t *object, const char *key)
{
    return (int64_t)json_number_value(json_object_get(object, key));
}

/* ---- findings ---- */

typedef struct {
    const json_t *status;
    const verdict_limits_t *limits;
    json_t *findings;
    verdict_t level;
} judged_t;

static void add(judged_t *c, verdict_t level, const char *name, const char *adapter, const char *worker,
                const char *message)
{
    json_array_append_new(c->findings,
                          json_pack("{s:s, s:s, s:s?, s:s?, s:s}", "level", LEVELS[level], "name", name,
                                    "adapter", adapter, "worker", worker, "message", message ? message : ""));
    if (level > c->level) c->level = level;
}

/* Service has stopped, or is wrong: no version comes, none can be published, or what is served has gone
 * bad. */
static bool is_critical(const char *reason)
{
    static const char *const CRITICAL[] = {"version.lost", "broker.read_only", "store.unanswered",
                                           "worker.damaged"};
    for (size_t i = 0; i < sizeof CRITICAL / sizeof *CRITICAL; i++)
        if (!strcmp(reason, CRITICAL[i])) return true;
    return false;
}

/* Of one adapter: its own, and those of the broker.  Which adapters a lost worker had is in no reason, so it
 * counts for each. */
static void add_reasons(judged_t *c)
{
    const json_t *reasons = json_object_get(c->status, "reasons");
    if (!json_is_array(reasons))
        add(c, VERDICT_UNKNOWN, "broker.release", NULL, NULL,
            "this broker is of an earlier release, and gives no reasons");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const json_t *r = json_array_get(reasons, i);
        const char *name = text_of(r, "name"), *adapter = text_of(r, "adapter");
        bool is_other = c->limits->adapter && adapter && strcmp(adapter, c->limits->adapter) != 0;
        if (name && !is_other)
            add(c, is_critical(name) ? VERDICT_CRITICAL : VERDICT_WARNING, name, adapter,
                text_of(r, "worker"), text_of(r, "message"));
    }
}

/* By the broker's clock, which made both times. */
static int64_t age_ms(const judged_t *c, const json_t *adapter)
{
    const char *now = text_of(json_object_get(c->status, "broker"), "now_at"),
               *since = text_of(json_object_get(adapter, "active"), "since_at");
    uint64_t now_ms, since_ms;
    if (!now || !since || !clock_parse(now, &now_ms) || !clock_parse(since, &since_ms)) return -1;
    return now_ms > since_ms ? (int64_t)(now_ms - since_ms) : 0;
}

static void check_lag(judged_t *c, const json_t *a, const char *name)
{
    char text[256];
    int64_t lag = number_of(a, "max_lag");
    if (c->limits->max_lag < 0 || lag <= c->limits->max_lag) return;
    text_printf(text, sizeof text, "%.128s: a worker is %lld version%s behind, of %lld at most", name,
                (long long)lag, lag == 1 ? "" : "s", (long long)c->limits->max_lag);
    add(c, VERDICT_CRITICAL, "limit.lag", name, NULL, text);
}

static void check_age(judged_t *c, const json_t *a, const char *name)
{
    char text[256], is[16], most[16];
    int64_t age = age_ms(c, a);
    if (c->limits->max_age_ms < 0 || (age >= 0 && age <= c->limits->max_age_ms)) return;
    units_ms_text((double)age, is);
    units_ms_text((double)c->limits->max_age_ms, most);
    if (age < 0) text_printf(text, sizeof text, "%.128s: no version is active", name);
    else
        text_printf(text, sizeof text, "%.128s: its version was activated %s ago, of %s at most", name, is,
                    most);
    add(c, VERDICT_CRITICAL, "limit.age", name, NULL, text);
}

static void check_workers(judged_t *c, int64_t ready)
{
    char text[256];
    const char *name = c->limits->adapter;
    if (ready >= c->limits->min_workers) return;
    text_printf(text, sizeof text, "%.128s%s%lld worker%s ready, of %lld at least", name ? name : "",
                name ? ": " : "", (long long)ready, ready == 1 ? " is" : "s are",
                (long long)c->limits->min_workers);
    add(c, VERDICT_CRITICAL, "limit.workers", name, NULL, text);
}

/* ---- the answer ---- */

json_t *verdict_of(const json_t *status, const verdict_limits_t *limits)
{
    judged_t c = {.status = status, .limits = limits, .findings = json_array()};
    const json_t *list = json_object_get(status, "adapters");
    int64_t ready = limits->adapter ? 0 : number_of(json_object_get(status, "count"), "workers_ready");
    int64_t lag = 0, oldest = -1;
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i);
        const char *name = text_of(a, "name");
        if (!name || (limits->adapter && strcmp(name, limits->adapter) != 0)) continue;
        count++;
        if (limits->adapter) ready = number_of(a, "subscriber_count");
        if (number_of(a, "max_lag") > lag) lag = number_of(a, "max_lag");
        if (age_ms(&c, a) > oldest) oldest = age_ms(&c, a);
        check_lag(&c, a, name);
        check_age(&c, a, name);
    }
    if (limits->adapter && !count) {
        char text[256];
        text_printf(text, sizeof text, "there is no adapter \"%.128s\"", limits->adapter);
        add(&c, VERDICT_CRITICAL, "adapter.unknown", limits->adapter, NULL, text);
    } else check_workers(&c, ready);
    add_reasons(&c);
    return json_pack("{s:s, s:s, s:b, s:s, s:s?, s:I, s:I, s:I, s:o, s:o}", "schema", "heddle/1", "kind",
                     "check", "ok", c.level == VERDICT_OK, "status", LEVELS[c.level], "adapter",
                     limits->adapter, "adapter_count", (json_int_t)count, "workers_ready", (json_int_t)ready,
                     "max_lag", (json_int_t)lag, "age_ms",
                     oldest < 0 ? json_null() : json_integer((json_int_t)oldest), "findings", c.findings);
}

verdict_t verdict_level(const json_t *check)
{
    const char *status = text_of(check, "status");
    for (int i = VERDICT_OK; i <= VERDICT_CRITICAL; i++)
        if (status && !strcmp(status, LEVELS[i])) return (verdict_t)i;
    return VERDICT_UNKNOWN;
}

void verdict_text(const json_t *check, char *ret_text, size_t size)
{
    enum { SHOWN = 3 };
    listing_t list = {.text = ret_text, .size = size, .most = SHOWN, .between = "; "};
    const json_t *findings = json_object_get(check, "findings");
    for (int level = VERDICT_UNKNOWN; level > VERDICT_OK; level--)
        for (size_t i = 0; i < json_array_size(findings); i++) {
            const json_t *f = json_array_get(findings, i);
            if (!strcmp(text_of(f, "level"), LEVELS[level]))
                listing_add(&list, "%.300s", text_of(f, "message"));
        }
    if (json_array_size(findings)) listing_text(&list);
    else {
        long long ready = (long long)number_of(check, "workers_ready"),
                  adapters = (long long)number_of(check, "adapter_count");
        text_printf(ret_text, size, "%lld worker%s ready, %lld adapter%s", ready, ready == 1 ? "" : "s",
                    adapters, adapters == 1 ? "" : "s");
    }
}

/* A limit as a range of Nagios: "2:" alerts below 2, "3" above 3, and "" never. */
static const char *range(int64_t limit, double unit, const char *end, char scratch[32])
{
    scratch[0] = 0;
    if (limit >= 0) text_printf(scratch, 32, "%.10g%s", (double)limit / unit, end);
    return scratch;
}

void verdict_line(const json_t *check, const verdict_limits_t *limits, char *ret_line, size_t size)
{
    static const char *const WORDS[] = {"OK", "WARNING", "CRITICAL", "UNKNOWN"};
    char text[1100], age[64] = "", s[3][32];
    const json_t *oldest = json_object_get(check, "age_ms");
    verdict_text(check, text, sizeof text);
    /* What follows a bar is performance data, and what follows a line is of no plugin. */
    for (char *c = text; *c; c++)
        if (*c == '|' || *c == '\n') *c = '/';
    if (json_is_number(oldest))
        text_printf(age, sizeof age, " age=%.3fs;;%s;0", json_number_value(oldest) / 1000,
                    range(limits->max_age_ms, 1000, "", s[2]));
    text_printf(ret_line, size, "HEDDLE %s - %s | workers=%lld;;%s;0 lag=%lld;;%s;0%s",
                WORDS[verdict_level(check)], text, (long long)number_of(check, "workers_ready"),
                range(limits->min_workers, 1, ":", s[0]), (long long)number_of(check, "max_lag"),
                range(limits->max_lag, 1, "", s[1]), age);
}
