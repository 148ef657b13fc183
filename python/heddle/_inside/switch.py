# SPDX-License-Identifier: Apache-2.0
"""Whether a plugin inside an engine is on.  Off, it makes no thread and no socket, and changes no function;
the first process of the engine says why, in one line of the log.
"""
from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

Release = Callable[[], str]     # tells that of the engine

LINK = "HEDDLE_RANKS"           # the name of the rank link, for the processes that the first one starts
RANKS_S = 30.0                  # ranks connect before their engine is up, so this is only for accidents
_INSTEAD = ("This server serves without it; `python -m heddle.engine` (docs/engines.md) loads versions "
            "through its HTTP interface")


def end_server() -> None:
    """As a service manager ends it: the engine has its own way to go down at SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


def is_first_process() -> bool:
    return multiprocessing.parent_process() is None


def has_rank_link_above() -> bool:
    """A process that started this one made it.  Else this one makes it, also where Python's multiprocessing
    started it: then the program above does not load the plugin.
    """
    return not is_first_process() and LINK in os.environ


def say_off(log: logging.Logger, why: str) -> None:
    log.warning("heddle: the plugin is off: %s. %s", why, _INSTEAD)


def why_not(turn_on: Callable[[], None], *checks: Callable[[], str | None]) -> str | None:
    """Turns a part of a plugin on, unless a check says why not; None: it is on.  Never raises: the engine
    would not start.
    """
    try:
        for check in checks:
            why = check()
            if why is not None:
                return why
        turn_on()
        return None
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def what_is_unknown(engine: str, release: Release, seams: Any) -> str | None:
    """`seams`: the module of that name, of the engine's plugin."""
    if not seams.is_proven(release()):
        return what_is_not_proven(engine, release, seams.RELEASES)
    return what_differs(engine, release, seams.missing(seams.SEAMS))


def what_is_not_proven(engine: str, release: Release, releases: Iterable[str]) -> str:
    return f"{engine} {release()} is not a release that it was proven with ({', '.join(releases)})"


def what_instances_lack(engine: str, release: Release, *wanted: tuple[Any, str]) -> str | None:
    """`wanted`: objects of the engine, each with the name of an attribute."""
    lacks = (f"{type(owner).__name__} has no {name}" for owner, name in wanted if not hasattr(owner, name))
    return what_differs(engine, release, list(lacks)[:1])


def what_differs(engine: str, release: Release, lacking: Iterable[str]) -> str | None:
    words = "; ".join(lacking)
    return f"{engine} {release()} is not as expected: {words}" if words else None


def adapters() -> list[str]:
    return [name for name in os.environ.get("HEDDLE_ADAPTERS", "").replace(",", " ").split() if name]


def what_is_missing() -> str | None:
    if not os.environ.get("HEDDLE_BROKER"):
        return "HEDDLE_BROKER does not say where the broker is"
    return None if adapters() else "HEDDLE_ADAPTERS names no adapter"
