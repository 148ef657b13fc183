# SPDX-License-Identifier: Apache-2.0
"""Private names of an engine that a plugin relies on.

Read twice: at the start of a server, where each name is looked for in the modules (`missing`), and by
tests/engines/contract.py, which parses the sources of releases and imports nothing of them.  Plain values.
"""
from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Function:
    """A function or method; `parameters`: those that it begins with."""

    module: str
    name: str
    parameters: tuple[str, ...]
    uses: tuple[str, ...] = ()      # names that its body has: what is put in their place is reached by it


@dataclass(frozen=True)
class Global:
    """A name that a module has, and that its functions look up there."""

    module: str
    name: str


@dataclass(frozen=True)
class Attribute:
    """What the instances of a class have."""

    module: str
    owner: str
    name: str


Seam = Function | Global | Attribute


def missing(seams: Iterable[Seam]) -> list[str]:
    """What of them this engine has not.  Instances are looked at later, where there are some."""
    return [why for seam in seams if (why := _lacks(seam))]


def _lacks(seam: Seam) -> str | None:
    try:
        found: Any = importlib.import_module(seam.module)
        names = seam.owner if isinstance(seam, Attribute) else seam.name
        for part in names.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return f"{seam.module} has no {seam.owner if isinstance(seam, Attribute) else seam.name}"
    if not isinstance(seam, Function):
        return None
    function = inspect.unwrap(getattr(found, "__func__", found))
    code = function.__code__
    has = code.co_varnames[:code.co_argcount]
    if has[:len(seam.parameters)] != seam.parameters:
        return f"{seam.module}.{seam.name} takes {', '.join(has)}"
    used = _used_by(code)
    unused = [name for name in seam.uses if name not in used]
    return f"{seam.module}.{seam.name} does not use {', '.join(unused)}" if unused else None


def _used_by(code: CodeType) -> set[str]:
    """And by the functions that it makes."""
    made = [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return {*code.co_names, *(inner.co_name for inner in made)}.union(*map(_used_by, made))
