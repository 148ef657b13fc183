#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md has each finding of `heddle doctor` with its level, in the order of the table of
cli/diagnosis.c, and tests/cli/diagnosis.c makes each of them."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = re.compile(r'^    \{"([a-z_]+\.[a-z_]+)", LEVEL_([A-Z]+),', re.M)
ROW = re.compile(r"^\| `([a-z_.]+)` \| (note|warning|critical) \|", re.M)

checks = [(name, level.lower()) for name, level in CHECK.findall((ROOT / "cli/diagnosis.c").read_text())]
page = (ROOT / "docs/operations.md").read_text()
chapter = re.search(r"^### heddle doctor$(.*?)^### ", page, re.M | re.S)[1]
rows = ROW.findall(chapter)
tests = (ROOT / "tests/cli/diagnosis.c").read_text()
wrong = [f"operations.md: {row} does not fit {check}" for row, check in zip(rows, checks) if row != check]
wrong += [f"operations.md has {len(rows)} findings of {len(checks)}"] if len(rows) != len(checks) else []
wrong += [f"tests/cli/diagnosis.c: {name} is never found" for name, _ in checks if f'"{name}"' not in tests]
wrong += ["cli/diagnosis.c: its table is not read"] if len(checks) < 20 else []
print("\n".join(wrong) if wrong else f"findings: {len(checks)}, each told and tested")
sys.exit(1 if wrong else 0)
