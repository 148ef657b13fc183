#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source says its licence near its top, and the version is written once.  Prints what does not and
exits with 1."""
import hashlib
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# of apache.org/licenses/LICENSE-2.0.txt
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
LINE = "SPDX-License-Identifier: Apache-2.0"
ENDINGS = {".c", ".h", ".py", ".sh", ".cmake", ".in", ".1", ".3", ".5", ".7", ".bash", ".zsh", ".env",
           ".service", ".conf", ".sbatch"}
NAMES = {"CMakeLists.txt", "Makefile", "Containerfile", "_heddle"}
# debian/: its copyright file says it for all
SKIP = {"build", ".git", ".venv", "venv", "__pycache__", "fixtures", "corpus", "debian"}
DATA = {"tests/golden"}


def is_source(path):
    if path.suffix in ENDINGS or path.name in NAMES:
        return True
    with path.open("rb") as f:
        return f.read(2) == b"#!"


def sources():
    for folder, folders, files in os.walk(ROOT):
        here = pathlib.Path(folder)
        folders[:] = [f for f in folders
                      if f not in SKIP and (here / f).relative_to(ROOT).as_posix() not in DATA]
        yield from (here / f for f in files)


wrong, count = [], 0
for path in sorted(sources()):
    if path.is_symlink() or not is_source(path):
        continue
    count += 1
    if LINE not in "".join(path.open(errors="replace").readlines()[:5]):
        wrong.append(f"{path.relative_to(ROOT)}: no line {LINE}")
if hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() != APACHE_2:
    wrong.append("LICENSE: not the text of the Apache License 2.0, whole and unchanged")

version = ".".join(re.findall(r"#define HEDDLE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
                              (ROOT / "include/heddle/version.h").read_text()))
if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M):
    wrong.append(f"CHANGELOG.md: no section {version}")
for place in ["CMakeLists.txt", "cmake", "deploy", "tools"]:
    for path in sorted((ROOT / place).rglob("*") if (ROOT / place).is_dir() else [ROOT / place]):
        if path.is_file() and version in path.read_text(errors="replace"):
            wrong.append(f"{path.relative_to(ROOT)}: writes the version {version}; it is read from "
                         f"include/heddle/version.h")
print("\n".join(wrong) if wrong else f"spdx: {count} sources name their licence; version {version}")
sys.exit(1 if wrong or count < 100 else 0)
