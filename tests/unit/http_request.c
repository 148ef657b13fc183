/* SPDX-License-Identifier: Apache-2.0 */
/* Requests from outside: what is taken, and what each other one is refused with. */
#include "core/limits.h"
#include "http/request.h"

#include <criterion/criterion.h>
#include <string.h>

static int parse(const char *target, request_t *ret, heddle_error_t *error)
{
    memset(error, 0, sizeof *error);
    return request_parse("GET", target, ret, error);
}

Test(request, each_address_is_a_question)
{
    static const struct {
        const char *target;
        request_kind_t kind;
        const char *op, *name, *worker;
        uint64_t version, after, epoch, limit;
    } ROWS[] = {
        {"/livez", REQUEST_LIVEZ, "", "", "", 0, 0, 0, 0},
        {"/readyz", REQUEST_READYZ, "", "", "", 0, 0, 0, 0},
        {"/metrics", REQUEST_METRICS, "", "", "", 0, 0, 0, 0},
        {"/", REQUEST_ASSET, "", "", "", 0, 0, 0, 0},
        {"/page/script.js", REQUEST_ASSET, "", "", "", 0, 0, 0, 0},
        {"/readyz?", REQUEST_READYZ, "", "", "", 0, 0, 0, 0},
        {"/api/v1/status", REQUEST_API, "status", "", "", 0, 0, 0, 0},
        {"/api/v1/adapters", REQUEST_API, "adapters", "", "", 0, 0, 0, 0},
        {"/api/v1/versions/policy", REQUEST_API, "versions", "policy", "", 0, 0, 0, 0},
        {"/api/v1/versions/policy@3", REQUEST_API, "versions", "policy", "", 3, 0, 0, 0},
        {"/api/v1/versions/policy%403", REQUEST_API, "versions", "policy", "", 3, 0, 0, 0},
        {"/api/v1/versions/policy@3:3f9a1c20d4e1", REQUEST_API, "versions", "policy", "", 3, 0, 0, 0},
        {"/api/v1/workers", REQUEST_API, "workers", "", "", 0, 0, 0, 0},
        {"/api/v1/workers/", REQUEST_API, "workers", "", "", 0, 0, 0, 0},
        {"/api/v1/workers/%77%31", REQUEST_API, "workers", "w1", "", 0, 0, 0, 0},
        {"/api/v1/events", REQUEST_API, "events", "", "", 0, 0, 0, 500},
        {"/api/v1/events?&after=7&epoch=2&limit=3&", REQUEST_API, "events", "", "", 0, 7, 2, 3},
        {"/api/v1/versions/policy?after=7", REQUEST_API, "versions", "policy", "", 0, 7, 0, 0},
        {"/api/v1/events?limit=500", REQUEST_API, "events", "", "", 0, 0, 0, 500},
        {"/api/v1/events?adapter=p&worker=w", REQUEST_API, "events", "p", "w", 0, 0, 0, 500},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        request_t r = {0};
        msg_query_t q;
        heddle_error_t error;
        cr_assert_eq(parse(ROWS[i].target, &r, &error), 200, "%s: %s", ROWS[i].target, error.message);
        cr_expect_eq(r.kind, ROWS[i].kind, "%s", ROWS[i].target);
        if (r.kind != REQUEST_API) continue;
        request_query(&r, &q);
        cr_expect_str_eq(q.op, ROWS[i].op);
        cr_expect_str_eq(q.name, ROWS[i].name, "%s", ROWS[i].target);
        cr_expect_str_eq(q.worker, ROWS[i].worker, "%s", ROWS[i].target);
        cr_expect(q.version == ROWS[i].version && q.after == ROWS[i].after && q.epoch == ROWS[i].epoch &&
                      q.limit == ROWS[i].limit,
                  "%s", ROWS[i].target);
    }
}

