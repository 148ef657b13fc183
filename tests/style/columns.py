#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No line of C is longer than 110 columns in the rooms that keep to it.  Prints those that are and exits with 1."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = "core proto client cli broker bench".split()
MOST = 110

wrong, count = [], 0
for room in ROOMS:
    for path in sorted((ROOT / room).glob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            count += 1
            if len(line) > MOST:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns")
print("\n".join(wrong) if wrong else f"columns: {count} lines of {', '.join(ROOMS)} have at most {MOST}")
sys.exit(1 if wrong or count < 1000 else 0)
