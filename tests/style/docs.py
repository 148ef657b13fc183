#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every test that docs/*.md name as `file: case` is there.  Prints those that are not and exits with 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(?:tests/)?([a-z]+/[a-z_]+(?:\.c|\.py)?):\s+([a-z0-9_]+)`")

missing, count = [], 0
for page in sorted(ROOT.glob("docs/*.md")):
    for file, case in NAMED.findall(page.read_text()):
        count += 1
        path = ROOT / "tests" / file
        there = re.compile(rf"^(Test\([a-z_]+, {case}\b|case_{case}\(\)|def {case}\()", re.M)
        if not path.exists() or not there.search(path.read_text()):
            missing.append(f"{page.name}: tests/{file} has no test {case}")
print("\n".join(missing) if missing else f"docs: {count} named tests are there")
sys.exit(1 if missing or not count else 0)
