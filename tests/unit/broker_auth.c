/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys without a broker: roles, what each may send, adding, revoking, bounds. */
#include "broker/keys/auth.h"
#include "core/errors.h"
#include "core/limits.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static auth_t table;
static outbox_t out;
static heddle_error_t e;
static instant_t now = {.us = 1, .wall_ms = 1000};

static void fini(void)
{
    auth_fini(&table);
    outbox_fini(&out);
}
TestSuite(auth, .fini = fini);

/* Forty characters, the number first. */
static const char *key_of(unsigned n)
{
    static char keys[8][HEDDLE_KEY_TEXT];
    static int at;
    at = (at + 1) % 8;
    snprintf(keys[at], HEDDLE_KEY_TEXT, "%05uaaaaaaaaaabbbbbbbbbbccccccccccddddd", n);
    return keys[at];
}

/* As the broker does it: the records are applied once they are on disk. */
static void commit(void)
{
    for (int i = 0; i < out.record_count; i++) cr_assert_eq(auth_apply(&table, &out.records[i]), HEDDLE_OK);
    outbox_clear(&out);
}
static int add_as(const char *key, const char *name, const char *roles, bool *ret_changed)
{
    const char *list[LIMIT_ROLES + 1];
    char text[8192], *rest = text, *one;
    key_ask_t ask = {.public_key = key, .name = name, .roles = list};
    snprintf(text, sizeof text, "%s", roles);
    while ((one = strsep(&rest, ",")) && ask.role_count <= LIMIT_ROLES) list[ask.role_count++] = one;
    int rc = auth_decide_add(&table, &ask, now, &out, ret_changed, &e);
    if (rc) outbox_clear(&out);
    else commit();
    return rc;
}
static const auth_key_t *add(unsigned n, const char *name, const char *roles)
{
    bool changed = false;
    cr_assert_eq(add_as(key_of(n), name, roles, &changed), HEDDLE_OK, "%s", e.message);
    cr_assert(changed);
    return auth_key(&table, key_of(n));
}
static int revoke(const char *what, bool *ret_changed)
{
    const auth_key_t *k;
    int rc = auth_decide_revoke(&table, what, now, &out, &k, ret_changed, &e);
    if (rc) outbox_clear(&out);
    else commit();
    return rc;
}

/* ---- roles ---- */

