#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The path of a version in docs/architecture.md names functions that exist.  Each line of the list between
its two markers is a file and a function that this file defines.  Prints those that are not; exits with 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
LIST = re.compile(r"^<!-- path of a version -->$(.*)^<!-- end of the path -->$", re.M | re.S)
STEP = re.compile(r"^([a-z_/]+\.c) +([a-z_0-9]+)$")
LEG = re.compile(r"^[A-Z].*:$")         # a heading within the list
MOST = 72                               # it is to be read in a minute or two


def defines(text, function):
    """A definition begins a line; what follows its parameters is a body, not a semicolon."""
    return re.search(rf"^[a-z_][^;{{}}()\n]*\b{function}\([^;{{]*\)\s*\{{", text, re.M)


found = LIST.search(PAGE.read_text())
if not found:
    sys.exit(f"path: {PAGE.name} has no list between its markers")
wrong, steps = [], []
for line in filter(None, (line.strip() for line in found[1].splitlines())):
    step = STEP.match(line)
    if step:
        steps.append(step.groups())
    elif line != "```" and not LEG.match(line):
        wrong.append(f"{line!r} is neither a step nor a leg")
for name, function in steps:
    file = ROOT / name
    if not file.is_file():
        wrong.append(f"{function}: there is no file {name}")
    elif not defines(file.read_text(), function):
        wrong.append(f"{name} defines no function {function}")
if not 20 <= len(steps) <= MOST:
    wrong.append(f"{len(steps)} steps; 20 to {MOST} are expected")
print("\n".join(f"{PAGE.name}: {w}" for w in wrong) if wrong else f"path: {len(steps)} steps are there")
sys.exit(1 if wrong else 0)
