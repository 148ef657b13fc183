/* SPDX-License-Identifier: Apache-2.0 */
/* What `heddle doctor` makes of facts: each check finds what it is for, and nothing in a host that is well. */
#include "cli/diagnosis.h"

#include <criterion/criterion.h>
#include <string.h>

#define FAILED(code, message, hint)                                                                          \
    "{\"code\":\"" code "\",\"message\":\"" message "\",\"hint\":\"" hint "\",\"expected\":null}"
#define UCX "\"ucx\":{\"version\":\"1.13.1\",\"error\":null}"
#define WORKER                                                                                               \
    "{\"name\":\"w1\",\"host\":\"gpu2\",\"ucx\":\"1.13.1\",\"addresses\":[\"10.0.0.2\"],"                    \
    "\"memory_why\":null,\"relay_why\":null,\"reach\":\"yes\"}"

/* A host without a finding; a case puts its parts in place of these. */
static const char WELL[] =
    "{\"host\":\"gpu1\",\"heddle\":\"1.0\"," UCX
    ",\"data\":{\"device\":\"eth0\",\"loopback\":false,\"elsewhere\":true,\"error\":null},"
    "\"memory\":{\"way\":\"shared\",\"host_share\":null,\"available_bytes\":9000000000,"
    "\"huge_pages\":\"advise\",\"shm_bytes\":9000000000,\"error\":null},"
    "\"limits\":{\"descriptors\":20000,\"file_bytes\":null},\"key\":{\"error\":null},"
    "\"broker\":{\"endpoint\":\"tcp://"
    "b:7700\",\"named\":true,\"heddle\":\"1.0\",\"state\":\"ready\",\"error\":"
    "null},"
    "\"clock\":{\"ahead_ms\":1900,\"round_trip_ms\":5},\"listen\":{\"error\":null},\"invitation\":null,"
    "\"disks\":[{\"path\":\"/data\",\"option\":\"--data\",\"free_bytes\":9000000000,\"error\":null}],"
    "\"workers\":[" WORKER "]}";

static json_t *findings;

static json_t *facts_with(const char *parts)
{
    json_t *facts = json_loads(WELL, 0, NULL), *changed = json_loads(parts, 0, NULL);
    cr_assert(facts && changed, "%s", parts);
    json_object_update(facts, changed);
    json_decref(changed);
    return facts;
}

static void diagnose(const char *parts)
{
    json_t *facts = facts_with(parts);
    json_decref(findings);
    findings = diagnosis_of(facts);
    json_decref(facts);
}

static void end(void)
{
    json_decref(findings);
    findings = NULL;
}
TestSuite(diagnosis, .fini = end);

static const char *text(size_t i, const char *key)
{
    const char *value = json_string_value(json_object_get(json_array_get(findings, i), key));
    return value ? value : "";
}

/* One finding alone, of that name and level, and what and mend have these words. */
static void finds(const char *parts, const char *name, const char *level, const char *what, const char *mend)
{
    diagnose(parts);
    cr_assert_eq(json_array_size(findings), 1, "%s: %zu findings, %s %s", parts, json_array_size(findings),
                 text(0, "name"), text(1, "name"));
    cr_assert_str_eq(text(0, "name"), name, "%s", parts);
    cr_assert_str_eq(text(0, "level"), level, "%s", name);
    cr_assert(strstr(text(0, "what"), what), "%s: %s", name, text(0, "what"));
    cr_assert(strstr(text(0, "mend"), mend), "%s: %s", name, text(0, "mend"));
    cr_assert(text(0, "why")[0]);
}

static void finds_nothing(const char *parts)
{
    diagnose(parts);
    cr_assert_eq(json_array_size(findings), 0, "%s: %s", parts, text(0, "name"));
}

Test(diagnosis, a_host_that_is_well_has_no_findings)
{
    finds_nothing("{}");
    cr_assert_eq(diagnosis_level(findings), DIAGNOSIS_OK);
    json_t *facts = json_object();
    json_t *none = diagnosis_of(facts);
    cr_assert_eq(json_array_size(none), 0, "what is not known is no finding");
    json_decref(none);
    json_decref(facts);
}

