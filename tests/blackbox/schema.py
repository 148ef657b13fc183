#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""schema.py KIND [--failed]: every always-there field of the answer on stdin, by presence and type.

Written from the contract's words alone: null where unknown, lists sorted by name or by version, *_ms a
number, *_bytes and *_count an integer below 2^53, *_at RFC 3339 UTC with milliseconds.  One object, or
(event, ready) one a line.  With --failed every field may be null, and there is an error object with what to
do about it."""
import json
import re
import sys

LARGEST = 1 << 53


def is_int(v):
    return isinstance(v, int) and not isinstance(v, bool) and 0 <= v < LARGEST


def matching(pattern):
    return lambda v: isinstance(v, str) and re.fullmatch(pattern, v)


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
TYPES = {
    "int": is_int,
    "signed ms": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "ms": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and v >= 0,
    "bool": lambda v: isinstance(v, bool),
    "text": lambda v: isinstance(v, str) and v != "",
    "map": lambda v: isinstance(v, dict),
    "name": matching(NAME),
    "texts": lambda v: isinstance(v, list) and all(isinstance(e, str) for e in v),
    "ints": lambda v: isinstance(v, list) and all(map(is_int, v)),
    "at": matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"),
    "digest": matching(r"h1:[0-9a-f]{64}"),
    "tag": matching(NAME + r"@[1-9]\d*:[0-9a-f]{12}"),
    "public_key": matching(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}"),
    "phase": matching("pack|commit|announce|fetch|verify|stage|activate|export"),
    "version_state": matching("staging|staged|active|kept|superseded|failed|retired|lost"),
    "worker_state": matching("ready|draining|left|lost"),
    "copy_state": matching("announced|fetching|arrived|staged|committed|active|kept|stale|failed"),
    "event_type": matching(r"broker\.started|leader\.changed|worker\.(joined|left|lost|fenced)|"
                           r"writer\.(opened|closed|fenced)|"
                           r"version\.(published|staged|activated|failed|superseded|retired|lost|released)|"
                           r"stage\.(started|done|failed)|activate\.(done|failed)|source\.(lost|bad|slow)|"
                           r"adapter\.(held|resumed|forgotten)|key\.(added|revoked)|invitation\.(made|used)|"
                           r"store\.(refused|recovered)|verify\.failed|worker\.(draining|staying)|gap"),
    "code": matching("usage|bad_name|insecure_address|not_found|request_conflict|writer_held|fenced|"
                     "worker_alive|unchanged|step_back|"
                     "held|not_activatable|too_few_slots|ucx_version|wire_version|data_locked|deadline|"
                     "no_workers|denied|unavailable|"
                     "bad_adapter|no_lora|unsupported_peft_type|unsupported_feature|limit|protocol|"
                     "version_failed|version_lost|unhealthy|"
                     "digest_mismatch|data_dir|data_newer|no_space|address_in_use|no_memory|no_slot|"
                     "internal|interrupted|"
                     "superseded|gone|slow"),
}

ERROR = {"code": "code", "exit": "int", "message": "text", "adapter": "name?", "version": "int?",
         "worker": "name?", "phase": "phase?",
         "expected": "text?", "found": "text?", "hint": "text?", "retriable": "bool"}
MISSING = {"worker": "name", "phase": "phase?", "code": "code?", "message": "text?"}
ROLLOUT = {"activation": "text", "deadline_ms": "ms", "eligible_count": "int?", "staged_count": "int?",
           "active_count": "int?", "missing": ["worker", MISSING]}
ADAPTER = {"name": "name",
           "active": ({"version": "int", "decision": "int", "tag": "tag", "digest": "digest",
                       "state": matching("active|lost"), "since_at": "at"},),
           "newest": ({"version": "int", "state": "version_state", "digest": "digest?"},),
           "held": ({"by": "text", "at": "at", "version": "int"},),
           "writer": ({"name": "name", "host": "text", "pid": "int", "since_at": "at"},),
           "base_model": "text?", "version_count": "int", "subscriber_count": "int", "current_count": "int",
           "max_lag": "int"}
VERSION = {"version": "int", "tag": "tag", "digest": "digest", "state": "version_state", "reason": (ERROR,),
           "note": "text?", "step": "int?",
           "created_at": "at", "activated_at": "at?", "took_ms": "ms?", "data_bytes": "int",
           "payload_bytes": "int", "tensor_count": "int", "features": "texts", "holder_count": "int",
           "holder_host_count": "int", "holder_host": "name?", "active_count": "int", "meta": "map",
           "kind": "text"}
MOVED = {name: "int" for name in ("late", "gone", "refused", "bad", "slow")}
SOURCE = {"name": "name", "kind": matching("publisher|worker"), "way": matching("network|host"),
          "bytes": "int", "moved": MOVED}
TIMING = {name: "ms?" for name in ("announce_ms", "queued_ms", "waiting_ms", "connect_ms", "fetch_ms",
                                   "verify_ms", "stage_ms", "activate_ms")}
COPY = {"worker": "name", "awaited": "bool?", "state": "copy_state?", "code": "code?", "message": "text?",
        "since_at": "at?", "bytes_done": "int", "verified": "text?",
        "verified_by": "name?", "held": "bool?",
        "sources": ["name", SOURCE], "max_rate_bytes": "int?", "rate_bytes": "int?", "source": "name?",
        "waits_for": "name?", "note": "text?", "queued_behind": "int?", "timing": TIMING}
ONE_VERSION = VERSION | {"config": "map?", "request_id": "name?", "writer": "name?", "rollout": ROLLOUT,
                         "progress": ({"bytes_done": "int", "all_bytes": "int", "worker_count": "int",
                                       "rate_bytes": "int?"},),
                         "so_far_ms": "ms?", "ended_after_ms": "ms?",
                         "slowest": ({"worker": "name", "ms": "ms", "rate_bytes": "int?",
                                      "max_rate_bytes": "int?",
                                      "phase": matching("announce|connect|fetch|stage")},),
                         "rest": ({"ms": "ms", "message": "text?"},),
                         "switch": ({"worker": "name", "ms": "ms"},),
                         "unfinished": ({"worker": "name", "ms": "ms", "count": "int",
                                         "phase": matching("announce|connect|fetch|stage|activate")},),
                         "workers": ["worker", COPY],
                         "former": [None, {"worker": "name", "sources": ["name", SOURCE], "fetch_ms": "ms?"}],
                         "former_count": "int"}
FETCHING = {"version": "int", "bytes_done": "int", "data_bytes": "int", "source": "name?",
            "rate_bytes": "int?"}
SUBSCRIPTION = {"name": "name", "version": "int?", "decision": "int?", "tag": "tag?", "digest": "digest?",
                "state": "copy_state?",
                "code": "code?", "message": "text?", "lag": "int", "since_at": "at?", "held_count": "int",
                "fetching": (FETCHING,), "note": "text?", "kept": "ints"}
TRANSPORT = {"backend": "text", "ucx": "text?", "devices": "texts", "addresses": "texts",
             "memory": matching("shared|own"), "memory_why": "text?", "host_share": "text?"}
GROUP = {"name": "name", "rank": "int", "ranks": "int"}
WORKER = {"name": "name", "token": "int", "state": "worker_state",
          "drain": ({"since_at": "at", "only_here_count": "int", "only_here": "texts"},),
          "current": "bool", "host": "text",
          "pid": "int", "labels": "map", "group": (GROUP,),
          "joined_at": "at", "heartbeat_age_ms": "ms",
          "transport": TRANSPORT,
          "slots": {"total": "int", "free": "int?", "held": "int?"},
          "memory": {"own_bytes": "int?", "held_bytes": "int?"}, "relay_why": "text?",
          "adapters": ["name", SUBSCRIPTION],
          "counters": {name: "int" for name in ("bytes_in", "bytes_out", "chunks_bad", "retries", "fenced")}}
INVITATION = {"state": matching("open|used_up|ended|revoked"), "use_count": "int", "used_count": "int",
              "ends_at": "at"}
KEY = {"name": "name", "public_key": "public_key", "roles": "texts", "added_at": "at", "revoked_at": "at?",
       "session_count": "int",
       "invitation": (INVITATION,), "entered_by": "text?"}
WAIT = {"adapter": "name", "version": "int", "digest": "digest?", "decision": "int?",
        "phase": matching("staged|active"),
        "need_count": "int", "have_count": "int", "eligible_count": "int", "elapsed_ms": "ms",
        "workers": ["worker", {"worker": "name", "version": "int?", "digest": "digest?",
                               "state": "copy_state?", "since_at": "at?"}],
        "missing": ["worker",
                    {"worker": "name", "phase": "phase?", "code": "code?", "heartbeat_age_ms": "ms?",
                     "note": "text?"}]}

DECIDED = {"from": "int?", "changed": "bool", "same_bytes": "bool", "held": "bool", "dry_run": "bool",
           "bytes_moved": "int",
           "would_fetch": ["worker", {"worker": "name", "bytes": "int", "version": "int?"}],
           "would_fetch_bytes": "int?"}
FACTS = {"host": "name", "heddle": "text",
         "ucx": {"version": "text?", "library": "text?", "plugin": "text?", "error": (ERROR,)},
         "data": ({"device": "text?", "addresses": "texts", "transports": "texts", "loopback": "bool",
                   "elsewhere": "bool", "error": (ERROR,)},),
         "memory": {"way": matching("shared|own"), "host_share": "text?", "available_bytes": "int?",
                    "huge_pages": "text?", "shm_bytes": "int?", "error": (ERROR,)},
         "limits": {"descriptors": "int?", "file_bytes": "int?"}, "network": {"congestion": "text?"},
         "key": {"file": "text?", "public_key": "public_key?", "error": (ERROR,)},
         "broker": {"endpoint": "text", "named": "bool", "heddle": "text?",
                    "wire": ({"min": "int", "max": "int"},), "cluster": "name?",
                    "state": "text?", "data_dir": "text?", "error": (ERROR,)},
         "clock": ({"ahead_ms": "signed ms", "round_trip_ms": "ms"},),
         "workers": ["name", {"name": "name", "host": "text?", "ucx": "text?", "addresses": "texts",
                              "memory": matching("shared|own"), "memory_why": "text?", "relay_why": "text?",
                              "reach": matching("yes|no|untested|unreadable"),
                              "reach_ms": "ms?", "reach_why": "text?"}],
         "listen": ({"endpoint": "text", "error": (ERROR,)},),
         "disks": [None, {"option": "text", "path": "text", "free_bytes": "int?", "error": (ERROR,)}],
         "invitation": ({"name": "name?", "roles": "texts?", "state": "text?", "use_count": "int?",
                         "used_count": "int?", "ends_at": "at?", "error": (ERROR,)},)}
KINDS = {
    "publish": {"adapter": "name", "version": "int?", "tag": "tag?", "digest": "digest?", "created": "bool?",
                "reason": matching("replayed|unchanged"), "state": "version_state?", "step": "int?",
                "request_id": "name?",
                "data_bytes": "int?", "tensor_count": "int?", "chunk_count": "int?", "features": "texts?",
                "rollout": ROLLOUT,
                "timing": {"pack_ms": "ms?", "commit_ms": "ms?", "staged_ms": "ms?", "active_ms": "ms?"}},
    "status": {"broker": {"endpoint": "text", "public_key": "public_key?", "cluster": "name",
                          "epoch": "int", "pid": "int", "heddle": "text",
                          "wire": {"min": "int", "max": "int"}, "uptime_ms": "ms", "now_at": "at",
                          "state": matching("ready|read_only"),
                          "data_dir": "text", "registry_bytes": "int", "settling_ms": "int",
                          "restored": ({"from": "name", "at": "at", "message": "text"},)},
               "reasons": [None, {"name": "text", "adapter": "name?", "worker": "name?", "since_at": "at?",
                                  "message": "text"}],
               "warnings": ["at", {"at": "at", "name": "text", "message": "text"}],
               "count": {name: "int" for name in ("adapters", "versions", "workers_ready", "workers_lost",
                                                  "writers")},
               "adapters": ["name", ADAPTER]},
    "brokers": {"cluster": "name", "epoch": "int",
                "brokers": [None, {"endpoint": "text", "role": matching("leader|standby"),
                                   "following": "bool?", "behind": "int?", "pid": "int",
                                   "heddle": "text?"}],
                "store": {"kind": matching("sqlite|etcd"), "place": "text",
                          "state": matching("ready|unanswered|read_only"), "message": "text?",
                          "revision": "int?", "seen_age_ms": "ms?", "registry_bytes": "int"}},
    "adapters": {"adapters": ["name", ADAPTER]},
    "check": {"status": matching("ok|warning|critical|unknown"), "adapter": "name?", "adapter_count": "int",
              "workers_ready": "int", "max_lag": "int", "age_ms": "ms?",
              "findings": [None, {"level": matching("warning|critical|unknown"), "name": "text",
                                  "adapter": "name?", "worker": "name?", "message": "text"}]},
    "doctor": {"status": matching("ok|warning|critical"),
               "findings": [None, {"level": matching("note|warning|critical"), "name": "text",
                                   "worker": "name?", "what": "text", "why": "text", "mend": "text"}],
               "checks": "texts", "facts": FACTS},
    "versions": {"adapter": "name", "versions": ["version", VERSION]},
    "version": {"adapter": "name", "versions": ["version", ONE_VERSION]},
    "workers": {"settling_ms": "int", "workers": ["name", WORKER]},
    "wait": WAIT,
    "activate": WAIT | DECIDED | {"to": "int"},
    "rollback": WAIT | DECIDED | {"to": "int"},
    "resume": WAIT | DECIDED | {"version": "int?", "to": "int?"},
    "forget": {"adapter": "name", "version_count": "int", "dry_run": "bool"},
    "drain": {"workers": ["name", WORKER], "dry_run": "bool", "cancel": "bool"},
    "pull": {"adapter": "name", "version": "int", "tag": "tag", "digest": "digest", "state": "version_state",
             "step": "int?", "data_bytes": "int", "tensor_count": "int", "path": "text", "elapsed_ms": "ms",
             "sources": ["name", SOURCE]},
    "verify": {"adapter": "name", "version": "int", "expected": "digest", "elapsed_ms": "ms",
               "workers": ["worker", {"worker": "name", "version": "int", "digest": "digest?",
                                      "match": "bool", "exported_match": "bool?",
                                      "hash_ms": "ms?", "code": "code?"}]},
    "keys": {"keys": ["name", KEY]},
    "key": {"changed": "bool", "key": (KEY,), "added_roles": "texts", "session_count": "int",
            "entered_count": "int?"},
    "invite": {"join": "text", "addresses": "texts", "loopback": "bool", "key": KEY},
    "keygen": {"public_key": "public_key", "file": "text", "created": "bool"},
    "context": {"file": "text", "in_use": "name?",
                "contexts": ["name", {"name": "name", "in_use": "bool", "broker": "text",
                                      "broker_key": "text?", "key": "text?", "timeout": "text?",
                                      "output": "text?"}]},
    "registry": {"action": matching("export|import"), "file": "text", "store": "text", "cluster": "name",
                 "epoch": "int", "row_count": "int", "file_digest": "text"},
    "worker event": {"origin": matching("worker"), "seq": "int", "epoch": "int?", "at": "at",
                     "type": "event_type", "adapter": "name?",
                     "version": "int?", "worker": "name", "code": "code?", "message": "text?", "data": "map"},
    "event": {"seq": "int", "epoch": "int", "at": "at", "type": "event_type", "adapter": "name?",
              "version": "int?", "worker": "name?", "code": "code?", "message": "text?", "data": "map"},
    "broker": {"role": matching("broker"), "leads": "bool", "pid": "int", "endpoint": "text",
               "cluster": "name", "epoch": "int", "data_dir": "text",
               "wire": {"min": "int", "max": "int"}, "heddle": "text", "public_key": "public_key?",
               "http": "text?"},
    "worker": {"role": matching("worker"), "pid": "int", "name": "name", "token": "int", "cluster": "name",
               "adapters": "texts",
               "export_dir": "text?", "http": "text?",
               "transport": TRANSPORT},
    "heddle": {},
    "events": {},
}
# where the kind on the line is another word
SAID = {"version": "versions", "key": "keys", "worker event": "event", "broker": "ready", "worker": "ready"}
NULLABLE = {"reason"}                                                  # that have a pattern of their own

COMMON = {"schema": "text", "kind": "text", "ok": "bool"}
problems = []


def check(value, spec, path, may_be_null=False):
    if isinstance(spec, tuple):
        spec, may_be_null = spec[0], True
    if isinstance(spec, str) and spec.endswith("?"):
        spec, may_be_null = spec[:-1], True
    if path.rsplit(".", 1)[-1] in NULLABLE:
        may_be_null = True
    if value is None:
        if not may_be_null:
            problems.append(f"{path} is null")
    elif isinstance(spec, dict):
        check_object(value, spec, path)
    elif isinstance(spec, list):
        check_list(value, spec, path)
    elif not (TYPES[spec] if isinstance(spec, str) else spec)(value):
        problems.append(f"{path} is {json.dumps(value)}, no {spec if isinstance(spec, str) else 'such word'}")


def check_object(value, spec, path):
    if not isinstance(value, dict):
        problems.append(f"{path} is {json.dumps(value)}, no object")
        return
    for name, kind in spec.items():
        if name in value:
            check(value[name], kind, f"{path}.{name}")
        else:
            problems.append(f"{path}.{name} is not there")
    problems.extend(f"{path}.{name} is there, and nobody says what it is"
                    for name in value.keys() - spec.keys() - COMMON.keys())


def check_list(value, spec, path):
    key, row = spec
    if not isinstance(value, list):
        problems.append(f"{path} is {json.dumps(value)}, no list")
        return
    for i, element in enumerate(value):
        check(element, row, f"{path}[{i}]")
    keys = [element[key] for element in value if isinstance(element, dict) and key in element]
    if keys != sorted(keys):
        problems.append(f"{path} is not sorted by {key}: {keys}")


def check_failure(o, kind):
    for name in KINDS[kind]:
        if name not in o:
            problems.append(f".{name} is not there")
        elif o[name] is not None and name not in ("rollout", "missing", "workers", "would_fetch"):
            check(o[name], KINDS[kind][name], f".{name}", True)
    check(o.get("error"), ERROR, ".error")
    error = o.get("error") or {}
    if error.get("code") != "interrupted" and not error.get("hint"):
        problems.append(".error has no hint")
    if "_t" in re.findall(r"heddle_\w*(_t)\b", error.get("message") or ""):
        problems.append(".error.message speaks of a type of the C library")


def main():
    kind, failed = sys.argv[1], "--failed" in sys.argv
    lines = [line for line in sys.stdin.read().splitlines() if line]
    if not lines:
        problems.append("there is no object")
    if len(lines) > 1 and kind not in ("event", "worker event"):
        problems.append(f"{len(lines)} lines, not one object")
    for line in lines:
        o = json.loads(line)
        expected = {"schema": "heddle/1", "kind": kind if failed and kind != "key" else SAID.get(kind, kind),
                    "ok": not failed}
        for name, value in expected.items():
            if o.get(name) != value or name not in o:
                problems.append(f".{name} is {json.dumps(o.get(name))}, not {json.dumps(value)}")
        if failed:
            check_failure(o, kind)
        else:
            check_object(o, KINDS[kind], "")
    for problem in problems:
        print(f"{kind}{' (failed)' if failed else ''}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
