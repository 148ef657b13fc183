/* SPDX-License-Identifier: Apache-2.0 */
/* One function for each check, and the table of all of them at the end.  Where a failure of the library is
 * the fact, its message is what was found and its hint the remedy: it knows the case. */
#include "cli/diagnosis.h"

#include "core/bytes.h"
#include "core/listing.h"
#include "core/units.h"
#include "core/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A worker takes 62 descriptors at its start, 16 for each version, and up to four for each peer. */
enum { DESCRIPTORS_LEAST = 128, DESCRIPTORS_FEW = 1024 };
enum { CLOCK_OFF_MS = 2000 };
#define MIB 1048576
#define MEMORY_LITTLE (512 * (int64_t)MIB)
#define SHM_LITTLE (256 * (int64_t)MIB)
#define DISK_LEAST (16 * (int64_t)MIB) /* the log of SQLite alone takes 4 */
#define DISK_LITTLE (256 * (int64_t)MIB)

typedef enum { LEVEL_NOTE, LEVEL_WARNING, LEVEL_CRITICAL, LEVEL_COUNT } level_t;
static const char *const LEVELS[] = {"note", "warning", "critical"};

/* Of one check: what it looks at, and what it found. */
typedef struct {
    const json_t *facts, *row; /* row: the worker or disk, of a check of each */
    level_t level;             /* the table's, unless the check changes it */
    char what[640], mend[640]; /* mend "": the table's */
} look_t;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* -1 where it is not known. */
static int64_t number_of(const json_t *object, const char *key)
{
    const json_t *number = json_object_get(object, key);
    return json_is_number(number) ? (int64_t)json_number_value(number) : -1;
}

static const json_t *part(const look_t *l, const char *name) { return json_object_get(l->facts, name); }

static const json_t *error_of(const json_t *object) { return json_object_get(object, "error"); }

static bool has_code(const json_t *error, const char *code) { return !strcmp(text_of(error, "code"), code); }

/* The failure is the finding. */
static bool take(look_t *l, const json_t *error)
{
    text_printf(l->what, sizeof l->what, "%s", text_of(error, "message"));
    text_printf(l->mend, sizeof l->mend, "%s", text_of(error, "hint"));
    return true;
}

/* ---- this host ---- */

static bool ucx_missing(look_t *l)
{
    const json_t *error = error_of(part(l, "ucx"));
    return json_is_object(error) && take(l, error);
}

/* Most hosts have the same, so that those of one other version are named together. */
static bool ucx_cluster(look_t *l)
{
    const char *own = text_of(part(l, "ucx"), "version");
    const json_t *workers = part(l, "workers");
    char names[400];
    listing_t list = {.text = names, .size = sizeof names, .most = 4};
    size_t count = 0;
    for (size_t i = 0; own[0] && i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i);
        const char *theirs = text_of(w, "ucx");
        if (!theirs[0] || !strcmp(theirs, own)) continue;
        listing_add(&list, "%.100s (UCX %.20s)", text_of(w, "name"), theirs);
        count++;
    }
    if (!count) return false;
    text_printf(l->what, sizeof l->what, "this host has UCX %.20s, and others of the cluster do not: %s", own,
                listing_text(&list));
    return true;
}

static const json_t *data_error(const look_t *l) { return error_of(part(l, "data")); }

/* What keys and descriptors do to the data plane has findings of its own. */
static bool data_device(look_t *l)
{
    static const char *const OTHERS[] = {"insecure_address", "no_memory", "not_found", "data_dir", "denied"};
    const json_t *error = data_error(l);
    if (!json_is_object(error)) return false;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (has_code(error, OTHERS[i])) return false;
    return take(l, error);
}

static bool data_insecure(look_t *l)
{
    return has_code(data_error(l), "insecure_address") && take(l, data_error(l));
}

static bool data_loopback(look_t *l)
{
    const json_t *data = part(l, "data");
    if (!json_is_true(json_object_get(data, "loopback")) || !json_is_true(json_object_get(data, "elsewhere")))
        return false;
    text_printf(l->what, sizeof l->what,
                "the broker is on another host, and the data plane of this one is on loopback (%.60s)",
                text_of(data, "device"));
    return true;
}

static bool memory_share(look_t *l)
{
    const json_t *memory = part(l, "memory"), *error = error_of(memory);
    if (!json_is_object(error)) return false;
    if (text_of(memory, "host_share")[0]) l->level = LEVEL_CRITICAL; /* a worker does not start with it */
    return take(l, error);
}

