#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the pages link to is there: files, sections, and paths of this repository in `backticks`.  So are the
sections of docs/operations.md that hints of the programs name, and the pages and headers that comments of C
and Python name: "docs/json.md", "broker/txn.h"."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "python/README.md",
         *(p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("docs/*.md")))]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TOP = (r"(?:docs|tests|tools|include|deploy|examples|core|proto|formats|wire|memory|transfer|client|worker|"
       r"sidecar|trainer_client|broker|http|cli|bench|cmake)")
ROOMS = ["broker", "cli", "http", "client", "sidecar", "trainer_client", "worker"]
COMMENTED = [*ROOMS, "core", "proto", "formats", "wire", "memory", "transfer", "include", "bench", "tools",
             "python", "examples", "tests"]
HINTED = re.compile(r"operations\.md, ([A-Z][\w ]*\w)")
NAMED = re.compile(rf"`({TOP}/[A-Za-z0-9_./*-]*)`")
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|^\s*#[^\n]*|"""(?!,).*?"""', re.S | re.M)
CITED = re.compile(rf"(?<![\w/.-])(?:{TOP}/[\w/]+\.[chp]y?|[\w/.-]*\w\.md)\b")


def anchors(path):
    """What GitHub makes of the headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def problems(page):
    path = ROOT / page
    text = path.read_text()
    for target in LINK.findall(text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        to = path.parent / file if file else path
        if not to.exists():
            yield f"{page}: links to {target}, which is not there"
        elif anchor and anchor not in anchors(to):
            yield f"{page}: {target} is no section there"
    for name in NAMED.findall(text):
        if re.search("[A-Z]{4}", name.split("/")[-1]) and not name.endswith(".md"):
            continue                                                    # TARGET stands for many
        is_there = list(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()
        if not is_there and not is_room_prefix(name):
            yield f"{page}: names {name}, which is not there"


def is_room_prefix(name):
    """`core/digest` for core/digest.c and .h"""
    return any(ROOT.glob(name + ".*"))


def hints():
    sections = anchors(ROOT / "docs/operations.md")
    for path in sorted(p for room in ROOMS for p in ROOT.glob(f"{room}/**/*.c")):
        for name in HINTED.findall(path.read_text()):
            if name.lower().replace(" ", "-") not in sections:
                yield f"{path.relative_to(ROOT)}: names {name} of operations.md, which is no section there"


def cited():
    """What comments name and is not there.  A page may leave out docs/; a file of another project stands
    behind the address of that project."""
    suffixes = (".c", ".h", ".py")
    for path in sorted(p for room in COMMENTED for p in ROOT.glob(f"{room}/**/*") if p.suffix in suffixes):
        for comment in COMMENT.findall(path.read_text()):
            for name in CITED.findall(re.sub(r"github\.com/[^)]*", "", comment)):
                if not any((place / name).exists() for place in (ROOT, ROOT / "docs", path.parent)):
                    yield f"{path.relative_to(ROOT)}: names {name}, which is not there"


wrong = [line for page in PAGES for line in problems(page)]
unread = [p.name for p in ROOT.glob("docs/*.md") if f"docs/{p.name}" not in (ROOT / "README.md").read_text()]
wrong += hints()
wrong += cited()
wrong += [f"README.md does not tell of docs/{name}" for name in unread]
print("\n".join(wrong) if wrong else f"links: what {len(PAGES)} pages link to is there")
sys.exit(1 if wrong else 0)
