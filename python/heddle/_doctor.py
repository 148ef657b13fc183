# SPDX-License-Identifier: Apache-2.0
"""heddle.doctor(): what this installation runs on, and what is missing."""
from __future__ import annotations

import pathlib
import sys
from dataclasses import dataclass
from importlib import metadata

from heddle import _native
from heddle.errors import HeddleError

__all__ = ["Diagnosis", "doctor"]


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.  `ok`: publishers and workers can be opened.  `problems`: one sentence each, with
    what to do; `str()` is for people.
    """
    ok: bool
    heddle: str | None                  # of the library
    package: str
    library: str                        # libheddle's file
    plugin: str | None                  # the data plane's file
    ucx: str | None                     # its version, "1.13.1"
    ucx_library: str | None             # its file
    ucx_from: str | None                # "system", or "libucx" (PyPI's)
    python: str
    # torch numpy peft safetensors: version, None where not installed (none of them is needed by all)
    packages: dict[str, str | None]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        rows = [("heddle", self.heddle), ("package", self.package), ("library", self.library),
                ("plugin", self.plugin), ("UCX", self.ucx),
                ("UCX's file", self.ucx_library), ("UCX from", self.ucx_from), ("Python", self.python),
                *self.packages.items()]
        lines = [f"{name:12} {value or 'missing'}" for name, value in rows]
        return "\n".join(lines + [f"problem: {p}" for p in self.problems] + (["ok"] if self.ok else []))


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("torch", "numpy", "peft", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def doctor() -> Diagnosis:
    """Loads the library, its plugin and UCX, and tells which they are.  Raises nothing: what is wrong is in
    `problems`.
    """
    problems: list[str] = []
    have: str | None = None
    told: dict[str, str] = {}
    try:
        have = _native.version()
        told = _native.load_transport()
    except HeddleError as e:
        problems.append(str(e))
    try:
        package = _native.release()
    except HeddleError:
        package = "unknown"
    library = told.get("library") or None
    return Diagnosis(ok=not problems, heddle=have, package=package, library=_native.library_path(),
                     plugin=told.get("plugin") or None,
                     ucx=told.get("ucx") or None, ucx_library=library, ucx_from=_origin(library),
                     python=sys.version.split()[0],
                     packages=_packages(), problems=tuple(problems))


def _origin(library: str | None) -> str | None:
    if library is None:
        return None
    return "libucx" if "libucx" in pathlib.Path(library).parts else "system"