/* "12 MB, of at least 512 MiB" */
static bool is_little(look_t *l, const char *what, int64_t bytes, int64_t least)
{
    char is[16], wanted[16];
    if (bytes < 0 || bytes >= least) return false;
    units_bytes_text((uint64_t)bytes, is);
    units_bytes_text((uint64_t)least, wanted);
    text_printf(l->what, sizeof l->what, "%s: %s, less than %s", what, is, wanted);
    return true;
}

static bool memory_available(look_t *l)
{
    return is_little(l, "memory that this process may still take",
                     number_of(part(l, "memory"), "available_bytes"), MEMORY_LITTLE);
}

static bool memory_shm(look_t *l)
{
    return is_little(l, "the size of /dev/shm", number_of(part(l, "memory"), "shm_bytes"), SHM_LITTLE);
}

static bool memory_huge_pages(look_t *l)
{
    const char *is = text_of(part(l, "memory"), "huge_pages");
    if (strcmp(is, "never") != 0 && strcmp(is, "deny") != 0) return false;
    text_printf(l->what, sizeof l->what, "shared memory gets no huge pages here: shmem_enabled is %s", is);
    return true;
}

static bool limits_descriptors(look_t *l)
{
    int64_t most = number_of(part(l, "limits"), "descriptors");
    if (most < 0 || most >= DESCRIPTORS_FEW) return false;
    bool is_enough = most >= DESCRIPTORS_LEAST;
    if (is_enough) l->level = LEVEL_WARNING;
    text_printf(l->what, sizeof l->what,
                "a process may have %lld files open here (ulimit -Hn); a worker needs %d%s", (long long)most,
                is_enough ? DESCRIPTORS_FEW : DESCRIPTORS_LEAST,
                is_enough ? " for many versions or peers" : " at least");
    return true;
}

static bool limits_file_size(look_t *l)
{
    char most[16];
    int64_t bytes = number_of(part(l, "limits"), "file_bytes");
    if (bytes < 0) return false;
    units_bytes_text((uint64_t)bytes, most);
    text_printf(l->what, sizeof l->what, "a file may have %s at most here (ulimit -f)", most);
    return true;
}

/* ---- keys and the broker ---- */

static const json_t *broker_error(const look_t *l) { return error_of(part(l, "broker")); }

/* Something answered the connection, and did not prove to be the broker. */
static bool is_in_handshake(const json_t *error)
{
    return has_code(error, "unavailable") && strstr(text_of(error, "message"), "handshake");
}

static bool names_a_key(const json_t *error)
{
    return strstr(text_of(error, "expected"), "whose key is") != NULL;
}

/* Of the own key, or of the broker's. */
static bool is_of_file(const json_t *error)
{
    return has_code(error, "data_dir") || has_code(error, "not_found");
}

static bool keys_file(look_t *l)
{
    const json_t *error = error_of(part(l, "key"));
    if (json_is_object(error)) return take(l, error);
    return is_of_file(broker_error(l)) && take(l, broker_error(l));
}

/* None is made for a look at the host: the broker refused one that is forgotten. */
static bool has_no_key(const look_t *l)
{
    const json_t *key = part(l, "key");
    return json_is_null(json_object_get(key, "public_key")) && json_is_null(error_of(key));
}

/* With an invitation that is open the key of this host is entered when a worker starts. */
static bool keys_denied(look_t *l)
{
    const json_t *error = broker_error(l), *invitation = part(l, "invitation");
    if (!has_code(error, "denied")) return false;
    bool is_entered_later =
        !strcmp(text_of(invitation, "state"), "open") && strstr(text_of(error, "message"), "does not admit");
    if (!is_entered_later && has_no_key(l)) {
        text_printf(l->what, sizeof l->what, "the broker admits no key of this host: there is none yet");
        text_printf(
            l->mend, sizeof l->mend,
            "make it with `heddle keygen`, and have the broker's user admit it: heddle keys add KEY --role "
            "worker:ADAPTER; or join by an invitation (`heddle invite`)");
        return true;
    }
    if (!is_entered_later) return take(l, error);
    l->level = LEVEL_NOTE;
    text_printf(l->what, sizeof l->what,
                "the broker does not admit the key of this host yet: the invitation %.128s enters it when a "
                "worker joins, unless it was revoked; so the workers there were not examined",
                text_of(invitation, "name"));
    text_printf(l->mend, sizeof l->mend, "start the worker with this --join, then ask again");
    return true;
}