Test(auth, roles_are_read_as_they_are_written)
{
    grant_t g;
    cr_assert(grant_parse("admin", &g, &e) == 0 && g.role == AUTH_ADMIN && !g.adapter[0]);
    cr_assert(grant_parse("worker:policy", &g, &e) == 0 && g.role == AUTH_WORKER &&
              !strcmp(g.adapter, "policy"));
    cr_assert(grant_parse("publisher:*", &g, &e) == 0 && g.role == AUTH_PUBLISHER && !strcmp(g.adapter, "*"));
    static const char *const BAD[] = {
        "", "root", "admin:policy", "reader:", "worker", "publisher", "Worker:policy", ":", "admi"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        cr_assert_eq(grant_parse(BAD[i], &g, &e), HEDDLE_ERR_USAGE, "%s", BAD[i]);
    cr_assert_eq(grant_parse("worker:", &g, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(grant_parse("worker:a b", &g, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(grant_parse("worker:**", &g, &e), HEDDLE_ERR_BAD_NAME);
}

/* ---- the matrix ---- */

/* clang-format off */
/* Roles across: which of them may send each message, '+' or '-'. */
static const char *const ROLES[] = {"admin", "reader", "publisher:policy", "worker:policy", "publisher:critic", "worker:critic",
                                    "publisher:*", "worker:*", "reader,worker:policy,publisher:critic"};
static msg_subscription_t policy_and_critic[] = {{.adapter = "policy"}, {.adapter = "critic"}};
static msg_held_t holds_critic[] = {{.adapter = "critic", .version = 1, .state = HELD_KEPT}};
#define QUERY(op_) {.type = MSG_QUERY, .query = {.op = op_, .name = "policy"}}
static const struct { const char *may; msg_t m; } ROWS[] = {
    {"+--+-+-++", {.type = MSG_HELLO, .hello = {.role = ROLE_WORKER}}},
    {"+-+-+-+-+", {.type = MSG_HELLO, .hello = {.role = ROLE_PUBLISHER}}},
    {"+++++++++", {.type = MSG_HELLO, .hello = {.role = ROLE_ADMIN}}},
    {"+--+---++", {.type = MSG_JOIN, .join = {.name = "w", .adapters = policy_and_critic, .adapter_count = 1}}},
    {"+------+-", {.type = MSG_JOIN, .join = {.name = "w", .adapters = policy_and_critic, .adapter_count = 2}}},
    {"+------+-", {.type = MSG_JOIN, .join = {.name = "w", .adapters = policy_and_critic, .adapter_count = 1, .held = holds_critic, .held_count = 1}}},
    {"+-+---+--", {.type = MSG_OPEN, .open = {.adapter = "policy"}}},
    {"+---+-+-+", {.type = MSG_OPEN, .open = {.adapter = "critic"}}},
    {"+-+---+--", {.type = MSG_PUBLISH, .publish = {.adapter = "policy"}}},
    {"+--+---++", {.type = MSG_STAGED, .staged = {.adapter = "policy"}}},
    {"+--+---++", {.type = MSG_ACTIVE, .active = {.adapter = "policy"}}},
    {"+--+---++", {.type = MSG_NACK, .nack = {.adapter = "policy"}}},
    {"+--+---++", {.type = MSG_NEED_SOURCES, .need_sources = {.adapter = "policy"}}},
    {"+----+-+-", {.type = MSG_VERIFIED, .verified = {.adapter = "critic"}}},
    {"+++++++++", {.type = MSG_HEARTBEAT, .heartbeat = {.token = 1}}},
    {"+++++++++", {.type = MSG_LEAVE, .leave = {.token = 1}}},
    {"+++++++++", QUERY("status")},
    {"+++++++++", QUERY("adapters")},
    {"+++++++++", QUERY("versions")},
    {"+++++++++", QUERY("workers")},
    {"+++++++++", QUERY("events")},
    {"+++++++++", QUERY("wait")},
    {"+++++++++", QUERY("verify")},
    {"+--+---++", QUERY("pull")},
    {"+-+++++++", QUERY("reach")},
    {"+--------", QUERY("activate")},
    {"+--------", QUERY("rollback")},
    {"+--------", QUERY("resume")},
    {"+--------", QUERY("forget")},
    {"+--------", QUERY("keys")},
    {"+--------", QUERY("key_add")},
    {"+--------", QUERY("key_revoke")},
    {"+--------", QUERY("drain")},
    {"+--------", QUERY("drain_cancel")},
    {"+--------", QUERY("key_revoke_entered")},
};
/* clang-format on */

/* In the words of who was refused, not in those of the wire. */
Test(auth, a_refusal_says_what_may_not_be_done)
{
    static const struct {
        msg_t m;
        const char *told;
    } TOLD[] = {{QUERY("activate"), "may not activate versions: it needs the role admin"},
                {QUERY("rollback"), "may not roll back: it needs the role admin"},
                {QUERY("resume"), "may not end a hold: it needs the role admin"},
                {QUERY("forget"), "may not forget adapters: it needs the role admin"},
                {QUERY("pull"), "may not pull: it needs the role worker:policy"},
                {QUERY("reach"), "may not get the addresses of workers: it needs the role worker:ADAPTER"},
                {QUERY("keys"), "may not list keys: it needs the role admin"},
                {QUERY("key_add"), "may not add keys: it needs the role admin"},
                {QUERY("key_revoke"), "may not revoke keys: it needs the role admin"},
                {QUERY("drain_cancel"), "may not drain workers: it needs the role admin"},
                {{.type = MSG_OPEN, .open = {.adapter = "policy"}},
                 "may not publish: it needs the role publisher:policy"},
                {{.type = MSG_HELLO, .hello = {.role = ROLE_WORKER}},
                 "may not be a worker: it needs the role worker:ADAPTER"}};
    const auth_key_t *reader = add(0, "", "reader");
    for (size_t i = 0; i < sizeof TOLD / sizeof *TOLD; i++) {
        cr_assert_eq(auth_check(reader, &TOLD[i].m, &e), HEDDLE_ERR_DENIED);
        cr_assert(strstr(e.message, TOLD[i].told), "%s", e.message);
        cr_assert(strstr(e.hint, "`heddle keys add '00000aaaaaaaaaabbbbbbbbbbccccccccccddddd' --role "), "%s",
                  e.hint);
    }
}

Test(auth, matrix_of_roles_and_messages)
{
    enum { ROLE_COUNT = sizeof ROLES / sizeof *ROLES };
    const auth_key_t *keys[ROLE_COUNT];
    for (unsigned i = 0; i < ROLE_COUNT; i++) keys[i] = add(i, "", ROLES[i]);
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
        for (unsigned i = 0; i < ROLE_COUNT; i++) {
            int rc = auth_check(keys[i], &ROWS[r].m, &e);
            cr_assert_eq(rc, ROWS[r].may[i] == '+' ? HEDDLE_OK : HEDDLE_ERR_DENIED, "row %zu (%s), %s: %d", r,
                         msg_name((int)ROWS[r].m.type), ROLES[i], rc);
            if (rc)
                cr_assert(strstr(e.message, keys[i]->name) && e.expected[0] && !strcmp(e.found, ROLES[i]));
        }
}

/* ---- adding ---- */

Test(auth, a_key_is_added_once)
{
    bool changed = true;
    const auth_key_t *k = add(1, "trainer", "publisher:policy,reader,reader");
    cr_assert(auth_is_live(k) && k->grant_count == 2 && k->added_ms == 1000);
    cr_assert_str_eq(k->roles, "publisher:policy,reader");
    cr_assert_eq(add_as(key_of(1), "", "publisher:policy,reader", &changed), HEDDLE_OK);
    cr_assert(!changed, "it is there just so");
    cr_assert_eq(add_as(key_of(1), "other", "publisher:policy,reader", &changed),
                 HEDDLE_ERR_REQUEST_CONFLICT);
    cr_assert_str_eq(e.hint,
                     "without opts.name the roles are added to it; for another name, revoke it first: "
                     "`heddle keys revoke trainer`");
    cr_assert_eq(add_as(key_of(2), "trainer", "reader", &changed), HEDDLE_ERR_REQUEST_CONFLICT,
                 "the name is taken");
    cr_assert(strstr(e.hint, "another name"), "%s", e.hint);
    cr_assert_eq(HASH_COUNT(table.keys), 1);
    cr_assert_str_eq(add(3, "", "reader")->name, "key-00003aaa");
}

Test(auth, roles_of_a_live_key_are_only_added)
{
    bool changed = false;
    const auth_key_t *k = add(1, "node2", "worker:policy,reader");
    now.wall_ms += 5000;
    k = add(1, "node2", "publisher:policy,reader,worker:critic");
    cr_assert_str_eq(k->roles, "worker:policy,reader,publisher:policy,worker:critic");
    cr_assert(k->added_ms == 1000 && k->grant_count == 4, "it is the same key");
    cr_assert_eq(add_as(key_of(1), "", "publisher:policy,worker:critic", &changed), HEDDLE_OK);
    cr_assert(!changed, "a command may be repeated, and takes nothing away");
    char many[1024] = "worker:a0";
    for (unsigned i = 1; i < LIMIT_ROLES; i++) sprintf(many + strlen(many), ",worker:a%u", i);
    cr_assert_eq(add_as(key_of(1), "", many, &changed), HEDDLE_ERR_LIMIT);
    cr_assert(strstr(e.message, "node2") && strstr(e.message, "36"), "%s", e.message);
    cr_assert_str_eq(auth_key(&table, key_of(1))->roles, k->roles);
}

Test(auth, what_is_no_key_or_role_is_refused)
{
    bool changed;
    cr_assert_eq(add_as("short", "", "reader", &changed), HEDDLE_ERR_USAGE);
    cr_assert_eq(add_as("                                        ", "", "reader", &changed),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(add_as(key_of(1), "a b", "reader", &changed), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(add_as(key_of(1), "", "reader,boss", &changed), HEDDLE_ERR_USAGE);
    key_ask_t none = {.public_key = key_of(1), .name = ""};
    cr_assert_eq(auth_decide_add(&table, &none, now, &out, &changed, &e), HEDDLE_ERR_USAGE);
    char many[1024] = "reader";
    for (unsigned i = 0; i < LIMIT_ROLES; i++) sprintf(many + strlen(many), ",worker:a%u", i);
    cr_assert_eq(add_as(key_of(1), "", many, &changed), HEDDLE_ERR_USAGE);
    cr_assert_null(table.keys);
}

/* ---- revoking ---- */

Test(auth, a_revoked_key_may_be_added_again)
{
    bool changed;
    add(0, "root", "admin");
    const auth_key_t *k = add(1, "w", "worker:policy");
    cr_assert_eq(revoke("w", &changed), HEDDLE_OK);
    k = auth_key(&table, key_of(1));
    cr_assert(changed && k && !auth_is_live(k) && k->revoked_ms == 1000 && k->added_ms == 1000);
    cr_assert_eq(revoke(key_of(1), &changed), HEDDLE_OK);
    cr_assert(!changed);
    cr_assert_eq(revoke("nobody", &changed), HEDDLE_ERR_NOT_FOUND);
    k = add(1, "w", "reader");
    cr_assert(auth_is_live(k) && !strcmp(k->roles, "reader"));
}

Test(auth, a_revoked_key_keeps_its_name)
{
    bool changed;
    add(0, "root", "admin");
    add(1, "node7", "worker:policy");
    cr_assert_eq(revoke("node7", &changed), HEDDLE_OK);
    cr_assert_str_eq(add(1, "", "reader")->name, "node7");
    cr_assert_eq(revoke("node7", &changed), HEDDLE_OK);
    add(2, "node7", "reader");
    cr_assert_str_eq(add(1, "", "reader")->name, "key-00001aaa", "another key has its name now");
    cr_assert_eq(revoke(key_of(1), &changed), HEDDLE_OK);
    cr_assert_str_eq(add(1, "other", "reader")->name, "other");
}

Test(auth, the_command_that_admits_a_key_is_whole)
{
    char command[AUTH_COMMAND];
    auth_write_add(add(1, "node7", "worker:policy,reader"), key_of(1), command);
    cr_assert_str_eq(command, "heddle keys add '00001aaaaaaaaaabbbbbbbbbbccccccccccddddd' --name node7 "
                              "--role worker:policy --role reader");
    auth_write_add(NULL, key_of(2), command);
    cr_assert_str_eq(command, "heddle keys add '00002aaaaaaaaaabbbbbbbbbbccccccccccddddd' --role ROLE");
    char many[1024] = "worker:a0";
    for (unsigned i = 1; i < LIMIT_ROLES; i++) sprintf(many + strlen(many), ",worker:a%u", i);
    auth_write_add(add(3, "n", many), key_of(3), command);
    cr_assert_str_eq(command,
                     "heddle keys add '00003aaaaaaaaaabbbbbbbbbbccccccccccddddd' --name n --role ROLE",
                     "more than a hint has room for");
}

Test(auth, the_last_admin_stays)
{
    bool changed;
    add(1, "one", "admin");
    add(2, "two", "reader,admin");
    cr_assert_eq(auth_admin_count(&table), 2);
    cr_assert_eq(revoke("one", &changed), HEDDLE_OK);
    cr_assert_eq(revoke("two", &changed), HEDDLE_ERR_DENIED);
    cr_assert(auth_is_live(auth_named(&table, "two")));
    cr_assert_eq(revoke("one", &changed), HEDDLE_OK, "it was before");
}

Test(auth, a_name_means_the_live_key)
{
    bool changed;
    add(0, "root", "admin");
    add(1, "w", "worker:policy");
    cr_assert_eq(revoke("w", &changed), HEDDLE_OK);
    now.wall_ms++;
    add(2, "w", "worker:policy");
    cr_assert_str_eq(auth_named(&table, "w")->public_key, key_of(2));
    cr_assert_eq(revoke("w", &changed), HEDDLE_OK);
    cr_assert_str_eq(auth_named(&table, "w")->public_key, key_of(2), "the one revoked last");
    cr_assert_str_eq(auth_named(&table, key_of(1))->public_key, key_of(1));
}

/* ---- bounds ---- */

Test(auth, the_key_revoked_longest_ago_makes_room)
{
    bool changed;
    char name[32];
    add(0, "root", "admin");
    for (unsigned i = 1; i < LIMIT_KEYS; i++) {
        snprintf(name, sizeof name, "n%u", i);
        add(i, name, "reader");
    }
    cr_assert_eq(add_as(key_of(5000), "x", "reader", &changed), HEDDLE_ERR_LIMIT);
    cr_assert_eq(revoke("n7", &changed), HEDDLE_OK);
    now.wall_ms++;
    cr_assert_eq(revoke("n3", &changed), HEDDLE_OK);
    add(5000, "x", "reader");
    cr_assert_null(auth_key(&table, key_of(7)));
    cr_assert_not_null(auth_key(&table, key_of(3)));
    cr_assert_eq(HASH_COUNT(table.keys), LIMIT_KEYS);
    add(3, "again", "reader"); /* it has its place */
    cr_assert_eq(HASH_COUNT(table.keys), LIMIT_KEYS);
}

/* A start with --admin-key would let it in again. */
Test(auth, a_revoked_admin_is_remembered_for_longer_than_the_others)
{
    bool changed;
    char name[32];
    add(0, "root", "admin");
    add(1, "ops", "admin");
    cr_assert_eq(revoke("ops", &changed), HEDDLE_OK);
    for (unsigned i = 2; i < 2 * LIMIT_KEYS; i++) {
        snprintf(name, sizeof name, "n%u", i);
        add(i, name, "worker:policy");
        now.wall_ms++;
        cr_assert_eq(revoke(name, &changed), HEDDLE_OK);
    }
    cr_assert(auth_key(&table, key_of(1)) && !auth_is_live(auth_key(&table, key_of(1))));
    cr_assert_eq(HASH_COUNT(table.keys), LIMIT_KEYS);
}

Test(auth, a_row_that_no_decision_made_is_refused)
{
    static const record_t BAD[] = {
        {.kind = RECORD_KEY, .public_key = "short", .name = "n", .roles = "admin"},
        {.kind = RECORD_KEY,
         .public_key = "k000000000000000000000000000000000000001",
         .name = "",
         .roles = "admin"},
        {.kind = RECORD_KEY,
         .public_key = "k000000000000000000000000000000000000001",
         .name = "n",
         .roles = ""},
        {.kind = RECORD_KEY,
         .public_key = "k000000000000000000000000000000000000001",
         .name = "n",
         .roles = "admin,"},
        {.kind = RECORD_KEY,
         .public_key = "k000000000000000000000000000000000000001",
         .name = "n",
         .roles = "god"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        cr_assert_eq(auth_apply(&table, &BAD[i]), HEDDLE_ERR_INTERNAL, "%zu", i);
    cr_assert_null(table.keys);
    char roles[40000] = "reader";
    while (strlen(roles) < 39000) strcat(roles, ",reader");
    record_t many = BAD[1];
    many.name = "n", many.roles = roles;
    cr_assert_eq(auth_apply(&table, &many), HEDDLE_ERR_INTERNAL, "more roles than a key has");
    memset(roles + 7, 'x', 30000);
    cr_assert_eq(auth_apply(&table, &many), HEDDLE_ERR_INTERNAL, "a role as long as a page");
    record_t gone = {.kind = RECORD_KEY_DROP, .public_key = key_of(9)};
    cr_assert_eq(auth_apply(&table, &gone), HEDDLE_OK);
}

/* ---- invitations ---- */

static int invite(unsigned n, const char *name, const char *role, uint64_t uses, uint64_t ttl_ms)
{
    const char *roles[] = {role};
    key_ask_t ask = {.public_key = key_of(n), .name = name, .roles = roles, .role_count = 1};
    int rc = auth_decide_invite(&table, &ask, uses, ttl_ms, now, &out, &e);
    if (rc) outbox_clear(&out);
    else commit();
    return rc;
}
static int enter(unsigned invitation, unsigned n, bool *ret_changed)
{
    uint64_t retry_ms;
    int rc = auth_decide_enter(&table, auth_key(&table, key_of(invitation)), key_of(n), now, &out,
                               ret_changed, &retry_ms, &e);
    if (rc) outbox_clear(&out);
    else commit();
    return rc;
}

Test(auth, an_invitation_enters_as_many_keys_as_it_has_uses)
{
    bool changed;
    cr_assert_eq(invite(1, "train", "worker:policy", 2, 60000), HEDDLE_OK, "%s", e.message);
    cr_assert(!enter(1, 11, &changed) && changed);
    cr_assert(!enter(1, 12, &changed) && changed);
    cr_assert_str_eq(auth_key(&table, key_of(11))->name, "train-1");
    cr_assert_str_eq(auth_key(&table, key_of(12))->name, "train-2");
    cr_assert_str_eq(auth_key(&table, key_of(12))->roles, "worker:policy");
    cr_assert_eq(enter(1, 13, &changed), HEDDLE_ERR_DENIED);
    cr_assert(strstr(e.message, "used up") && !auth_key(&table, key_of(13)));
    cr_assert_eq(auth_key(&table, key_of(1))->invitation.used, 2);
}

Test(auth, a_key_that_is_in_uses_no_invitation_up)
{
    bool changed;
    cr_assert_eq(invite(1, "", "worker:policy", 1, 60000), HEDDLE_OK);
    cr_assert(!strncmp(auth_key(&table, key_of(1))->name, "invite-", 7), "a name of its own");
    cr_assert(!enter(1, 11, &changed) && changed);
    for (int i = 0; i < 2; i++) {
        cr_assert(!enter(1, 11, &changed) && !changed, "asked again: used up, then ended");
        now.wall_ms += 70000;
    }
    cr_assert_eq(enter(1, 12, &changed), HEDDLE_ERR_DENIED);
    now.wall_ms = 1000;
}

Test(auth, a_key_keeps_its_roles_when_it_is_invited)
{
    bool changed;
    add(5, "mine", "reader");
    cr_assert_eq(invite(1, "train", "worker:policy", 1, 60000), HEDDLE_OK);
    cr_assert(!enter(1, 5, &changed) && changed);
    cr_assert_str_eq(auth_key(&table, key_of(5))->roles, "reader,worker:policy");
    cr_assert_str_eq(auth_key(&table, key_of(5))->name, "mine");
}

Test(auth, no_invitation_undoes_a_revocation)
{
    bool changed;
    add(5, "mine", "worker:policy");
    cr_assert_eq(revoke("mine", &changed), HEDDLE_OK);
    cr_assert_eq(invite(1, "train", "worker:policy", 9, 60000), HEDDLE_OK);
    cr_assert_eq(enter(1, 5, &changed), HEDDLE_ERR_DENIED);
    cr_assert(strstr(e.message, "was revoked") && !auth_is_live(auth_key(&table, key_of(5))));
    cr_assert_eq(enter(1, 1, &changed), HEDDLE_ERR_REQUEST_CONFLICT, "nor enters itself");
    cr_assert_eq(auth_key(&table, key_of(1))->invitation.used, 0);
}

Test(auth, an_invitation_is_looked_at_without_a_use)
{
    bool changed;
    uint64_t retry_ms = 0;
    cr_assert_eq(invite(1, "train", "worker:policy", 1, 60000), HEDDLE_OK);
    const auth_key_t *k = auth_key(&table, key_of(1));
    for (int i = 0; i < 3; i++)
        cr_assert_eq(auth_check_open(&table, k, now, &retry_ms, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(k->invitation.used, 0);
    cr_assert(!enter(1, 11, &changed) && changed);
    cr_assert_eq(auth_check_open(&table, auth_key(&table, key_of(1)), now, &retry_ms, &e), HEDDLE_ERR_DENIED);
    cr_assert(strstr(e.message, "used up"), "%s", e.message);
    cr_assert_eq(invite(2, "other", "worker:policy", 1, 60000), HEDDLE_OK);
    now.wall_ms += 70000;
    cr_assert_eq(auth_check_open(&table, auth_key(&table, key_of(2)), now, &retry_ms, &e), HEDDLE_ERR_DENIED);
    cr_assert(strstr(e.message, "ended"), "%s", e.message);
    now.wall_ms = 1000;
}

Test(auth, an_invitation_may_ask_to_enter_and_nothing_else)
{
    msg_t m = {.type = MSG_QUERY, .query = {.op = "enter"}};
    add(9, "boss", "admin");
    cr_assert_eq(invite(1, "train", "worker:*", 1, 60000), HEDDLE_OK);
    const auth_key_t *k = auth_key(&table, key_of(1));
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(auth_check(k, &m, &e), HEDDLE_OK);
        cr_assert_eq(auth_check(auth_key(&table, key_of(9)), &m, &e), HEDDLE_ERR_DENIED,
                     "not even an admin's key");
        m.query.op = "invitation"; /* how it is with it */
    }
    static const char *const OPS[] = {"status", "pull", "keys", "key_add", "invite", "events", "activate"};
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        m.query = (msg_query_t){.op = OPS[i], .name = "policy"};
        cr_assert_eq(auth_check(k, &m, &e), HEDDLE_ERR_DENIED, "%s", OPS[i]);
    }
    for (int type = MSG_HELLO; type <= MSG_PEERS; type++) {
        m = (msg_t){.type = (msg_type_t)type};
        if (type == MSG_QUERY) m.query.op = "";
        if (type != MSG_PING) cr_assert_eq(auth_check(k, &m, &e), HEDDLE_ERR_DENIED, "%s", msg_name(type));
    }
    m = (msg_t){.type = MSG_HELLO, .hello = {.role = ROLE_ADMIN}};
    cr_assert_eq(auth_check(k, &m, &e), HEDDLE_OK, "the greeting of a command");
}

Test(auth, what_no_invitation_is_made_of)
{
    bool changed;
    char longest[HEDDLE_NAME_MAX + 1] = "";
    memset(longest, 'n', HEDDLE_NAME_MAX);
    cr_assert_eq(invite(1, "", "admin", 1, 60000), HEDDLE_ERR_USAGE);
    cr_assert_eq(invite(1, "", "worker:policy", 0, 60000), HEDDLE_ERR_USAGE);
    cr_assert_eq(invite(1, "", "worker:policy", LIMIT_INVITATION_USES + 1, 60000), HEDDLE_ERR_USAGE);
    cr_assert_eq(invite(1, "", "worker:policy", 1, 0), HEDDLE_ERR_USAGE);
    cr_assert_eq(invite(1, longest, "worker:policy", 1, 60000), HEDDLE_ERR_BAD_NAME);
    add(2, "there", "reader");
    cr_assert_eq(invite(2, "", "worker:policy", 1, 60000), HEDDLE_ERR_REQUEST_CONFLICT);
    cr_assert_eq(invite(1, "there", "worker:policy", 1, 60000), HEDDLE_ERR_REQUEST_CONFLICT);
    cr_assert_eq(invite(1, "train", "worker:policy", 1, 60000), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(add_as(key_of(1), "", "worker:other", &changed), HEDDLE_ERR_REQUEST_CONFLICT,
                 "its key is added as no other");
    record_t bad[] = {
        {.kind = RECORD_KEY, .public_key = key_of(3), .name = "n", .roles = "admin", .uses = 1},
        {.kind = RECORD_KEY, .public_key = key_of(3), .name = "n", .roles = "reader", .uses = 1, .used = 2}};
    for (size_t i = 0; i < 2; i++) cr_assert_eq(auth_apply(&table, &bad[i]), HEDDLE_ERR_INTERNAL);
}

Test(auth, a_revoked_invitation_is_one_still)
{
    bool changed;
    cr_assert_eq(invite(1, "train", "worker:policy", 5, 60000), HEDDLE_OK);
    cr_assert(!enter(1, 11, &changed));
    cr_assert(!revoke("train", &changed) && changed);
    const auth_key_t *k = auth_key(&table, key_of(1));
    cr_assert(auth_is_invitation(k) && k->invitation.used == 1 && !auth_is_live(k));
    char command[AUTH_COMMAND];
    auth_write_add(k, key_of(1), command);
    cr_assert_str_eq(command, "heddle invite --role worker:policy", "its key is not added again");
}

static int revoke_entered(const char *what, uint32_t *ret_count, bool *ret_changed)
{
    const char *key;
    int rc = auth_decide_revoke_entered(&table, what, now, &out, &key, ret_count, ret_changed, &e);
    if (rc) outbox_clear(&out);
    else commit();
    return rc;
}
static bool is_live(unsigned n) { return auth_is_live(auth_key(&table, key_of(n))); }

Test(auth, one_revocation_takes_all_that_an_invitation_entered)
{
    bool changed;
    uint32_t count;
    add(0, "root", "admin");
    add(13, "there", "reader");
    cr_assert_eq(invite(1, "train", "worker:policy", 5, 60000), HEDDLE_OK);
    cr_assert_eq(invite(2, "other", "worker:policy", 5, 60000), HEDDLE_OK);
    cr_assert(!enter(1, 11, &changed) && !enter(1, 12, &changed) && !enter(1, 13, &changed));
    cr_assert(!enter(2, 14, &changed));
    cr_assert_str_eq(auth_key(&table, key_of(11))->entered_by, key_of(1));
    cr_assert_str_eq(auth_key(&table, key_of(13))->entered_by, "", "it was there, and got a role more");
    add(12, "", "publisher:policy");
    cr_assert_str_eq(auth_key(&table, key_of(12))->entered_by, key_of(1), "also with a role of an admin");
    cr_assert(!revoke("train-1", &changed));
    cr_assert_str_eq(auth_key(&table, key_of(11))->entered_by, key_of(1));
    cr_assert_eq(revoke_entered("train", &count, &changed), HEDDLE_OK, "%s", e.message);
    cr_assert(changed && count == 1 && !is_live(1) && !is_live(11) && !is_live(12));
    cr_assert(is_live(0) && is_live(2) && is_live(13) && is_live(14), "and no other");
    cr_assert_eq(revoke_entered("train", &count, &changed), HEDDLE_OK);
    cr_assert(!changed && count == 0, "a command may be repeated");
    add(12, "", "worker:policy");
    cr_assert_str_eq(auth_key(&table, key_of(12))->entered_by, "", "an admin has let it in again");
}

Test(auth, one_revocation_is_of_an_invitation_and_leaves_an_admin)
{
    bool changed;
    uint32_t count;
    add(0, "root", "admin");
    cr_assert_eq(invite(1, "train", "worker:policy", 5, 60000), HEDDLE_OK);
    cr_assert(!enter(1, 11, &changed));
    cr_assert_eq(revoke_entered("root", &count, &changed), HEDDLE_ERR_USAGE);
    cr_assert_eq(revoke_entered("train-1", &count, &changed), HEDDLE_ERR_USAGE);
    cr_assert_eq(revoke_entered("trian", &count, &changed), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.hint, "did you mean train?"), "%s", e.hint);
    add(11, "", "admin");
    cr_assert(!revoke("root", &changed));
    cr_assert_eq(revoke_entered("train", &count, &changed), HEDDLE_ERR_DENIED);
    cr_assert(is_live(1) && is_live(11), "all or none");
    add(0, "root", "admin");
    record_t gone = {.kind = RECORD_KEY_DROP, .public_key = key_of(1)};
    cr_assert_eq(auth_apply(&table, &gone), HEDDLE_OK);
    cr_assert_eq(invite(1, "again", "worker:policy", 5, 60000), HEDDLE_ERR_REQUEST_CONFLICT);
    cr_assert_eq(revoke_entered("train", &count, &changed), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(revoke_entered(key_of(1), &count, &changed), HEDDLE_OK, "its keys name it still");
    cr_assert(changed && count == 1 && !is_live(11));
    record_t bad = {.kind = RECORD_KEY,
                    .public_key = key_of(3),
                    .name = "n",
                    .roles = "reader",
                    .entered_by = "short"};
    cr_assert_eq(auth_apply(&table, &bad), HEDDLE_ERR_INTERNAL);
}

Test(auth, ended_invitations_make_room)
{
    bool changed;
    cr_assert_eq(invite(1, "train", "worker:policy", 5, 60000), HEDDLE_OK);
    for (unsigned n = 2; n <= LIMIT_KEYS; n++) add(n, "", "reader");
    cr_assert_eq(add_as(key_of(5000), "", "reader", &changed), HEDDLE_ERR_LIMIT, "it may be used still");
    now.wall_ms += 60000;
    cr_assert_eq(add_as(key_of(5000), "", "reader", &changed), HEDDLE_OK);
    cr_assert(!auth_key(&table, key_of(1)));
    now.wall_ms = 1000;
}
