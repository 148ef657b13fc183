#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/torture/failpoints.list names the failpoints of the sources, with a kill where nothing fails."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = "core proto formats wire memory transfer client trainer_client worker sidecar broker http cli".split()
POINT = re.compile(r'(\(void\)\s*)?\bFAILPOINT(_OF)?\("([\w.]+)"')


def in_sources():
    """-> names, places of which each message has a name, names where one can only die."""
    names, places, deadly = set(), set(), set()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.[ch]")):
            for is_void, has_kinds, name in POINT.findall(path.read_text()):
                (places if has_kinds else names).add(name)
                if is_void:
                    deadly.add(name)
    return names, places, deadly


def main():
    lines = (ROOT / "tests/torture/failpoints.list").read_text().splitlines()
    listed = dict((line.split(None, 1) + [""])[:2] for line in lines if line and line[0] != "#")
    names, places, deadly = in_sources()
    wrong = [f"{name} is in the sources, and not in the list" for name in names - set(listed)]
    wrong += [f"{place}.* is in the sources, and no message of it in the list" for place in places
              if not any(name.startswith(place + ".") for name in listed)]
    wrong += [f"{name} is in the list, and not in the sources" for name in set(listed) - names
              if name.rpartition(".")[0] not in places]
    wrong += [f"{name}: nothing fails there, and the list has no kill" for name in deadly
              if f"tests/kill/run --place {name} " not in listed.get(name, "")]
    for line in sorted(wrong):
        print(f"tests/torture/failpoints.list: {line}")
    print(f"failpoints: {len(listed)} listed, of {len(names)} names and {len(places)} places of messages")
    return 1 if wrong or not names or not places else 0


sys.exit(main())