static bool keys_broker(look_t *l)
{
    const json_t *error = broker_error(l);
    if (!is_in_handshake(error) || !names_a_key(error)) return false;
    take(l, error);
    text_printf(l->what + strlen(l->what), sizeof l->what - strlen(l->what), ": expected %.100s",
                text_of(error, "expected"));
    return true;
}

static bool broker_other_program(look_t *l)
{
    const json_t *error = broker_error(l);
    return is_in_handshake(error) && !names_a_key(error) && take(l, error);
}

static bool is_of_version(const json_t *error)
{
    return has_code(error, "wire_version") || has_code(error, "protocol");
}

/* It, or another program that listens there; it may have refused. */
static bool has_answered(const json_t *broker)
{
    const json_t *error = error_of(broker);
    return text_of(broker, "state")[0] || has_code(error, "denied") || is_of_version(error) ||
           is_in_handshake(error);
}

/* Without a broker that was named, that none answers is no failure. */
static bool broker_unanswered(look_t *l)
{
    const json_t *error = broker_error(l);
    if (!json_is_object(error) || has_answered(part(l, "broker")) || is_of_file(error)) return false;
    bool is_named = json_is_true(json_object_get(part(l, "broker"), "named"));
    if (!is_named && has_code(error, "unavailable")) l->level = LEVEL_NOTE;
    return take(l, error);
}

static bool broker_version(look_t *l) { return is_of_version(broker_error(l)) && take(l, broker_error(l)); }

static bool broker_release(look_t *l)
{
    const char *theirs = text_of(part(l, "broker"), "heddle"), *ours = text_of(l->facts, "heddle");
    if (!theirs[0] || !strcmp(theirs, ours)) return false;
    text_printf(l->what, sizeof l->what, "the broker is of Heddle %.60s, and this host has %.60s", theirs,
                ours);
    return true;
}

static bool broker_read_only(look_t *l)
{
    const json_t *broker = part(l, "broker");
    if (strcmp(text_of(broker, "state"), "read_only") != 0) return false;
    text_printf(l->what, sizeof l->what, "the broker cannot write to %.300s: it takes no records",
                text_of(broker, "data_dir"));
    return true;
}

static bool clock_off(look_t *l)
{
    char off[16];
    const json_t *clock = part(l, "clock"), *ahead = json_object_get(clock, "ahead_ms");
    double ms = json_number_value(ahead), room = json_number_value(json_object_get(clock, "round_trip_ms"));
    bool is_behind = ms < 0;
    if (is_behind) ms = -ms;
    if (!json_is_number(ahead) || ms <= CLOCK_OFF_MS + room) return false;
    units_ms_text(ms, off);
    text_printf(l->what, sizeof l->what, "the clock of this host is %s %s that of the broker", off,
                is_behind ? "behind" : "ahead of");
    return true;
}

/* ---- what was asked about ---- */

static bool listen_taken(look_t *l)
{
    const json_t *error = error_of(part(l, "listen"));
    return has_code(error, "address_in_use") && take(l, error);
}

static bool listen_address(look_t *l)
{
    const json_t *error = error_of(part(l, "listen"));
    return json_is_object(error) && !has_code(error, "address_in_use") && take(l, error);
}

static bool disk_unwritable(look_t *l)
{
    return json_is_object(error_of(l->row)) && take(l, error_of(l->row));
}

static bool disk_full(look_t *l)
{
    char what[400];
    int64_t bytes = number_of(l->row, "free_bytes");
    text_printf(what, sizeof what, "room in %.300s (%.20s)", text_of(l->row, "path"),
                text_of(l->row, "option"));
    if (bytes < DISK_LEAST) l->level = LEVEL_CRITICAL;
    return is_little(l, what, bytes, DISK_LITTLE);
}

/* A key that the broker admits needs none: a worker connects by it where the string has ended. */
static bool invitation_over(look_t *l)
{
    const json_t *error = error_of(part(l, "invitation"));
    bool is_admitted = text_of(part(l, "broker"), "state")[0];
    if (is_admitted && has_code(error, "denied")) l->level = LEVEL_NOTE;
    return json_is_object(error) && take(l, error);
}

/* ---- workers ---- */

/* Of another host, and nothing of it is on a network. */
static bool is_on_loopback(const look_t *l)
{
    const json_t *addresses = json_object_get(l->row, "addresses");
    if (!strcmp(text_of(l->row, "host"), text_of(l->facts, "host"))) return false;
    for (size_t i = 0; i < json_array_size(addresses); i++) {
        const char *address = json_string_value(json_array_get(addresses, i));
        if (!address || (strncmp(address, "127.", 4) != 0 && strcmp(address, "::1") != 0)) return false;
    }
    return json_array_size(addresses) > 0;
}

