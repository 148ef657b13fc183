#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the pages link to is there: files, sections, and paths of this repository in `backticks`."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "python/README.md",
         *(p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("docs/*.md")))]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TOP = (r"(?:docs|tests|tools|include|deploy|examples|core|proto|wire|memory|transfer|client|worker|"
       r"sidecar|trainer_client|broker|cli|bench|cmake)")
NAMED = re.compile(rf"`({TOP}/[A-Za-z0-9_./*-]*)`")


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


wrong = [line for page in PAGES for line in problems(page)]
unread = [p.name for p in ROOT.glob("docs/*.md") if f"docs/{p.name}" not in (ROOT / "README.md").read_text()]
wrong += [f"README.md does not tell of docs/{name}" for name in unread]
print("\n".join(wrong) if wrong else f"links: what {len(PAGES)} pages link to is there")
sys.exit(1 if wrong else 0)
