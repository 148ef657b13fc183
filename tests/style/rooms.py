#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, and who may write a copy's fields.  Prints every include that breaks the rule of
docs/architecture.md, every write that breaks the rule of broker/rollout/copy.h, and exits with 1.

A header says in its first comment which thread it is for.  Those that say PURE are the files of PURE."""
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
    r"gnutls": r"^http/certificate", r"ncurses": r"^cli/top",
    r"http/": r"^(http/|broker/main_|sidecar/(main|http))",
    r"sqlite3|broker/store/store_": r"^broker/store/",
    r"broker/store/store\.h": r"^broker/(store/|main_daemon)",    # the door of that folder
}
PURE = re.compile(r"^(broker/(registry/|rollout/|plan/|members/(membership|strangers)|"
                  r"inbox/(report|staged|active|nack|verified|need_sources)|events|outbox|auth|invitation|"
                  r"questions/(pending|answer|json_parts|status_reasons|timing|why))[a-z_]*|"
                  r"client/(session|entering)|worker/(versions|labels|fetch)|memory/(rules|rounds)|"
                  r"core/(sized|units|histogram)|transfer/(frame|pace|extents|ring)|"
                  r"http/(asset|request|metrics)|sidecar/http_metrics|cli/(agreement|board|frame|verdict)|"
                  r"bench/compare)\.[ch]$")
THREADLESS = {"tools", "examples", "bench"}      # programs of one thread
# A pure file looks at what it is given: it reaches neither the system nor the whole broker.
IMPURE = re.compile(r"^(sys/|unistd|fcntl|time\.h|poll|pthread|threads|stdio|errno|signal|netinet|arpa|"
                    r"core/log|core/failpoint|wire/|broker/(broker|state|call|txn|client_keys|"
                    r"restored_numbers)\.h|broker/(store/|inbox/inbox|members/(sessions|roster)|"
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

# Other files than copy.c only read a copy (a variable `c`, or a member of that name, in these folders).
header = re.sub(r"/\*.*?\*/", "", (ROOT / "broker/rollout/copy.h").read_text(), flags=re.S)
struct = re.search(r"typedef struct copy_row \{(.*?)\} copy_row_t;", header, re.S)[1]
FIELDS = "|".join(re.findall(r"\b([a-z_]+)(?:\[\w[^]]*\])?(?=[,;])", struct))
WRITE = re.compile(rf"\b(?:c|copies\[\w+\])->(?:{FIELDS})(?:\[[^]]*\]|\.\w+)*\s*(?:[-+|&]?=(?!=)|\+\+|--)")
for folder in ("broker/rollout", "broker/inbox", "broker/questions"):
    for path in sorted((ROOT / folder).glob("*.c")):
        if path.name != "copy.c":
            name = path.relative_to(ROOT)
            broken += [f"{name}: {write} is for copy.c alone" for write in WRITE.findall(path.read_text())]
print("\n".join(broken) if broken else "rooms: every include is allowed, and only copy.c writes copies")
sys.exit(1 if broken else 0)
