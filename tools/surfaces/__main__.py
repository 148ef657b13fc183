#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python3 tools/surfaces [--check] [BINDIR]: writes what is made from the option tables and the headers, so
that it never lies: the generated parts of docs/man/*.[13], deploy/completion/, deploy/heddle.env.  --check
writes nothing and exits with 1 when something is not current.  BINDIR: the programs (default $HEDDLE_BIN_DIR,
else build/bin)."""
import argparse
import difflib
import os
import pathlib
import sys

import completion
import environment
import errors
import header
import page
from table import read_overview, read_program, read_tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_PAGE = {"heddle", "version"}   # headers that declare no function


def wanted(bindir):
    """path -> text of every file that is made, wholly or in part."""
    tables = read_tables(bindir)
    maker = read_program(bindir, "mkadapter", "make a PEFT adapter in the shape of a real one")
    files = {}
    man = ROOT / "docs/man"
    for table in [*tables.values(), maker]:
        path = man / f"{table.page}.1"
        files[path] = page.renew(path, page.command(table), page.command_rest(table))
    path = man / "heddle.1"
    files[path] = page.renew(path, [page.overview(tables), page.environment(read_overview(bindir))],
                             page.overview_rest())
    for source in sorted((ROOT / "include/heddle").glob("*.h")):
        if source.stem in WITHOUT_PAGE:
            continue
        path = man / f"heddle_{source.stem}.3"
        found = header.read(source)
        files[path] = page.renew(path, page.library(found), page.library_rest(found))
    files[man / "heddle-errors.7"] = errors.page((ROOT / "docs/operations.md").read_text())
    files[ROOT / "deploy/completion/heddle.bash"] = completion.bash(tables, maker)
    files[ROOT / "deploy/completion/_heddle"] = completion.zsh(tables, maker)
    files[ROOT / "deploy/heddle.env"] = environment.sample(tables)
    return files


def main():
    arguments = argparse.ArgumentParser(prog="tools/surfaces", description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("bindir", nargs="?", default=os.environ.get("HEDDLE_BIN_DIR", ROOT / "build/bin"))
    given = arguments.parse_args()
    stale = 0
    files = wanted(pathlib.Path(given.bindir))
    for path, text in files.items():
        found = path.read_text() if path.exists() else ""
        if found == text:
            continue
        stale += 1
        if given.check:
            name = str(path.relative_to(ROOT))
            sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), text.splitlines(True), name,
                                                       "as it should be", n=1))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    print(f"surfaces: {len(files) - stale} of {len(files)} files were current")
    if given.check and stale:
        print("surfaces: renew them: tools/build dev, then python3 tools/surfaces build/dev/bin")
    return 1 if given.check and stale else 0


sys.exit(main())
