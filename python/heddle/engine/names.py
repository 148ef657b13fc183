# SPDX-License-Identifier: Apache-2.0
"""The name under which a server serves a version, and the directory that holds it.

A name and a directory are used for one content only: the name has the version in it, the directory the digest
too. So a name that a server has from such a directory needs no second look, also after a restart of this
program."""
from __future__ import annotations

import re
import string
from pathlib import PurePosixPath
from typing import Iterable, NamedTuple

DEFAULT = "{adapter}@{version}"
FIELDS = ("adapter", "version", "step", "digest")
_SERVED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/+-]{0,255}")
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOLDER = re.compile(rf"({_ADAPTER.pattern})@([0-9]{{1,19}})-([0-9a-f]{{12}})")


class Folder(NamedTuple):
    """What the name of an exported directory says."""

    adapter: str
    version: int
    digest: str


def is_adapter(name: str) -> bool:
    return _ADAPTER.fullmatch(name) is not None


def short(digest: str) -> str:
    """"h1:3f9a1c20d4e1..." -> "3f9a1c20d4e1", as in tags."""
    return digest.removeprefix("h1:")[:12]


def folder(adapter: str, version: int, digest: str) -> str:
    return f"{adapter}@{version}-{short(digest)}"


def read_folder(path: str, parent: str) -> Folder | None:
    """What an exported directory below `parent` holds; None: `path` is not such a directory."""
    at = PurePosixPath(path)
    found = _FOLDER.fullmatch(at.name)
    if not found or at.parent != PurePosixPath(parent):
        return None
    return Folder(found[1], int(found[2]), found[3])


class Template:
    """"{adapter}@{version}" -> "policy@57", "{adapter}-v{step}" -> "policy-v400".  ValueError: it would give
    two versions one name, or a name no server takes."""

    def __init__(self, text: str, adapters: Iterable[str]) -> None:
        self.text = text
        names = list(adapters)
        try:
            used = {field for _, field, spec, how in string.Formatter().parse(text) if field is not None}
        except ValueError as e:
            raise ValueError(f"{text!r} is not a template: {e}") from None
        if strange := used.difference(FIELDS):
            raise ValueError(f"{text!r} names {', '.join(sorted(map(repr, strange)))}; there are "
                             f"{', '.join(FIELDS)}")
        if not used & {"version", "step"}:
            raise ValueError(f"{text!r} has no {{version}} and no {{step}}: two versions would have one "
                             "name, and a server would serve cached prefixes of the one for the other")
        self.needs_step = "step" in used
        self.is_by_step = "version" not in used      # two versions of one step would have one name
        if len(names) > 1 and "adapter" not in used:
            raise ValueError(f"{text!r} has no {{adapter}}, and there are {len(names)} adapters")
        for name in names:
            self.name(name, 1, "h1:" + "0" * 64, 1)

    def name(self, adapter: str, version: int, digest: str, step: int | None = None) -> str:
        """Where `needs_step`, the version has one."""
        try:
            made = self.text.format(adapter=adapter, version=version, digest=short(digest), step=step)
        except (ValueError, TypeError, AttributeError, IndexError, KeyError) as e:
            raise ValueError(f"{self.text!r} is not a template: {e}") from None
        if not _SERVED.fullmatch(made):
            raise ValueError(f"{self.text!r} makes {made!r}: letters, digits and . _ @ / + - alone, and a "
                             f"letter or digit first")
        return made
