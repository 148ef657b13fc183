#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The help of a command says what each column of its table is: every heading occurs there before a colon, as
"worker: its name" or "own, held: the shared memory".  Prints the headings that do not and exits with 1."""
import os
import pathlib
import re
import subprocess
import sys

CLI = pathlib.Path(os.environ["HEDDLE_SOURCE_DIR"]) / "cli"
HEDDLE = pathlib.Path(os.environ["HEDDLE_BIN_DIR"]) / "heddle"
TABLE = re.compile(r"table_init\(&t,([^;]*)\);", re.S)

wrong, count = [], 0
for path in sorted(CLI.glob("*.c")):
    headings = [heading.lower() for table in TABLE.findall(path.read_text())
                for heading in re.findall(r'"[>+~<]*([A-Z ]+)"', table)]
    for command in ("status", "adapters") if headings and path.stem == "status" else (path.stem,):
        shown = subprocess.run([HEDDLE, command, "--help"], capture_output=True, text=True).stdout
        terms = {term for line in re.findall(r"(?:^|  )([a-z ]+(?:, [a-z ]+)*):", shown, re.M)
                 for term in line.split(", ")}
        count += len(headings)
        wrong += [f"{command} --help does not say what {h} is" for h in headings if h not in terms]
print("\n".join(wrong) if wrong else f"headings: help explains all {count}")
sys.exit(1 if wrong or count < 40 else 0)
