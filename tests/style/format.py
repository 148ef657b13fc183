#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every tracked C file is laid out as .clang-format says.  Prints the places that are not and exits with 1;
77 where clang-format is not installed.

`tools/format` mends them all."""
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not shutil.which("clang-format") or not (ROOT / ".git").exists():
    print("skipped: needs clang-format (tools/setup test) and a checkout of git")
    sys.exit(77)
files = subprocess.check_output(["git", "ls-files", "-z", "*.[ch]"], cwd=ROOT, text=True).split("\0")[:-1]
files = [name for name in files if (ROOT / name).exists()]
done = subprocess.run(["clang-format", "--dry-run", "--Werror", *files],
                      cwd=ROOT, capture_output=True, text=True)
print(done.stderr.strip() or f"format: {len(files)} files")
sys.exit(1 if done.returncode or len(files) < 100 else 0)
