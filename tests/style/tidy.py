#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/style/tidy.py BUILD: clang-tidy, with the checks of .clang-tidy, finds nothing in the product's C
files, as they are compiled in BUILD.  Prints what it finds and exits with 1; 77 where clang-tidy is not
installed.

Headers are looked at where a C file includes them: the filter of .clang-tidy must let each of them through.

A file in which nothing was found leaves a stamp in BUILD/tidy, with how it was compiled.  It is looked at
again when that has changed, or when it, a header that it includes, or the checks are younger."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
build = pathlib.Path(sys.argv[1]).resolve()
if not shutil.which("clang-tidy"):
    print("skipped: clang-tidy is not installed (tools/setup test)")
    sys.exit(77)


def is_product(path):
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in ("tests", "build")


def included():
    """-> source -> all files that it was made from, as ninja noted them; none where ninja did not build."""
    if not shutil.which("ninja") or not (build / "build.ninja").exists():
        return {}
    noted = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True).stdout
    of = {}
    for block in noted.split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].endswith("(VALID)") and lines[1:]:
            files = [(build / line.strip()).resolve() for line in lines[1:]]
            of.setdefault(files[0], set()).update(files)
    return of


def is_clean(path):
    """Nothing was found in it since it was last changed."""
    stamp = stamp_of(path)
    if path not in MADE_FROM or not stamp.exists() or stamp.read_text() != COMPILED[path]:
        return False
    since = stamp.stat().st_mtime_ns
    return all(file.exists() and file.stat().st_mtime_ns < since
               for file in [*MADE_FROM[path], ROOT / ".clang-tidy", pathlib.Path(__file__)])


def stamp_of(path):
    return build / "tidy" / path.relative_to(ROOT)


def findings(path):
    """-> what is wrong in one file; not what is in headers of the system."""
    began_ns = time.time_ns()
    done = subprocess.run(["clang-tidy", "--quiet", "-p", str(build), str(path)],
                          capture_output=True, text=True)
    if done.returncode == 0:
        stamp = stamp_of(path)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(COMPILED[path])
        os.utime(stamp, ns=(began_ns, began_ns))       # it may have been changed meanwhile
        return ""
    return done.stdout.strip() or f"{path}: clang-tidy failed:\n{done.stderr.strip()}"


def unseen():
    """-> the headers of the product that the filter leaves out."""
    line = re.search(r"^HeaderFilterRegex: '(.*)'$", (ROOT / ".clang-tidy").read_text(), re.M)
    return [path for path in sorted(ROOT.rglob("*.h"))
            if is_product(path) and not re.search(line[1], path.as_posix())]


left_out = unseen()
if left_out:
    print("\n".join(f"{path}: .clang-tidy, HeaderFilterRegex leaves it out" for path in left_out))
    sys.exit(1)
VERSION = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True).stdout
COMPILED, MADE_FROM = {}, included()
for entry in json.loads((build / "compile_commands.json").read_text()):
    source = pathlib.Path(entry["file"])
    if is_product(source) and source.exists():
        COMPILED[source] = COMPILED.get(source, VERSION) + entry["command"] + "\n"
dirty = [path for path in sorted(COMPILED) if not is_clean(path)]
with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    wrong = [found for found in pool.map(findings, dirty) if found]
print("\n".join(wrong) or f"tidy: nothing found in {len(COMPILED)} files, {len(dirty)} of them new")
sys.exit(1 if wrong or len(COMPILED) < 100 else 0)
