# SPDX-License-Identifier: Apache-2.0
"""Versions that a request names and that are not in this server: kept in the cluster, and fetched at their
first request.

A server that starts late gets the active version, and no other one by itself.  A version that is kept (the
broker's --keep) is in other processes: it is fetched without becoming active, and without a change of what
the broker knows of this worker.

What a request names may not exist, and costs one question then, none of the places for fetches.

On the loop of the API server.  The leader owns it, and puts what was fetched into the engine.
"""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.errors import Closed, Deadline, Denied, HeddleError, NotFound, RolloutFailed, Unavailable

if TYPE_CHECKING:
    from heddle.admin import AsyncAdmin
    from heddle.updates import Snapshot

FETCH_S = 60.0                  # from the request until every byte has come
FETCHES_MAX = 8                 # versions at a time, of those that are kept
ASKS_MAX = 64                   # names that the broker is asked about: those of requests are not trusted
ASK_S = 10.0                    # until the broker has said whether there is such a version
_STATES = ("active", "kept")    # others were not served yet, or no longer are
_DIGITS_MAX = 19                # of a version's number

V = TypeVar("V")


def open_admin() -> AsyncAdmin:
    """With the broker and the keys of the environment."""
    from heddle.admin import AsyncAdmin
    return AsyncAdmin()


def parse(name: Any) -> tuple[str, str] | None:
    """`policy@57` -> ("policy", "57").  None: it names no version."""
    adapter, at, number = name.partition("@") if isinstance(name, str) else ("", "", "")
    is_number = number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX
    return (adapter, number) if at and is_number and number[0] != "0" else None


def is_none(why: Exception) -> bool:
    """Of what fetch() raised: no such version is kept."""
    return isinstance(why, (NotFound, RolloutFailed))


def is_for_now(why: Exception) -> bool:
    """It cannot be had, and may be later.  False: this engine cannot serve it."""
    return isinstance(why, (Unavailable, Deadline, Denied, Closed))


class Kept(Generic[V]):
    """`bring` puts a fetched version into the engine, and gives it its name."""

    def __init__(self, bring: Callable[[Snapshot], Any], opened: Callable[[], AsyncAdmin]) -> None:
        self._bring, self._open = bring, opened
        self._tasks: dict[str, asyncio.Task[V]] = {}        # by name: it asks, then it fetches
        self._fetching = 0                                  # so many of them fetch
        # A handle makes its calls one after the other, and a question is not to wait for a fetch.
        self._handles: dict[str, AsyncAdmin] = {}

    async def fetch(self, name: str) -> V:
        """Requests for one version wait for one fetch, which goes on where their clients hang up.  Raises
        HeddleError, and what `bring` raises.
        """
        task = self._tasks.get(name)
        if task is None:
            if len(self._tasks) - self._fetching >= ASKS_MAX:
                raise self._later(name, f"the broker is asked about {ASKS_MAX} other versions")
            task = self._tasks[name] = asyncio.get_running_loop().create_task(self._fetch(name))
            task.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(task)

    @staticmethod
    def _later(name: str, why: str) -> Unavailable:
        return Unavailable(f"{name} is not fetched: {why}", code="unavailable", exit=7, retriable=True)

    def _done(self, name: str, task: asyncio.Task[V]) -> None:
        del self._tasks[name]
        if not task.cancelled():
            task.exception()                    # of which every request may have gone

    async def _fetch(self, name: str) -> V:
        try:
            tag = await asyncio.wait_for(self._tag(name), ASK_S)
        except asyncio.TimeoutError:
            raise self._later(name, f"the broker has not answered within {ASK_S:g} s") from None
        if self._fetching >= FETCHES_MAX:
            raise self._later(name, f"{FETCHES_MAX} other versions are on their way")
        self._fetching += 1
        try:
            with await self._handle("fetch").fetch(tag, deadline=FETCH_S) as found:
                brought: V = await self._bring(found)
                return brought
        finally:
            self._fetching -= 1

    def _handle(self, purpose: str) -> AsyncAdmin:
        if purpose not in self._handles:
            self._handles[purpose] = self._open()
        return self._handles[purpose]

    async def _tag(self, name: str) -> str:
        (row,) = await self._handle("ask").versions(name)
        if row.state not in _STATES:
            raise NotFound(f"{name} is {row.state}: it is not served", code="not_found", exit=3,
                           expected="a version that is active or kept", found=row.state)
        return row.tag

    async def is_kept(self, tag: str) -> bool:
        """True, too, where no broker says so: what is here stays."""
        try:
            await self._tag(tag)
        except NotFound:
            return False
        except HeddleError:
            return True
        return True

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(BaseException):
                await task
        for handle in self._handles.values():
            await handle.close()
