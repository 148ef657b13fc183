#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/json.md has the fields that tests/blackbox/schema.py demands of real answers, each with that type, and
no others."""
import importlib.util
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
source = importlib.util.spec_from_file_location("schema", ROOT / "tests/blackbox/schema.py")
schema = importlib.util.module_from_spec(source)
source.loader.exec_module(schema)

PARTS = {"error": schema.ERROR, "rollout": schema.ROLLOUT, "missing": schema.MISSING,
         "adapter": schema.ADAPTER, "version": schema.VERSION,
         "copy": schema.COPY, "source": schema.SOURCE, "worker": schema.WORKER,
         "subscription": schema.SUBSCRIPTION, "key": schema.KEY,
         "invitation": schema.INVITATION}
KINDS = schema.KINDS
ONE = {name: spec for name, spec in schema.ONE_VERSION.items() if name not in schema.VERSION}
SECTIONS = {f"Parts: {name}": spec for name, spec in PARTS.items()} | {
    "Commands: versions": KINDS["versions"] | {f"versions[].{name}": spec for name, spec in ONE.items()},
    **{f"Commands: {kind}": {name: spec for name, spec in KINDS[kind].items()
                             if KINDS["wait"].get(name) != spec}
       for kind in ("activate", "rollback", "resume")},
    "Commands: events": KINDS["event"], "Commands: keys list": KINDS["keys"],
    "Commands: keys add, keys revoke": KINDS["key"],
    "Daemons: broker, ready": KINDS["broker"], "Daemons: worker, ready": KINDS["worker"],
    "Daemons: worker, event": KINDS["worker event"],
} | {f"Commands: {name}": KINDS[name] for name in ("publish", "status", "brokers", "check",
                                                   "doctor", "adapters", "workers", "wait", "forget",
                                                   "drain", "context", "pull", "verify", "keygen",
                                                   "invite", "registry")}
PLAIN = {"version_state": "version state", "worker_state": "worker state", "copy_state": "copy state",
         "event_type": "event type", "public_key": "text"}
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| .*\|$", re.M)


def part_of(spec):
    return next((name for name, part in PARTS.items() if part is spec), None)


def type_of(spec, name):
    """As the page says it, and what is inside (None: nothing that this section tells)."""
    if isinstance(spec, tuple):
        said, inside = type_of(spec[0], name)
        return said + "?", inside
    if isinstance(spec, list):
        part = part_of(spec[1])
        return (f"list of {part}", None) if part else ("list", spec[1])
    if isinstance(spec, dict):
        return part_of(spec) or "map", None if part_of(spec) else spec
    if not isinstance(spec, str):
        return "text?" if name in schema.NULLABLE else "text", None
    word = spec.rstrip("?")
    return PLAIN.get(word, word) + spec[len(word):], None


def fields_of(spec, before=""):
    for name, field in spec.items():
        said, inside = type_of(field, name)
        yield before + name, said
        if inside:
            yield from fields_of(inside, before + name + ("[]." if said.startswith("list") else "."))


def main():
    wrong, told = [], {}
    for chapter in re.split(r"^## ", (ROOT / "docs/json.md").read_text(), flags=re.M)[1:]:
        for section in re.split(r"^### ", chapter, flags=re.M)[1:]:
            told[f"{chapter.splitlines()[0]}: {section.splitlines()[0]}"] = dict(ROW.findall(section))
    for name in sorted(SECTIONS.keys() ^ told.keys()):
        wrong.append(f"{name}: {'not there' if name in SECTIONS else 'nobody checks it'}")
    for name in SECTIONS.keys() & told.keys():
        is_so = dict(fields_of(SECTIONS[name]))
        for field in sorted(is_so.keys() | told[name].keys()):
            if is_so.get(field) != told[name].get(field):
                wrong.append(f"{name}: {field} is {is_so.get(field, 'not there')}, told as "
                             f"{told[name].get(field, 'nothing')}")
    words = " ".join(re.findall(r"^\| (?:version state|worker state|copy state|phase|event type) \| (.*) \|$",
                                (ROOT / "docs/json.md").read_text(), re.M))
    for word in re.findall(r"[a-z]+\.?[a-z]+", " ".join(re.findall(r"`([^`]+)`", words))):
        if not any(schema.TYPES[t](word) for t in ("version_state", "worker_state", "copy_state", "phase",
                                                   "event_type")) and word != "null":
            wrong.append(f"{word} is no word of a state, phase or event")
    for line in sorted(wrong):
        print(f"docs/json.md: {line}")
    if not wrong:
        print(f"json: {sum(map(len, told.values()))} fields in {len(told)} objects are told as they are")
    return 1 if wrong else 0


sys.exit(main())
