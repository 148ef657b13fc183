#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/style/tidy.py BUILD: clang-tidy, with the checks of .clang-tidy, finds nothing in the product's C
files, as they are compiled in BUILD.  Prints what it finds and exits with 1; 77 where clang-tidy is not
installed."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
build = pathlib.Path(sys.argv[1])
if not shutil.which("clang-tidy"):
    print("skipped: clang-tidy is not installed (tools/setup test)")
    sys.exit(77)


def is_product(path):
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in ("tests", "build")


def findings(path):
    """-> what is wrong in one file; not what is in headers of the system."""
    done = subprocess.run(["clang-tidy", "--quiet", "-p", str(build), str(path)],
                          capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or f"{path}: clang-tidy failed:\n{done.stderr.strip()}"


commands = json.loads((build / "compile_commands.json").read_text())
paths = sorted({p for p in (pathlib.Path(c["file"]) for c in commands) if is_product(p) and p.exists()})
with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    wrong = [found for found in pool.map(findings, paths) if found]
print("\n".join(wrong) if wrong else f"tidy: nothing found in {len(paths)} files")
sys.exit(1 if wrong or len(paths) < 100 else 0)