Test(request, everything_else_is_refused_with_words)
{
    static const struct {
        const char *target;
        int status;
    } ROWS[] = {{"", 404},
                {"//", 404},
                {"/?x", 400},
                {"/page", 404},
                {"/page/", 404},
                {"/page/script.js/", 404},
                {"/page/../livez", 404},
                {"*", 404},
                {"livez", 404},
                {"/livezz", 404},
                {"/livez/x", 404},
                {"/LIVEZ", 404},
                {"http://127.0.0.1/livez", 404},
                {"/api/v1/../v1/status", 404},
                {"/api/v1/keys", 404},
                {"/api/v1/versions", 404},
                {"/api/v1/versions/", 404},
                {"/api/v1/versions/policy/3", 400},
                {"/api/v1/versions/policy@x", 400},
                {"/api/v1/versions/policy@9007199254740993", 404},
                {"/api/v1/workers/-w", 400},
                {"/api/v1/workers/%", 404},
                {"/api/v1/workers/%7", 404},
                {"/api/v1/workers/%7g", 404},
                {"/api/v1/workers/w%00", 404},
                {"/api/v1/workers/w%0a", 404},
                {"/api/v1/workers/%c3%a4", 400},
                {"/api/v1/status?x", 400},
                {"/livez?after=1", 400},
                {"/api/v1/versions/policy?limit=1", 400},
                {"/api/v1/versions/policy?after=x", 400},
                {"/api/v1/versions/policy@3?after=1", 400},
                {"/api/v1/events?limit=0", 400},
                {"/api/v1/events?limit=501", 400},
                {"/api/v1/events?limit=x", 400},
                {"/api/v1/events?limit=3&limit=3", 400},
                {"/api/v1/events?after=1&epoch=2&%61fter=3", 400},
                {"/api/v1/events?worker=w&adapter=p&worker=v", 400},
                {"/api/v1/versions/policy?after=1&after=2", 400},
                {"/api/v1/events?after", 400},
                {"/api/v1/events?after=", 400},
                {"/api/v1/events?after=-1", 400},
                {"/api/v1/events?after=+1", 400},
                {"/api/v1/events?after=0x1", 400},
                {"/api/v1/events?after=9007199254740992", 400},
                {"/api/v1/events?after=18446744073709551617", 400},
                {"/api/v1/events?epoch=4294967296", 400},
                {"/api/v1/events?worker=", 400},
                {"/api/v1/events?worker=a%26b", 400},
                {"/api/v1/events?wait_ms=1", 400},
                {"/api/v1/events?after=%", 400}};
    request_t r;
    heddle_error_t error;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        cr_expect_eq(parse(ROWS[i].target, &r, &error), ROWS[i].status, "%s", ROWS[i].target);
        cr_expect(error.code && error.message[0], "%s", ROWS[i].target);
    }
}

Test(request, a_stream_goes_on_after_its_last_event)
{
    static const struct {
        const char *id;
        uint64_t epoch, after;
    } ROWS[] = {{"3-17", 3, 18},
                {"0-0", 0, 1},
                {"3-9007199254740990", 3, 9007199254740991},
                /* none */
                {"", 9, 7},
                {"3", 9, 7},
                {"-", 9, 7},
                {"3-", 9, 7},
                {"-17", 9, 7},
                {"3-17x", 9, 7},
                {"3--1", 9, 7},
                {"3-9007199254740991", 9, 7},
                {"4294967296-1", 9, 7},
                {"33333333333333333333333333333333333333333333333333-1", 9, 7}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        request_t r = {.epoch = 9, .after = 7};
        request_resume(&r, ROWS[i].id);
        cr_expect(r.epoch == ROWS[i].epoch && r.after == ROWS[i].after, "%s", ROWS[i].id);
    }
}

Test(request, lengths_are_bounded)
{
    static char target[REQUEST_TARGET_MAX + 64];
    request_t r;
    heddle_error_t error;
    char *end = stpcpy(target, "/api/v1/workers/");
    memset(end, 'w', HEDDLE_NAME_MAX);
    cr_expect_eq(parse(target, &r, &error), 200);
    end[HEDDLE_NAME_MAX] = 'w';
    cr_expect_eq(parse(target, &r, &error), 400, "a name has 128");
    memset(end, 'w', sizeof target - 64);
    cr_expect_eq(parse(target, &r, &error), 400, "no target is longer");
    end = stpcpy(target, "/api/v1/events?worker=");
    memset(end, 'w', 1000);
    end[1000] = 0;
    cr_expect_eq(parse(target, &r, &error), 400);
}

Test(request, only_reads_are_taken)
{
    static const char *const METHODS[] = {"POST", "PUT", "DELETE", "get", "", "GETS", "CONNECT", "TRACE"};
    request_t r;
    heddle_error_t error;
    cr_expect_eq(request_parse("HEAD", "/livez", &r, &error), 200);
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++)
        cr_expect_eq(request_parse(METHODS[i], "/livez", &r, &error), 405, "%s", METHODS[i]);
}

Test(request, an_answer_has_the_status_of_its_code)
{
    cr_expect_eq(request_status(HEDDLE_OK), 200);
    cr_expect_eq(request_status(HEDDLE_ERR_USAGE), 400);
    cr_expect_eq(request_status(HEDDLE_ERR_DENIED), 401);
    cr_expect_eq(request_status(HEDDLE_ERR_NOT_FOUND), 404);
    cr_expect_eq(request_status(HEDDLE_ERR_NO_MEMORY), 503);
    cr_expect_eq(request_status(HEDDLE_ERR_DEADLINE), 504);
    cr_expect_eq(request_status(HEDDLE_ERR_INTERNAL), 500);
}

Test(request, only_an_address_is_local)
{
    static const char *const GOOD[] = {"127.0.0.1", "127.0.0.1:9700", "localhost",  "localhost:1",
                                       "[::1]",     "[::1]:9700",     "10.0.0.7:80"};
    static const char *const BAD[] = {"",
                                      ":9700",
                                      "evil.example",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil",
                                      "127.0.0.1:80.evil",
                                      "[evil]",
                                      "[",
                                      "[]",
                                      "[::1",
                                      "[::1].evil",
                                      "[::1]evil:9700",
                                      "[::1]:9700.evil",
                                      "x127.0.0.1",
                                      "localhosts",
                                      "localhost:evil"};
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        cr_expect(request_is_of_address(GOOD[i]), "%s", GOOD[i]);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        cr_expect_not(request_is_of_address(BAD[i]), "%s", BAD[i]);
}