static bool worker_loopback(look_t *l)
{
    if (!is_on_loopback(l)) return false;
    text_printf(l->what, sizeof l->what, "the data plane of %.128s, on %.128s, is on loopback",
                text_of(l->row, "name"), text_of(l->row, "host"));
    return true;
}

static bool worker_unreached(look_t *l)
{
    if (strcmp(text_of(l->row, "reach"), "no") != 0 || is_on_loopback(l)) return false;
    char where[160];
    const json_t *addresses = json_object_get(l->row, "addresses");
    listing_t list = {.text = where, .size = sizeof where, .most = 4};
    for (size_t i = 0; i < json_array_size(addresses); i++) {
        const char *address = json_string_value(json_array_get(addresses, i));
        listing_add(&list, "%.45s", address ? address : "");
    }
    text_printf(l->what, sizeof l->what, "%.128s, on %.128s (%s), is not reached from %.128s over %.60s: %s",
                text_of(l->row, "name"), text_of(l->row, "host"), listing_text(&list),
                text_of(l->facts, "host"), text_of(part(l, "data"), "device"), text_of(l->row, "reach_why"));
    return true;
}

/* "w1, on gpu2WHAT: WHY" */
static bool of_worker(look_t *l, const char *what, const char *why)
{
    text_printf(l->what, sizeof l->what, "%.128s, on %.128s%s: %.300s", text_of(l->row, "name"),
                text_of(l->row, "host"), what, why);
    return true;
}

/* UCX ends a process that reads such an address, and doctor asks in one of its own. */
static bool worker_unreadable(look_t *l)
{
    bool is_unreadable = !strcmp(text_of(l->row, "reach"), "unreadable");
    return is_unreadable && of_worker(l, "", text_of(l->row, "reach_why"));
}

static bool worker_copies(look_t *l)
{
    const char *why = text_of(l->row, "memory_why");
    return why[0] && of_worker(l, ", copies the versions of its host", why);
}

static bool worker_cut_off(look_t *l)
{
    const char *why = text_of(l->row, "relay_why");
    return strstr(why, "reaches no other worker") && of_worker(l, "", why);
}

/* ---- the table ---- */

#define NO_START "no worker and no publisher starts on this host"
#define NO_BYTES "no version comes from there to this host, or from here to there"
#define NOT_HERE "nothing that this host asks of the broker is answered"
#define OPEN_PORTS                                                                                           \
    "open TCP between the two hosts, in both directions, for all ports (UCX takes any); check the route "    \
    "(`ip route get ADDRESS`), and whether --data-device names the network that they share"

