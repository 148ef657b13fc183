#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every error code is in the table of docs/operations.md with its exit status and whether it is retriable,
and every one there exists; what a row says that it looks like is what the sources say."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = "core proto formats wire memory transfer client trainer_client worker sidecar broker http cli".split()
LISTED = re.compile(r'^    X\([A-Z_]+, \d+, "([a-z_]+)", (\d+), [A-Z]+, ([01]),', re.M)
ROW = re.compile(r"^\| `([a-z_]+)` \| (\d+) \| (yes|no) \| (.*?) \| (.*?) \| (.*?) \|$", re.M)
TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
NUMBER = re.compile(r'%"\s*PRI\w+\s*"')
GLUE = re.compile(r'(?<!\\)"\s*\n?\s*"')
FORMAT = re.compile(r"%[-+ #0]*[\d.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]")


def said_by_sources():
    texts = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.[ch]")):
            source = GLUE.sub("", NUMBER.sub("…", path.read_text()))
            source = source.replace('"transfer_ucx.so"', "").replace('" PLUGIN "', "transfer_ucx.so")
            texts += (FORMAT.sub("…", t.replace('\\"', '"')) for t in TEXT.findall(source))
    return "\n".join(re.sub("…(@?…)*", "…", t) for t in texts)   # a version is one thing


# Hints of the library, and of the broker to its clients, are read in C and Python too: they name the fields
# of options (opts.x), which each program puts into its own words.  What heddle-broker is started with is
# meant as an option, and so is what stands in a command (`...`).
LIBRARY = "core proto formats wire memory transfer client trainer_client worker broker".split()
HINT = re.compile(r"error_hint\((.*?)\);", re.S)
OF_THE_BROKER = {"--data", "--keep", "--keys", "--insecure", "--help", "--key", "--role", "--version",
                 "--http", "--http-token", "--http-cert", "--http-key", "--store", "--store-cluster",
                 "--store-ca", "--store-cert", "--store-key", "--store-user"}
OF_A_PROGRAM = {"option.c", "option_guess.c"}       # the parser itself


def options_in_hints():
    for room in LIBRARY:
        for path in sorted((ROOT / room).rglob("*.c")):
            for call in HINT.findall(path.read_text()):
                text = re.sub(r"`[^`]*`", "", GLUE.sub("", NUMBER.sub("…", call)))
                named = {o for t in TEXT.findall(text) for o in re.findall(r"--[a-z][a-z-]*", t)}
                for option in named - OF_THE_BROKER if path.name not in OF_A_PROGRAM else ():
                    yield f"{path.relative_to(ROOT)}: a hint names {option}: say opts.x"


def main():
    wrong, hints = [], [*options_in_hints()]
    listed = {name: (exit, "yes" if again == "1" else "no")
              for name, exit, again in LISTED.findall((ROOT / "include/heddle/error.h").read_text())}
    section = (ROOT / "docs/operations.md").read_text().split("\n## Errors\n", 1)[1].split("\n## ", 1)[0]
    rows = ROW.findall(section)
    said = said_by_sources()
    for name in sorted(listed.keys() - {row[0] for row in rows}):
        wrong.append(f"{name} is not there")
    for name, exit, again, looks, cause, cure in rows:
        if name not in listed:
            wrong.append(f"{name}: there is no such code")
        elif listed[name] != (exit, again):
            wrong.append(f"{name}: exit and again are {listed[name]}")
        if not cause.strip("– ") or not cure.strip():
            wrong.append(f"{name}: no cause or cure")
        wrong += (f"{name}: nobody says {text}" for text in re.findall(r"`([^`]+)`", looks)
                  if text not in said)
    if len(rows) != len({row[0] for row in rows}):
        wrong.append("a code is there twice")
    for line in wrong:
        print(f"docs/operations.md, Errors: {line}")
    for line in hints:
        print(line)
    if not wrong and not hints:
        print(f"errors: {len(rows)} codes are explained")
    return 1 if wrong or hints or len(listed) < 30 else 0


sys.exit(main())
