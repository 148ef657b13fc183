#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every variable that the programs read is in docs/architecture.md, and every one there is read."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = "core proto formats wire memory transfer client trainer_client worker sidecar broker http cli".split()
GETENV = re.compile(r'getenv\("([A-Z_]+)"\)')
OTHER = re.compile(r'"((?:HEDDLE|XDG)_[A-Z_]+)"')          # names that reach getenv by a table or a macro
# set for hooks
NOT_READ = {"HEDDLE_ADAPTER", "HEDDLE_VERSION", "HEDDLE_DIGEST", "HEDDLE_TAG", "HEDDLE_PATH",
            # words of messages
            "HEDDLE_MEMORY_HOST", "HEDDLE_MEMORY_CUDA"}
ROW = re.compile(r"^\| `([A-Z_]+)` \|", re.M)


def read_by_programs():
    found = set()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.[ch]")):
            text = path.read_text()
            found |= set(GETENV.findall(text)) | set(OTHER.findall(text))
    return found - NOT_READ


def main():
    text = (ROOT / "docs/architecture.md").read_text()
    told = set(ROW.findall(text.split("## Environment", 1)[1].split("\n## ", 1)[0]))
    read = read_by_programs()
    for name in sorted(read - told):
        print(f"docs/architecture.md, Environment: {name} is read, and not there")
    for name in sorted(told - read):
        print(f"docs/architecture.md, Environment: nobody reads {name}")
    return 1 if read != told else 0


sys.exit(main())