static const struct {
    const char *name;
    level_t level;
    const char *each; /* the list whose rows it looks at; NULL: all facts at once */
    const char
        *needs; /* a part of the facts, or a member of one, without which it finds nothing; NULL: none */
    bool (*look)(look_t *l);
    const char *why, *mend;
} CHECKS[] = {
    {"ucx.missing", LEVEL_CRITICAL, NULL, NULL, ucx_missing,
     NO_START ": the bytes of versions go between hosts over UCX",
     "install UCX: apt install libucx0, or in a Python environment pip install libucx-cu12"},
    {"ucx.cluster", LEVEL_CRITICAL, NULL, "workers", ucx_cluster,
     "UCX of one version does not read the addresses of another: the broker refuses this host's workers and "
     "publishers (ucx_version)",
     "install the same UCX on every host: `heddle doctor` shows which file is in use (UCX)"},
    {"data.device", LEVEL_CRITICAL, NULL, "data", data_device, NO_START ": no bytes can come or go",
     "bring the interface up, with an address; --data-device names another one"},
    {"data.insecure", LEVEL_CRITICAL, NULL, "data", data_insecure,
     NO_START ": a program that reaches the data plane could write the memory of the process",
     "name the broker's key (--broker-key), or join by an invitation (`heddle invite`)"},
    {"data.loopback", LEVEL_CRITICAL, NULL, "data.device", data_loopback,
     "no other host reaches what this one serves, and it reaches none: versions do not come",
     "leave --data-device out, or name the interface that the other hosts reach"},
    {"memory.share", LEVEL_WARNING, NULL, NULL, memory_share,
     "each process of this host would have its own copy of a version, where all can share one",
     "a directory for --host-share has mode 0700 and belongs to this user"},
    {"memory.available", LEVEL_WARNING, NULL, "memory.available_bytes", memory_available,
     "a worker has each version in memory, up to five at a time; what cannot be reserved fails (no_memory)",
     "free memory, raise the limit of the control group, or use fewer slots (worker --slots)"},
    {"memory.shm", LEVEL_WARNING, NULL, "memory.shm_bytes", memory_shm,
     "Heddle does not use it, but engines do (PyTorch and NCCL), and an export may be there",
     "docker run --shm-size 8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"},
    {"memory.huge_pages", LEVEL_NOTE, NULL, "memory.huge_pages", memory_huge_pages,
     "versions are copied and read faster with them: fewer page faults",
     "as root: echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled"},
    {"limits.descriptors", LEVEL_CRITICAL, NULL, "limits.descriptors", limits_descriptors,
     "a worker opens 62 at its start, 16 for each version and up to 4 for each peer; a broker one for each "
     "connection",
     "raise the hard limit: LimitNOFILE= of the unit, --ulimit nofile= of the container, nofile in "
     "/etc/security/limits.conf for a login (a shell can lower it alone)"},
    {"limits.file_size", LEVEL_WARNING, NULL, NULL, limits_file_size,
     "it limits the size of a version in memory, too, and of what a worker exports",
     "ulimit -f unlimited, or LimitFSIZE=infinity of the unit"},
    {"keys.file", LEVEL_CRITICAL, NULL, NULL, keys_file,
     NOT_HERE ": no program connects without its own key and that of the broker",
     "`heddle keygen` makes one; --key names another file"},
    {"keys.denied", LEVEL_CRITICAL, NULL, "broker", keys_denied, NOT_HERE,
     "have the broker's user admit this key: heddle keys add KEY --role worker:ADAPTER"},
    {"keys.broker", LEVEL_CRITICAL, NULL, "broker", keys_broker,
     NOT_HERE ": another broker is at that address, or the key known here is an old one",
     "compare with the key that `heddle status` prints on the broker's host; --broker-key names it"},
    {"broker.other_program", LEVEL_CRITICAL, NULL, "broker", broker_other_program,
     NOT_HERE ": what listens there is no Heddle broker, or one with other keys",
     "--broker names another address"},
    {"broker.unanswered", LEVEL_CRITICAL, NULL, NULL, broker_unanswered,
     "the broker's release, disk, clock and workers were not examined; publishes and decisions wait for it",
     "--broker names another address"},
    {"broker.version", LEVEL_CRITICAL, NULL, "broker", broker_version,
     NOT_HERE ": the two releases have no version of the protocol in common",
     "install releases that share a wire version, brokers first"},
    {"broker.release", LEVEL_WARNING, NULL, "broker.heddle", broker_release,
     "they work together, as long as both speak one wire version; what is new is there on one side alone",
     "install the same release on every host, the broker's first"},
    {"broker.read_only", LEVEL_CRITICAL, NULL, "broker.state", broker_read_only,
     "no version can be published and none activated; what is served stays served",
     "a disk: make room on it (operations.md, A full disk); an etcd: `heddle brokers` has what it says "
     "(operations.md, A broker that outlives its host).  No restart is needed"},
    {"clock.off", LEVEL_WARNING, NULL, "clock", clock_off,
     "leases and deadlines do not depend on it; times in logs and answers of two hosts do not match, and "
     "invitations and certificates end by the clock",
     "set it by NTP: `timedatectl set-ntp true`, or `chronyc makestep`, on the host whose clock is wrong"},
    {"listen.taken", LEVEL_CRITICAL, NULL, "listen", listen_taken, "a broker does not start there",
     "end what listens there, or --listen elsewhere; `:*` takes a free port"},
    {"listen.address", LEVEL_CRITICAL, NULL, "listen", listen_address, "a broker does not start there",
     "name an address of this host: `ip addr`"},
    {"disk.unwritable", LEVEL_CRITICAL, "disks", "disks", disk_unwritable,
     "a broker keeps its records there, a worker its exports: it does not start",
     "name a directory that this user may write"},
    {"disk.full", LEVEL_WARNING, "disks", "disks", disk_full,
     "a broker without room takes no records; a worker without room fails each version that it exports",
     "make room on that disk; `df -h` shows it"},
    {"invitation.over", LEVEL_CRITICAL, NULL, "invitation", invitation_over,
     "no worker joins by it; one whose key was entered before needs no invitation",
     "`heddle invite` on the broker's host makes another one"},
    {"worker.loopback", LEVEL_CRITICAL, "workers", "workers", worker_loopback,
     "no other host reaches it: it gets no version, or serves none",
     "start it with --data-device and the interface that the other hosts reach"},
    {"worker.unreached", LEVEL_CRITICAL, "workers", "workers", worker_unreached, NO_BYTES, OPEN_PORTS},
    {"worker.unreadable", LEVEL_CRITICAL, "workers", "workers", worker_unreadable,
     NO_BYTES ", and the workers of its adapters, which read it too, may end as this process did",
     "if it is not a program of yours, revoke its key: heddle keys revoke NAME; else restart that worker, "
     "and "
     "compare its UCX with that of this host"},
    {"worker.copies", LEVEL_WARNING, "workers", "workers", worker_copies,
     "it has a copy of each version, where processes of one host and user share one",
     "operations.md, Containers and control groups, has what is needed; often --host-share"},
    {"worker.cut_off", LEVEL_WARNING, "workers", "workers", worker_cut_off,
     "the publisher sends it each version by itself, and other workers cannot fetch from it", OPEN_PORTS},
};
enum { CHECK_COUNT = sizeof CHECKS / sizeof *CHECKS };

