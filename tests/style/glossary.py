#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One word, one meaning: the names of code use a word of WORDS in the files of its one meaning alone, whether
it stands by itself or between underscores, singular or plural, or in a form of FORMS; comments and texts may
use it freely.  The
glossary of docs/architecture.md has each of these words, or a header does, as *word*.  Prints the names
that break this; exits with 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = {  # word -> the files that may use it
    "epoch": r"broker/(?!(rollout|plan)/)|http/|client/(session|member|query|admin)|proto/|cli/|sidecar/|"
             r"include/|worker/(worker_node|admin_pull)|trainer_client/publisher_node",
    "generation": r"memory/|client/(regions|sharing)|worker/|proto/|trainer_client/publications|"
                  r"broker/(rollout|questions)/|transfer/",       # transfer: of a place in the table of asks
    "claim": r"memory/rounds|worker/holding",
    "spare": r"broker/(rollout/|inbox/heartbeat)|worker/(adapter|worker_node)|proto/",
    "station": r"broker/plan/",
    "awaited": r"broker/(rollout|plan|questions)/|cli/|trainer_client/outcomes",
    "leaf": r"(?!broker/)",
    "link": r"(?!broker/(rollout|plan)/)",
    "offered": r"memory/|client/regions|broker/|proto/|trainer_client/|core/limits|"
               r"worker/(?!versions)",
    "settling": r"broker/|proto/|cli/|include/|trainer_client/publisher_node",
}
FORMS = {"settle": "settling", "settled": "settling"}
ROOMS = """include core proto formats wire memory transfer client worker sidecar trainer_client broker http
           cli bench"""
QUIET = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|#\s*include[^\n]*', re.S)
TERM = re.compile(r"\*\*([^*]+)\*\*")
DEFINED = re.compile(r"(?<=[ (])\*([A-Za-z][a-z]+)\*(?=[:, ])")


def names_in(text):
    return set(re.findall(r"[A-Za-z_]\w*", QUIET.sub(" ", text)))


def wrong():
    page = (ROOT / "docs/architecture.md").read_text()
    terms = {part.strip() for term in TERM.findall(page[page.index("\n## Words"):page.index("\n## Rooms")])
             for part in term.split(",")}
    files = [f for room in ROOMS.split() for f in sorted((ROOT / room).rglob("*.[ch]"))]
    terms |= {word.lower() for path in files if path.suffix == ".h"
              for word in DEFINED.findall(path.read_text())}
    yield from (f"docs/architecture.md, Words, and headers: have no {word}" for word in WORDS
                if not {word, word + "s"} & terms)
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        for found in sorted(names_in(path.read_text())):
            parts = {part.removesuffix("s") for part in found.lower().split("_")}
            parts |= {FORMS[part] for part in parts & FORMS.keys()}
            for word in parts & WORDS.keys():
                if not re.match(WORDS[word], name):
                    yield f"{name}: {found} has another meaning than {word} in the glossary"


bad = list(wrong())
print("\n".join(bad) if bad else f"glossary: {', '.join(WORDS)} have one meaning each")
sys.exit(bool(bad))
