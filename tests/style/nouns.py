#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A function that other files call begins with the noun of its file, so that its name says where to read it.

The nouns of a file are its own name, singular or plural, with the name of its room or folder before it or
without the words before its last; and the types that its header defines.  Beside these:
- `a_b.c` is a part of `a`, where the room has an `a.h`;
- what a room's FACE declares is named after the face, whichever file of the room defines it;
- `on_MESSAGE` handles a message of the wire, `command_NAME` is a subcommand;
- EXTRA lists the nouns of files that are named after none of theirs."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = """core proto formats wire memory transfer client worker sidecar trainer_client broker
           broker/inbox broker/keys broker/members broker/registry broker/store broker/rollout broker/plan
           broker/questions http cli bench""".split()
FACES = {"broker/broker": "broker", "broker/main_daemon": "daemon", "broker/plan/plan": "plan",
         "cli/cli": "cli", "transfer/transfer": "transfer", "transfer/exchange": "exchange",
         "wire/wire": "wire"}
EXTRA = {
    "cli/show": {"table"},                         # cli.h declares it: rows in columns
    "core/bytes": {"text"},                        # bytes that end with 0
    "core/digest": {"random"},                     # libsodium's, as the digests are
    "core/names": {"label", "group", "tag"},       # kinds of names
    "formats/manifest": {"layout"},                # its digest begins with the manifest's record
    "memory/rules": {"content", "region", "hold"},  # each row is a rule of one of these
    "wire/keyring": {"key"}                        # what its files hold
}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
FUNCTION = re.compile(r"^([A-Za-z_][\w \t*]*?)\b(\w+)\([^;{}]*\)\s*\{", re.M)
TYPE = re.compile(r"^\} (\w+)_t;|^(?:typedef )?(?:struct|enum|union) (\w+)\b", re.M)


def text(path):
    return COMMENT.sub("", path.read_text()) if path.is_file() else ""


def plural(word):
    return {word, word + "s", word[:-1] + "ies" if word.endswith("y") else word, word.removesuffix("s")}


def nouns(path):
    """Of the file, without its ending."""
    folders, stem = path.parent.relative_to(ROOT).parts, path.name
    words = stem.split("_")
    found = {word for at in range(len(words)) for word in plural("_".join(words[at:]))}
    found |= {f"{folder}_{word}" for folder in folders for word in plural(stem)}
    found |= {word for at in range(1, len(words)) for word in plural("_".join(words[:at]))
              if path.with_name("_".join(words[:at]) + ".h").is_file()}
    for body, tag in TYPE.findall(text(path.with_suffix(".h"))):
        found |= plural(body or tag.removesuffix("_t"))
    name = path.relative_to(ROOT).as_posix()
    return found | EXTRA.get(name, set()) | ({FACES[name]} if name in FACES else set())


def begins_with(name, found):
    return any(name == noun or name.startswith(noun + "_") for noun in found)


def strays():
    for room in ROOMS:
        faces = {noun: text(ROOT / f"{face}.h") for face, noun in FACES.items()
                 if face.rpartition("/")[0] in (room, room.split("/")[0])}
        for path in sorted((ROOT / room).glob("*.c")):
            found = nouns(path.with_suffix(""))
            for kind, name in FUNCTION.findall(text(path)):
                if "static" in kind.split() or name == "main" or name.startswith("heddle_"):
                    continue
                of_face = any(begins_with(name, {noun}) and re.search(rf"\b{name}\(", declared)
                              for noun, declared in faces.items())
                if not of_face and not begins_with(name, found | {"on", "command"}):
                    yield f"{path.relative_to(ROOT)}: {name} begins with none of its nouns"


wrong = list(strays())
print("\n".join(wrong) if wrong else "nouns: every function that other files call is named after its file")
sys.exit(bool(wrong))