/* False: no memory, so that the finding is lost.  Texts were cut to their places, also inside a character. */
static bool look(const json_t *facts, size_t check, const json_t *row, json_t *by_level[LEVEL_COUNT])
{
    look_t l = {.facts = facts, .row = row, .level = CHECKS[check].level};
    if (!CHECKS[check].look(&l)) return true;
    bool is_worker = row && !strcmp(CHECKS[check].each, "workers");
    json_t *finding = json_pack(
        "{s:s, s:s, s:o, s:o, s:s, s:o}", "level", LEVELS[l.level], "name", CHECKS[check].name, "worker",
        is_worker ? utf8_json(text_of(row, "name")) : json_null(), "what", utf8_json(l.what), "why",
        CHECKS[check].why, "mend", utf8_json(l.mend[0] ? l.mend : CHECKS[check].mend));
    return json_array_append_new(by_level[l.level], finding) == 0;
}

json_t *diagnosis_of(const json_t *facts)
{
    json_t *by_level[LEVEL_COUNT] = {json_array(), json_array(), json_array()}, *all = json_array();
    bool is_whole = true;
    for (size_t i = 0; i < CHECK_COUNT; i++) {
        const json_t *rows = CHECKS[i].each ? json_object_get(facts, CHECKS[i].each) : NULL;
        if (!CHECKS[i].each) is_whole &= look(facts, i, NULL, by_level);
        for (size_t k = 0; k < json_array_size(rows); k++)
            is_whole &= look(facts, i, json_array_get(rows, k), by_level);
    }
    for (int level = LEVEL_CRITICAL; level >= LEVEL_NOTE; level--) {
        is_whole &= json_array_extend(all, by_level[level]) == 0;
        json_decref(by_level[level]);
    }
    if (is_whole) return all;
    json_decref(all); /* without a finding it would say that the host is well */
    return NULL;
}

diagnosis_level_t diagnosis_level(const json_t *findings)
{
    const char *worst = text_of(json_array_get(findings, 0), "level");
    if (!strcmp(worst, LEVELS[LEVEL_CRITICAL])) return DIAGNOSIS_CRITICAL;
    return strcmp(worst, LEVELS[LEVEL_WARNING]) ? DIAGNOSIS_OK : DIAGNOSIS_WARNING;
}

const char *diagnosis_level_name(diagnosis_level_t level)
{
    return level == DIAGNOSIS_OK ? "ok" : LEVELS[level];
}

/* A broker that did not answer was not examined, nor was one that was not asked. */
static bool is_there(const json_t *facts, const char *needs)
{
    char name[32];
    size_t n = needs ? strcspn(needs, ".") : 0;
    if (!n) return true;
    text_printf(name, sizeof name, "%.*s", (int)n, needs);
    const json_t *part = json_object_get(facts, name);
    if (!strcmp(needs, "broker")) return has_answered(part);
    if (needs[n]) part = json_object_get(part, needs + n + 1);
    return json_is_array(part) ? json_array_size(part) > 0 : part && !json_is_null(part);
}

json_t *diagnosis_checks(const json_t *facts)
{
    json_t *names = json_array();
    for (size_t i = 0; i < CHECK_COUNT; i++)
        if (is_there(facts, CHECKS[i].needs)) json_array_append_new(names, json_string(CHECKS[i].name));
    return names;
}
