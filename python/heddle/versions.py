# SPDX-License-Identifier: Apache-2.0
"""What a publisher gives back: Version, where its rollout is, and what is still to come."""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any

from heddle import _native
from heddle._words import Phase

if TYPE_CHECKING:
    from heddle.publisher import Publisher

__all__ = ["Version", "Rollout", "Missing", "Progress"]


@dataclass(frozen=True)
class Missing:
    """A worker that a wait still lacks: `phase` it is in, and why (`code` of the list, `message`).  code
    None: nothing is wrong, it is only not there yet."""
    worker: str
    phase: str
    code: str | None
    message: str | None


@dataclass(frozen=True)
class Rollout:
    """Where the rollout of a version is."""
    adapter: str
    version: int
    phase: str
    state: str                      # staging staged active kept superseded failed retired lost
    eligible_count: int
    staged_count: int
    active_count: int
    decision: int
    missing: tuple[Missing, ...]
    staged_ms: float | None         # since the commit was called; None: it has not happened, or is not known
    active_ms: float | None
    _ask: InitVar[Callable[[Rollout], tuple[str, ...]] | None] = None

    def __post_init__(self, _ask: Callable[[Rollout], tuple[str, ...]] | None) -> None:
        # no field: dataclasses.asdict copies those, and a publisher cannot be copied
        self.__dict__["_ask"] = _ask

    @functools.cached_property
    def workers(self) -> tuple[str, ...]:
        """Names of those that have reached the phase, as the broker lists them when this is looked at first.

        Empty where it does not answer within the Publisher's timeout, and in another process than the
        Publisher's.
        """
        ask: Callable[[Rollout], tuple[str, ...]] | None = self.__dict__["_ask"]
        return ask(self) if ask is not None else ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ask": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Progress:
    """What `on_progress` hears.  `type`: progress, rollout, released, joined, lost_broker, fenced.
    progress: the workers have `bytes_done` together, of `data_bytes`."""
    type: str
    adapter: str
    version: int | None
    bytes_done: int
    data_bytes: int
    message: str


@dataclass(frozen=True)
class Version:
    """A version that was published: its record is on the broker's disk, and this process is a source of its
    bytes.

    created False: an earlier version stands for it (`reason` "unchanged" or "replayed"); `step` is that one's
    then, asked of the broker (None where it does not answer).  held: the adapter is held at an older version
    (at which, by whom, since when): this one is staged, and not activated until `Admin.resume` activates the
    newest; None: it is not held.  Times are milliseconds: `pack_ms` until the region was sealed, `commit_ms`
    until the record was durable.  With a directory they count from the call; with tensors from when all were
    copied, so that the copy itself is in neither.
    """
    adapter: str
    version: int
    tag: str
    digest: str
    created: bool
    reason: str | None
    step: int | None
    request_id: str
    features: tuple[str, ...]
    data_bytes: int
    tensor_count: int
    chunk_count: int
    pack_ms: float
    commit_ms: float
    held: str | None = None
    _publisher: InitVar[Publisher | None] = None

    def __post_init__(self, _publisher: Publisher | None) -> None:
        self.__dict__["_publisher"] = _publisher        # no field: as Rollout's

    def wait(self, phase: Phase = "active", quorum: str | int = "all", min: int = 1,
             timeout: float | None = 30.0) -> Rollout:
        """Until `quorum` of the eligible workers, and at least `min` of them, reached the phase ("staged"
        or "active").

        Eligible is who was there when the version was announced: one that joined later has it too, and is
        not counted.  Admin.wait counts all that are there.

        quorum   "all", a count, or "N%"
        timeout  seconds; None: no limit
        Raises Deadline (`e.rollout.missing` names who lacks it), RolloutFailed (failed or lost), Held,
        Fenced, Closed.  May be interrupted.
        """
        publisher: Publisher | None = self.__dict__["_publisher"]
        if publisher is None:
            raise _native.error("usage", f"{self.tag} is not of this process: its publisher waits for it")
        return publisher._wait(self, phase, quorum, min, timeout)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publisher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
