#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One word, one meaning: no type name of C is defined in two rooms, neither in headers nor in files, so that
a search for it leads to one place.  A second name for one structure, as `typedef struct sharing sharing_t;`
ahead of its header, defines nothing."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = """core proto formats wire memory transfer client worker sidecar trainer_client broker
           broker/inbox broker/members broker/registry broker/store broker/rollout broker/plan
           broker/questions cli bench tools""".split()
# args_t: the command line of one program or subcommand; each such file has its own, and no other sees it.
PRIVATE = {"args_t"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
BODY = re.compile(r"^\}\s*(?:__attribute__\S+\s*)?(\w+_t);", re.M)
TAGGED = re.compile(r"^(?:struct|union|enum)\s+(\w+)\s*\{", re.M)
TYPEDEF = re.compile(r"^typedef\s+([^;{}]*?)\b(\w+_t);", re.M)
FORWARD = re.compile(r"(?:struct|union|enum)\s+\w+\s*")
POINTER = re.compile(r"^typedef[^;{}]*\(\*(\w+)\)\(", re.M)


def defined(text):
    yield from BODY.findall(text)
    yield from POINTER.findall(text)
    yield from (f"{tag}_t" for tag in TAGGED.findall(text))
    yield from (name for of, name in TYPEDEF.findall(text) if not FORWARD.fullmatch(of))


def doubles():
    places = collections.defaultdict(dict)
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.[ch]")):
            for name in defined(COMMENT.sub("", path.read_text())):
                places[name].setdefault(room, path.relative_to(ROOT).as_posix())
    for name, rooms in sorted(places.items()):
        if len(rooms) > 1 and name not in PRIVATE:
            yield f"{name}: {' and '.join(rooms.values())} define it"


wrong = list(doubles())
print("\n".join(wrong) if wrong else "typenames: no name is defined in two rooms")
sys.exit(bool(wrong))
