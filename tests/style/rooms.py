#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom.  Prints every include that breaks the rule of docs/architecture.md and exits with
1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAY = {  # room -> rooms whose headers it may include (besides its own and include/heddle)
    "core": set(),
    "proto": {"core"}, "wire": {"core"}, "memory": {"core"}, "transfer": {"core", "memory"},
    "client": {"core", "proto", "wire", "memory", "transfer"},
    "worker": {"core", "proto", "wire", "memory", "transfer", "client"},
    "trainer_client": {"core", "proto", "wire", "memory", "transfer", "client"},
    "broker": {"core", "proto", "wire"},
    "sidecar": {"core"}, "cli": {"core"},
    "tools": {"core", "proto", "bench"}, "bench": {"core"}, "examples": set(),
}
LIBRARIES = {  # header -> where it may be included
    r"msgpack": r"^proto/", r"(czmq|zmq)": r"^wire/", r"(ucp|ucs|uct)/|^uc[pst]": r"^transfer/ucx",
    r"cuda": r"^transfer/", r"sqlite3": r"^broker/registry/store(_row)?\.c$",
    r"sodium|xxhash": r"^core/digest",
}
PURE = re.compile(r"^(broker/(registry/(registry|record|publish|writer|decision)|rollout/|membership|events|"
                  r"outbox|auth|strangers|questions/(pending|aim|report|json_parts))[a-z_]*|"
                  r"client/session|worker/sync|worker/fetch|memory/(rules|rounds))\.[ch]$")
# A pure file looks at what it is given: it reaches neither the system nor the whole broker.
IMPURE = re.compile(r"^(sys/|unistd|fcntl|time\.h|poll|pthread|threads|stdio|errno|signal|netinet|arpa|"
                    r"core/log|core/failpoint|wire/|broker/(node|state|call|txn|apply|sessions|keys|"
                    r"older_store|versions)\.h|broker/questions/query)")
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
print("\n".join(broken) if broken else "rooms: every include is allowed")
sys.exit(1 if broken else 0)
