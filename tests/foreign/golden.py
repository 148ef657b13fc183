#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""golden.py [--write-frames]: golden bytes against the page, read by nothing of ours: each message and row
with each of its keys, each transfer frame; and today's page against the tables of wire version 1 as they
were."""
import re
import struct
import sys

import msgpack

import page
from page import ROOT

PAGE, OLD = page.load(), page.load("tests/golden/wire-v1.md")
GOLDEN = ROOT / "tests/golden"
failed = 0


def check(text, wrong):
    global failed
    print(f"FAIL {text}: {wrong}" if wrong else f"ok   {text}")
    failed += bool(wrong)


def write_frames():
    """After a deliberate change of the page's examples."""
    (GOLDEN / "frames.txt").write_text("".join(f"{name} {example(text).hex()}\n"
                                               for name, (_, text) in frame_sections().items()))


def lines_of(name):
    return {line.split()[0]: bytes.fromhex(line.split()[1])
            for line in (GOLDEN / name).read_text().splitlines()}


# --- messages ---

def keys_not_as_the_table(table, row):
    if list(row) != [f.key for f in table]:
        return f"keys {list(row)}"
    rows = [(f, r) for f in table if f.kind.startswith("list of ") for r in row[f.key]]
    return next(filter(None, (keys_not_as_the_table(PAGE.rows[f.kind.removeprefix("list of ")], r)
                              for f, r in rows)), None)


def wrong_message(number, frame):
    message = PAGE.messages[number]
    got, fields = msgpack.unpackb(frame)
    if got != number:
        return f"type {got}"
    if msgpack.packb([got, fields]) != frame:
        return "not the shortest form"
    return keys_not_as_the_table(message.fields, fields) or PAGE.wrong_with(number, fields)


# --- frames ---

HEAD = struct.Struct("<BBHIQ")
SIZES = {"u64": 8, "u32": 4, "u16": 2, "16": 16}   # "u64 token", "16 bytes share key"


def frame_sections():
    """{name: (kind, text)} as the page numbers them."""
    text = (ROOT / "docs/protocol.md").read_text().split("\n## Transfer frames\n")[1]
    kinds = re.search(r"^\| 0 \| 1 \| kind \| (.*) \|$", text, re.M)[1]
    sections = dict(re.findall(r"^### ([A-Z]+)$(.*?)(?=^###)", text, re.M | re.S))
    return {name: (int(number), sections[name]) for number, name in re.findall(r"(\d+) ([A-Z]+)", kinds)}


def example(text):
    """The bytes: pairs of hex digits at the beginning of indented lines."""
    pairs = [re.match(r"    ((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})(?:$|   )", line)
             for line in text.splitlines()]
    return bytes.fromhex("".join(m[1] for m in pairs if m))


def size_of(part):
    return sum(SIZES[field.split()[0]] for field in part.split(",") if field.strip())


def wrong_frame(number, text, frame):
    kind, version, count, zero, line = HEAD.unpack_from(frame)
    if (kind, version, zero) != (number, 1, 0) or not line:
        return f"head {(kind, version, count, zero, line)}"
    layout = re.search(r"`head((?:[^`{]|\{[^}]*\})*)`", text)[1]
    fixed, _, row = layout.partition("count × {")
    wanted = (HEAD.size + size_of(fixed.replace("address", ""))
              + count * (size_of(row.strip(" }")) if row else "address" in fixed))
    return None if len(frame) == wanted else f"{len(frame)} bytes, not {wanted}"


# --- wire version 1 ---

def incompatible(old, new):
    """What a client of then would miss in a table of today; a key that is new must not be required."""
    now = {f.key: f for f in new}
    changed = [f.key for f in old if now.get(f.key) != f]
    required = [f.key for f in new if f.required and f.key not in {o.key for o in old}]
    return f"changed {changed}, newly required {required}" if changed or required else None


def main():
    messages = lines_of("messages.txt")
    check("messages.txt has each message of the page, in its order",
          list(messages) != [m.name for m in PAGE.messages.values()])
    for number, message in PAGE.messages.items():
        check(f"{message.name}: every key, in order, in the shortest form",
              message.name not in messages or wrong_message(number, messages[message.name]))
    frames, sections = lines_of("frames.txt"), frame_sections()
    check("frames.txt has each frame of the page, with its bytes",
          {name: example(text) for name, (_, text) in sections.items()}.items() ^ frames.items())
    for name, (number, text) in sections.items():
        check(f"{name}: its layout", name not in frames or wrong_frame(number, text, frames[name]))
    check("every number of wire version 1 names the same message",
          {n: m.name for n, m in OLD.messages.items()}.items() - PAGE.numbered().items())
    for number, message in OLD.messages.items():
        check(f"{message.name}: what wire version 1 had",
              number not in PAGE.messages or incompatible(message.fields, PAGE.messages[number].fields))
    for name, row in OLD.rows.items():
        check(f"row {name}: what wire version 1 had",
              name not in PAGE.rows or incompatible(row, PAGE.rows[name]))
    said = {line.split()[2] for line in (GOLDEN / "session-v1.txt").read_text().splitlines()
            if line[0] != "#" and line.split()[1] != "x"}
    check("session-v1.txt has each message of wire version 1", {m.name for m in OLD.messages.values()} - said)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(write_frames() if sys.argv[1:] == ["--write-frames"] else main())