Test(diagnosis, this_host)
{
    finds("{\"ucx\":{\"version\":null,\"error\":" FAILED("internal", "UCX is not installed",
                                                         "apt install") "}}",
          "ucx.missing", "critical", "not installed", "apt install");
    finds("{\"data\":{\"error\":" FAILED("internal", "eth0 is down", "") "}}", "data.device", "critical",
          "eth0 is down", "--data-device names another one");
    finds("{\"data\":{\"error\":" FAILED("insecure_address", "no key", "name it") "}}", "data.insecure",
          "critical", "no key", "name it");
    finds_nothing("{\"data\":{\"error\":" FAILED("no_memory", "no descriptors", "") "}}");
    finds_nothing("{\"data\":{\"error\":" FAILED("denied", "no", "") "}}");
    finds("{\"data\":{\"device\":\"lo\",\"loopback\":true,\"elsewhere\":true,\"error\":null}}",
          "data.loopback", "critical", "loopback (lo)", "--data-device");
    finds_nothing("{\"data\":{\"device\":\"lo\",\"loopback\":true,\"elsewhere\":false,\"error\":null}}");
    finds("{\"limits\":{\"descriptors\":127}}", "limits.descriptors", "critical",
          "127 files open here (ulimit -Hn); a worker needs 128 at least", "LimitNOFILE");
    finds("{\"limits\":{\"descriptors\":128}}", "limits.descriptors", "warning",
          "a worker needs 1024 for many", "limits.conf");
    finds_nothing("{\"limits\":{\"descriptors\":1024}}");
    finds("{\"limits\":{\"descriptors\":20000,\"file_bytes\":1000000}}", "limits.file_size", "warning",
          "1.0 MB", "ulimit -f");
}

Test(diagnosis, memory)
{
    finds("{\"memory\":{\"host_share\":null,\"error\":" FAILED("denied", "another user", "") "}}",
          "memory.share", "warning", "another user", "0700");
    finds("{\"memory\":{\"host_share\":\"/s\",\"error\":" FAILED("denied", "mode 0777", "chmod") "}}",
          "memory.share", "critical", "mode 0777", "chmod");
    finds("{\"memory\":{\"available_bytes\":536870911}}", "memory.available", "warning", "536.9 MB", "slots");
    finds_nothing("{\"memory\":{\"available_bytes\":536870912}}");
    finds("{\"memory\":{\"shm_bytes\":67108864}}", "memory.shm", "warning", "67.1 MB", "--shm-size");
    finds("{\"memory\":{\"huge_pages\":\"never\"}}", "memory.huge_pages", "note", "never", "advise");
    cr_assert_eq(diagnosis_level(findings), DIAGNOSIS_OK, "a note changes no exit status");
    finds("{\"memory\":{\"huge_pages\":\"deny\"}}", "memory.huge_pages", "note", "deny", "advise");
}

#define BROKER(named, error) "{\"broker\":{\"named\":" named ",\"error\":" error "}}"
Test(diagnosis, the_broker)
{
    finds("{\"key\":{\"error\":" FAILED("data_dir", "no secret line", "keygen") "}}", "keys.file", "critical",
          "no secret line", "keygen");
    finds(BROKER("true", FAILED("not_found", "no such file", "")), "keys.file", "critical", "no such file",
          "heddle keygen");
    finds(BROKER("true", FAILED("denied", "does not admit", "")), "keys.denied", "critical", "does not admit",
          "heddle keys add");
    finds("{\"broker\":{\"error\":" FAILED(
              "denied", "does not admit the key K",
              "keys add K") "},"
                            "\"key\":{\"file\":\"/k/client.key\",\"public_key\":null,\"error\":null}}",
          "keys.denied", "critical", "there is none yet", "heddle keygen");
#define INVITED(state, message)                                                                              \
    "{\"broker\":{\"error\":" FAILED("denied", message,                                                      \
                                     "") "},\"invitation\":{\"name\":\"node\",\"state\":\"" state "\"}}"
    finds(INVITED("open", "does not admit"), "keys.denied", "note", "the invitation node enters it",
          "start the worker");
    finds(INVITED("ended", "does not admit"), "keys.denied", "critical", "does not admit", "heddle keys add");
    finds(INVITED("open", "runs without keys"), "keys.denied", "critical", "without keys", "heddle keys add");
    finds(BROKER("true", "{\"code\":\"unavailable\",\"message\":\"ends in the handshake\",\"expected\":\"the "
                         "broker whose key is K\"}"),
          "keys.broker", "critical", "whose key is K", "heddle status");
    finds(BROKER("true", FAILED("unavailable", "the handshake failed", "")), "broker.other_program",
          "critical", "handshake", "--broker");
    finds(BROKER("true", FAILED("unavailable", "no answer", "")), "broker.unanswered", "critical",
          "no answer", "--broker");
    finds(BROKER("false", FAILED("unavailable", "no answer", "")), "broker.unanswered", "note", "no answer",
          "--broker");
    finds(BROKER("false", FAILED("no_memory", "no descriptor", "")), "broker.unanswered", "critical",
          "no descriptor", "--broker");
    finds(BROKER("true", FAILED("wire_version", "no common", "")), "broker.version", "critical", "no common",
          "brokers first");
    finds(BROKER("true", FAILED("protocol", "unreadable", "")), "broker.version", "critical", "unreadable",
          "brokers first");
    finds("{\"broker\":{\"heddle\":\"2.0\",\"state\":\"ready\"}}", "broker.release", "warning",
          "Heddle 2.0, and this host has 1.0", "same release");
    finds("{\"broker\":{\"heddle\":\"1.0\",\"state\":\"read_only\",\"data_dir\":\"/d\"}}", "broker.read_only",
          "critical", "/d", "make room");
}

