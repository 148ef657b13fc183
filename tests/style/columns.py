#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No line of C or Python is longer than 110 columns in the rooms that keep to it, nor is a line of prose of a
page: tables, code and HTML comments may be.  Prints those that are and exits with 1."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
C = """include/heddle core proto formats wire memory transfer client worker sidecar trainer_client cli broker
       http bench""".split()
# Folders, with all below them, and single files.
PYTHON = """python/heddle python/tests python/tools examples bench tools/surfaces
            tests/blackbox tests/engines tests/evidence tests/fixtures tests/fanout tests/fanout/run
            tests/foreign tests/fuzz tests/independent tests/install tests/large tests/large/run tests/lib
            tests/python tests/run tests/style""".split()
PAGES = "*.md docs/*.md python/*.md examples/*/*.md".split()
MADE = ("_abi.py",)         # by the build
MOST = 110


def files():
    for room in C:
        yield from sorted((ROOT / room).rglob("*.[ch]"))
    for place in PYTHON:
        at = ROOT / place
        found = sorted(p for p in at.rglob("*.py") if p.name not in MADE) if at.is_dir() else [at]
        if not found:
            sys.exit(f"columns: no Python in {place}")
        yield from found


def prose(path):
    """-> (number, line) of a page, without tables, code and HTML comments"""
    is_fenced = is_indented = False
    before = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.lstrip()
        is_fenced ^= text.startswith("```")
        is_indented = line.startswith("    ") and (is_indented or not before)
        before = text
        if not is_fenced and not is_indented and not text.startswith(("|", "<!--", "```")):
            yield number, line


wrong, count = [], 0
for path in files():
    for number, line in enumerate(path.read_text().splitlines(), 1):
        count += 1
        if len(line) > MOST:
            wrong.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns")
for path in sorted(p for name in PAGES for p in ROOT.glob(name)):
    for number, line in prose(path):
        count += 1
        if len(line) > MOST:
            wrong.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns")
places = ", ".join(C + PYTHON + PAGES)
print("\n".join(wrong) if wrong else f"columns: {count} lines of {places} have at most {MOST}")
sys.exit(1 if wrong or count < 1000 else 0)
