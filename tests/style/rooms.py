#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, who may write a copy's fields and what a worker serves, and who may read
which version is active; and that docs/architecture.md, Rooms, names each file.  Prints every include
that breaks the rule of that page, every file that it lacks, every write that breaks the rule of
broker/rollout/copy.h or broker/members/serving.h, every read that breaks the rule of
broker/registry/active.h or broker/rollout/rule.h, and exits with 1.

A header says in its first comment which thread it is for.  Those that say PURE are the files of PURE."""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAY = {  # room -> rooms whose headers it may include (besides its own and include/heddle)
    "core": set(), "proto": {"core"}, "formats": {"core", "proto"},
    "wire": {"core"}, "memory": {"core"}, "transfer": {"core"},
    "client": {"core", "proto", "formats", "wire", "memory", "transfer"},
    "worker": {"core", "proto", "formats", "wire", "memory", "transfer", "client"},
    "trainer_client": {"core", "proto", "formats", "wire", "memory", "transfer", "client"},
    "http": {"core", "proto"}, "broker": {"core", "proto", "formats", "wire", "http"},
    "sidecar": {"core", "http"}, "cli": {"core"},
    "tools": {"core", "formats", "bench"}, "bench": {"core"}, "examples": set(),
}
LIBRARIES = {  # header, of a library or of a folder that hides one -> where it may be included
    r"msgpack": r"^(proto|formats)/", r"(czmq|zmq)": r"^wire/", r"(ucp|ucs|uct)/|^uc[pst]": r"^transfer/ucx",
    r"cuda": r"^transfer/", r"sodium|xxhash": r"^core/digest", r"microhttpd": r"^http/server",
    r"gnutls": r"^http/certificate", r"curl/": r"^broker/store/etcd_http", r"ncurses": r"^cli/top",
    r"http/": r"^(http/|broker/main_|sidecar/(main|http))",
    r"sqlite3|broker/store/store_": r"^broker/store/",
    r"broker/store/(store|etcd)\.h": r"^broker/(store/|main_store)",    # the doors of that folder
}
PURE = re.compile(r"^(broker/(registry/|rollout/|plan/|members/(membership|serving|strangers)|"
                  r"inbox/(report|staged|active|nack|verified|need_sources)|"
                  r"keys/(auth|invitation)|brokers|events|outbox|standby|"
                  r"store/(columns|rows|schema|etcd_(follow|json|leader|page))|"
                  r"questions/(pending|answer|cell|status_reasons|timing|why))[a-z_]*|"
                  r"client/(session|entering)|worker/(versions|labels|fetch)|memory/(rules|rounds)|"
                  r"core/(sized|units|histogram)|transfer/(frame|pace|extents|ring)|"
                  r"http/(asset|request|metrics)|sidecar/http_metrics|"
                  r"cli/(agreement|board|diagnosis|frame|verdict)|bench/compare)\.[ch]$")
THREADLESS = {"tools", "examples", "bench"}      # programs of one thread
# A pure file looks at what it is given: it reaches neither the system nor the whole broker.
IMPURE = re.compile(r"^(sys/|unistd|fcntl|time\.h|poll|pthread|threads|stdio|errno|signal|netinet|arpa|"
                    r"core/log|core/failpoint|wire/|broker/(broker|state|call|txn|restored_numbers)\.h|"
                    r"broker/(store/(?!columns|rows|schema|etcd_(?:follow|json|leader|page))|inbox/inbox|"
                    r"keys/(client_keys|own_keys)|members/(sessions|roster)|"
                    r"questions/query))")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)

broken = []
for path in sorted(ROOT.glob("*/**/*.[ch]")):
    name = path.relative_to(ROOT).as_posix()
    room = name.split("/")[0]
    if room not in MAY:
        continue
    for header in INCLUDE.findall(path.read_text()):
        other = header.split("/")[0]
        allowed = MAY[room] | {room}
        if other in MAY and other not in allowed:
            broken.append(f"{name}: includes {header}, which {room} may not see")
        for library, where in LIBRARIES.items():
            if re.match(library, header) and not re.match(where, name):
                broken.append(f"{name}: includes {header}, which belongs to {where}")
        if PURE.match(name) and IMPURE.match(header):
            broken.append(f"{name}: a pure file includes {header}")
    if name.endswith(".h"):
        said = re.search(r"/\*(?! SPDX).*?\*/", path.read_text(), re.S)[0]
        says_pure = re.search(r"\bPURE\b", said) is not None
        if says_pure != (PURE.match(name) is not None):
            broken.append(f"{name}: " + ("rooms.py lacks it in PURE" if says_pure else "does not say PURE"))
        if not says_pure and room not in THREADLESS and not re.search(r"\bthreads?\b", said, re.I):
            broken.append(f"{name}: does not say which thread it is for")

# The page names each file of a room, `noun` or `noun*`, in the room's row or in its line of the list.
# Of the subcommands, a file each, it names those alone that have a header.
page = (ROOT / "docs/architecture.md").read_text()
page = page[page.index("\n## Rooms"):page.index("\n## Threads")]
NAMED = {}  # folder -> what stands in backticks there
for folder, said in re.findall(r"^(?:\| |- )`([a-z_/]+)/`(.*(?:\n  .*)*)", page, re.M):
    NAMED.setdefault(folder, set()).update(re.findall(r"`([a-z0-9_*]+)`", said))
for path in sorted(ROOT.glob("*/**/*.[ch]")):
    folder, name = path.parent.relative_to(ROOT).as_posix(), path.relative_to(ROOT).as_posix()
    is_listed = folder.split("/")[0] in MAY and folder.split("/")[0] not in {"examples", "tools"}
    is_subcommand = folder == "cli" and not path.with_suffix(".h").exists()
    if is_listed and not is_subcommand:
        if not any(fnmatch.fnmatch(path.stem, noun) for noun in NAMED.get(folder, ())):
            broken.append(f"docs/architecture.md, Rooms: lacks {name}")

# Other files than copy.c only read a copy (a variable `c`, or a member of that name, in these folders).
header = re.sub(r"/\*.*?\*/", "", (ROOT / "broker/rollout/copy.h").read_text(), flags=re.S)
struct = re.search(r"typedef struct copy_row \{(.*?)\} copy_row_t;", header, re.S)[1]
FIELDS = "|".join(re.findall(r"\b([a-z_]+)(?:\[\w[^]]*\])?(?=[,;])", struct))
COPY = r"(?:c|copies\[\w+\]|track_walk\(t, \w+\))"
WRITE = re.compile(rf"\b{COPY}->(?:{FIELDS})(?:\[[^]]*\]|\.\w+)*\s*(?:[-+|&]?=(?!=)|\+\+|--)")
for folder in ("broker/rollout", "broker/inbox", "broker/questions"):
    for path in sorted((ROOT / folder).glob("*.c")):
        if path.name != "copy.c":
            name = path.relative_to(ROOT)
            broken += [f"{name}: {write} is for copy.c alone" for write in WRITE.findall(path.read_text())]

# Other files than serving.c only read what a worker serves.
SERVING = re.compile(r"\bserving(?:\.|->)\w+\s*(?:[-+|&]?=(?!=)|\+\+|--)")
for path in sorted((ROOT / "broker").rglob("*.c")):
    name = path.relative_to(ROOT).as_posix()
    broken += [f"{name}: {write} is for serving.c alone" for write in SERVING.findall(path.read_text())]

# What is active is asked for a worker, or for the adapter: by active.h.  (`m` is a message, which
# has a part of that name.)
ACTIVE = re.compile(r"(?<!\bm)->active\b(?!\s*\()")
for path in sorted((ROOT / "broker").rglob("*.[ch]")):
    name = path.relative_to(ROOT).as_posix()
    if name not in ("broker/registry/registry.c", "broker/registry/active.c"):
        broken += [f"{name}:{at}: reads which version is active past broker/registry/active.h"
                   for at, line in enumerate(path.read_text().splitlines(), 1) if ACTIVE.search(line)]

# What an activation means is asked of rule.h.
for path in sorted((ROOT / "broker").rglob("*.[ch]")):
    name = path.relative_to(ROOT).as_posix()
    if name != "broker/rollout/rule.c" and "HEDDLE_ACTIVATION_" in path.read_text():
        broken.append(f"{name}: compares an activation past broker/rollout/rule.h")
print("\n".join(broken) if broken else "rooms: every include is allowed, every file has its place, "
      "only copy.c writes copies, only serving.c what a worker serves, only active.h says what is active, "
      "and only rule.h what an activation means")
sys.exit(1 if broken else 0)