Test(diagnosis, the_clock)
{
    finds("{\"clock\":{\"ahead_ms\":3600000,\"round_trip_ms\":1}}", "clock.off", "warning", "ahead of",
          "timedatectl");
    finds("{\"clock\":{\"ahead_ms\":-3600000,\"round_trip_ms\":1}}", "clock.off", "warning", "behind",
          "timedatectl");
    finds_nothing("{\"clock\":{\"ahead_ms\":2500,\"round_trip_ms\":501}}");
    finds_nothing("{\"clock\":null}");
}

Test(diagnosis, what_was_asked_about)
{
    finds("{\"listen\":{\"error\":" FAILED("address_in_use", "taken", "") "}}", "listen.taken", "critical",
          "taken", "--listen");
    finds("{\"listen\":{\"error\":" FAILED("internal", "no such address", "") "}}", "listen.address",
          "critical", "no such address", "ip addr");
    finds("{\"disks\":[{\"path\":\"/d\",\"option\":\"--data\",\"free_bytes\":9e9,\"error\":" FAILED(
              "data_dir", "cannot write", "") "}]}",
          "disk.unwritable", "critical", "cannot write", "may write");
    finds("{\"disks\":[{\"path\":\"/d\",\"option\":\"--data\",\"free_bytes\":4096}]}", "disk.full",
          "critical", "/d (--data): 4.1 kB", "df -h");
    finds("{\"disks\":[{\"path\":\"/d\",\"option\":\"--export\",\"free_bytes\":16777216}]}", "disk.full",
          "warning", "(--export)", "df -h");
    finds("{\"broker\":null,\"invitation\":{\"error\":" FAILED("denied", "it ended", "") "}}",
          "invitation.over", "critical", "it ended", "heddle invite");
    finds("{\"invitation\":{\"error\":" FAILED("denied", "it ended", "") "}}", "invitation.over", "note",
          "it ended", "heddle invite");
    finds("{\"invitation\":{\"error\":" FAILED("usage", "it is damaged", "") "}}", "invitation.over",
          "critical", "it is damaged", "heddle invite");
}

/* A path is cut where it is too long, which may be inside a character. */
Test(diagnosis, a_long_path_in_any_letters_is_found)
{
    char parts[1024], path[512];
    for (int ascii = 0; ascii < 4; ascii++) {
        int at = snprintf(path, sizeof path, "/%.*s", ascii, "xxx");
        while (at < 400) at += snprintf(path + at, sizeof path - (size_t)at, "\xe2\x82\xac");
        snprintf(parts, sizeof parts,
                 "{\"disks\":[{\"path\":\"%s\",\"option\":\"--data\",\"free_bytes\":4096}]}", path);
        finds(parts, "disk.full", "critical", "(--data): 4.1 kB", "df -h");
    }
}

Test(diagnosis, workers_of_another_ucx_are_named_together)
{
    finds("{\"workers\":[" WORKER
          ",{\"name\":\"w2\",\"ucx\":\"1.18.0\"},{\"name\":\"w3\",\"ucx\":\"1.18.0\"},"
          "{\"name\":\"w4\",\"ucx\":null}]}",
          "ucx.cluster", "critical", "w2 (UCX 1.18.0), w3 (UCX 1.18.0)", "the same UCX");
    finds_nothing("{\"ucx\":{\"version\":null,\"error\":null},\"workers\":[{\"ucx\":\"1.18.0\"}]}");
}

Test(diagnosis, each_worker)
{
    finds(
        "{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"addresses\":[\"10.0.0.2\",\"fd00::2\"],\"reach\":"
        "\"no\",\"reach_why\":\"no answer\"}]}",
        "worker.unreached", "critical",
        "w2, on gpu2 (10.0.0.2, fd00::2), is not reached from gpu1 over eth0: no answer", "both directions");
    cr_assert_str_eq(text(0, "worker"), "w2");
    finds("{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"addresses\":[\"127.0.0.1\",\"::1\"],\"reach\":"
          "\"no\"}]}",
          "worker.loopback", "critical", "w2, on gpu2", "--data-device");
    finds(
        "{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu1\",\"addresses\":[\"127.0.0.1\"],\"reach\":\"no\"}]}",
        "worker.unreached", "critical", "w2, on gpu1", "TCP");
    finds("{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"addresses\":[],\"reach\":\"no\"}]}",
          "worker.unreached", "critical", "w2", "TCP");
    finds_nothing("{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"reach\":\"untested\"}]}");
    finds("{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"reach\":\"unreadable\",\"reach_why\":\"it "
          "ended\"}]}",
          "worker.unreadable", "critical", "w2, on gpu2: it ended", "heddle keys revoke");
    finds("{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"memory_why\":\"another user\"}]}",
          "worker.copies", "warning", "another user", "--host-share");
    finds("{\"workers\":[{\"name\":\"w2\",\"host\":\"gpu2\",\"relay_why\":\"it reaches no other worker\"}]}",
          "worker.cut_off", "warning", "reaches no other", "both directions");
    finds_nothing("{\"workers\":[{\"name\":\"w2\",\"relay_why\":\"another source was faster\"}]}");
}

Test(diagnosis, the_worst_comes_first_and_is_the_level)
{
    diagnose("{\"memory\":{\"huge_pages\":\"never\",\"shm_bytes\":1},\"limits\":{\"descriptors\":64}}");
    cr_assert_eq(json_array_size(findings), 3);
    cr_assert_str_eq(text(0, "name"), "limits.descriptors");
    cr_assert_str_eq(text(1, "name"), "memory.shm");
    cr_assert_str_eq(text(2, "name"), "memory.huge_pages");
    cr_assert_eq(diagnosis_level(findings), DIAGNOSIS_CRITICAL);
    cr_assert_str_eq(diagnosis_level_name(DIAGNOSIS_CRITICAL), "critical");
    diagnose("{\"memory\":{\"shm_bytes\":1}}");
    cr_assert_eq(diagnosis_level(findings), DIAGNOSIS_WARNING);
    cr_assert_str_eq(diagnosis_level_name(DIAGNOSIS_WARNING), "warning");
    cr_assert_str_eq(diagnosis_level_name(DIAGNOSIS_OK), "ok");
}

Test(diagnosis, each_check_has_a_name_of_its_own)
{
    json_t *facts = facts_with("{}"), *names = diagnosis_checks(facts);
    json_decref(facts);
    cr_assert(json_array_size(names) > 20);
    for (size_t i = 0; i < json_array_size(names); i++)
        for (size_t k = 0; k < i; k++)
            cr_assert_str_neq(json_string_value(json_array_get(names, i)),
                              json_string_value(json_array_get(names, k)));
    json_decref(names);
}

static size_t count_checks(const char *parts, const char *name, bool *ret_has)
{
    json_t *facts = facts_with(parts), *names = diagnosis_checks(facts);
    size_t count = json_array_size(names);
    *ret_has = false;
    for (size_t i = 0; i < count; i++) *ret_has |= !strcmp(json_string_value(json_array_get(names, i)), name);
    json_decref(names);
    json_decref(facts);
    return count;
}

Test(diagnosis, a_check_counts_where_it_had_something_to_look_at)
{
    static const struct {
        const char *parts, *name;
    } ROWS[] = {
        {"{\"listen\":null}", "listen.taken"},
        {"{\"disks\":[]}", "disk.full"},
        {"{\"workers\":[]}", "worker.unreached"},
        {"{\"clock\":null}", "clock.off"},
        {"{\"data\":null}", "data.device"},
        {"{\"memory\":{\"shm_bytes\":null}}", "memory.shm"},
        {"{\"broker\":{\"error\":" FAILED("unavailable", "no answer", "start it") "}}", "keys.denied"},
        {"{}", "invitation.over"}};
    bool has;
    size_t all = count_checks("{\"invitation\":{\"error\":null}}", "invitation.over", &has);
    cr_assert(has && all > 20);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        cr_assert_lt(count_checks(ROWS[i].parts, ROWS[i].name, &has), all, "%s", ROWS[i].parts);
        cr_assert_not(has, "%s", ROWS[i].name);
        cr_assert_lt(count_checks(ROWS[i].parts, "broker.unanswered", &has), all);
        cr_assert(has, "%s", ROWS[i].parts);
    }
    count_checks("{\"broker\":{\"error\":" FAILED("denied", "no", "add it") "}}", "keys.denied", &has);
    cr_assert(has, "a broker that refuses has answered");
}
