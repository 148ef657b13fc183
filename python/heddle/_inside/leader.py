# SPDX-License-Identifier: Apache-2.0
"""The one Heddle worker of an engine, in its API server.

    arrived   every rank builds the version beside generation          -> staged, or rejected in its words
    commit    the engine gets it; then its names are served            -> activate
    retired   the name `policy@57` goes; when no request uses the version any more, so do the engine's copy
              and the memory
    left      (heddle drain) the server is not ready any more, and ends when no request uses a version

A version that a request names, and that is kept elsewhere (heddle._inside.kept), comes the same way, without
an answer to the broker.  It goes when it is kept no longer, and when its place is needed for another one.

All of it runs on the server's own loop; what blocks (the rank link) runs in one thread beside it.  What an
engine does is in its own subclass.
"""
from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle import _ranks
from heddle._inside import kept
from heddle.errors import HeddleError, NotFound, Unavailable

if TYPE_CHECKING:
    from heddle.admin import AsyncAdmin
    from heddle.updates import Snapshot, Update
    from heddle.worker import Worker

LOOK_S = 0.2                    # between two looks whether a retired version is still in use
END_S = 30.0                    # requests that use a version are waited for so long, before the server ends
WATCH_S = 2.0                   # between two looks whether a fetched version is still kept
IDLE_S = 1.0                    # since its last use, before a fetched version gives way to another one
SESSION_S = 1.0                 # between two looks whether there is a session with the broker
AWAY_S = 5.0                    # without one, before the log says so


@dataclass(eq=False)
class Version:
    """One that every rank has built.  `uses`: requests that have looked it up and are not over."""

    adapter: str
    number: int
    tag: str
    uses: int = 0
    is_named: bool = False      # requests may ask for it
    is_retired: bool = False
    is_fetched: bool = False    # for a request: no update tells when it is retired
    used_at: float = 0.0        # of a fetched one: when that was seen last

    @property
    def name(self) -> str:
        return f"{self.adapter}@{self.number}"


V = TypeVar("V", bound=Version)


class Session:
    """What the log of an engine says of its session with the broker: once when it has none for AWAY_S, and
    once when it has one again.
    """

    def __init__(self) -> None:
        self._since: float | None = None        # without one
        self._is_said = False

    def line(self, is_there: bool, now: float) -> str | None:
        if is_there:
            was_said, self._since, self._is_said = self._is_said, None, False
            return "there is a session with the broker again" if was_said else None
        if self._since is None:
            self._since = now
        if self._is_said or now - self._since < AWAY_S:
            return None
        self._is_said = True
        return (f"no session with the broker for {AWAY_S:g} s: what is here is served, no version comes, "
                "and it goes on trying; see that the broker of HEDDLE_BROKER runs and is reached from this "
                "host (`heddle status`)")


class Leader(Generic[V]):
    """Of one engine.  On the loop of the API server, but for what says otherwise.  `places`: adapters that
    the engine has loaded at a time.
    """

    kind = ""                   # of engine, for the status

    def __init__(self, ranks: _ranks.Ranks, adapters: Iterable[str], open_worker: Callable[[], Worker],
                 log: logging.Logger, places: int = 0,
                 open_admin: Callable[[], AsyncAdmin] = kept.open_admin) -> None:
        self._ranks, self._open_worker, self._log = ranks, open_worker, log
        self._versions: dict[str, V] = {}               # by name
        self._active: dict[str, V | None] = dict.fromkeys(adapters)
        self._thread = ThreadPoolExecutor(1, "heddle-leader")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._moving = asyncio.Lock()           # a version comes into the ranks, or goes
        self._worker: Worker | None = None
        self._ended: str | None = None          # why no update comes any more
        self._has_left = False                  # the worker was drained; the server ends
        self._leaving: set[V] = set()           # retired; some may be in use
        self._has_leaving = asyncio.Event()
        self._kept: kept.Kept[V] = kept.Kept(self._bring, open_admin)
        # the active version of each adapter and the one before have theirs
        self._fetched_most = max(1, places - 2 * len(self._active))
        self._is_watching = False

    # -- what an engine does ---------------------------------------------------------------------------------

    def _begin_serving(self) -> None:
        """The worker is there."""
        raise NotImplementedError

    def _new(self, update: Update | Snapshot) -> tuple[V, Mapping[str, Any]]:
        """A version, and what the ranks hear of it besides its tag."""
        raise NotImplementedError

    async def _load(self, version: V) -> None:
        """Into the engine, of which every rank has said that it can.  May be called again."""
        raise NotImplementedError

    async def _load_fetched(self, version: V) -> None:
        """The same, of one that a request waits for."""
        await self._load(version)

    async def _unload(self, version: V) -> None:
        raise NotImplementedError

    def _give_names(self, version: V) -> Callable[[], None]:
        """The version's own and its adapter's.  -> takes them back."""
        raise NotImplementedError

    def _give_name(self, version: V) -> None:
        """The version's own."""
        raise NotImplementedError

    def _take_name(self, version: V) -> None:
        """The version's own."""
        raise NotImplementedError

    def _is_used(self, version: V) -> bool:
        raise NotImplementedError

    # -- updates ---------------------------------------------------------------------------------------------

    async def start(self, end: Callable[[], None]) -> None:
        """From now on what comes is taken by itself.  `end`: of the server, after the worker was drained."""
        worker = await self.open()
        watch = self._begin(self._watch_session())
        self._begin(self._follow(worker, end)).add_done_callback(lambda _: watch.cancel())
        self._begin(self._tidy_on())

    async def open(self) -> Worker:
        """What comes is taken by poll()."""
        try:
            worker: Worker = await self._aside(self._open_worker)
        except BaseException:
            await self.stop()
            raise
        self._worker = worker
        self._begin_serving()
        return worker

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _aside(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        bound = functools.partial(call, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, bound)

    async def _follow(self, worker: Worker, end: Callable[[], None]) -> None:
        try:
            async for update in worker.updates():
                await self._on(update)
            self._look_whether_it_left(worker)
        except Exception as e:
            self._ended = f"no further version comes, and those that are here stay: {e}"
            self._log.warning("heddle: %s", self._ended)
        if self._has_left:
            self._log.warning("heddle: %s; this server ends when no request uses a version any more, in %g s "
                              "at most", self._ended, END_S)
            await self._await_requests(END_S)
            end()

    @property
    def _has_session(self) -> bool:
        return self._worker is not None and self._worker.stats()["joined"] is not None

    async def _watch_session(self) -> None:
        session = Session()
        while not self._has_left:
            line = session.line(self._has_session, time.monotonic())
            if line is not None:
                self._log.warning("heddle: %s", line)
            await asyncio.sleep(SESSION_S)

    def _look_whether_it_left(self, worker: Worker) -> None:
        if worker.left:
            self._has_left = True
            self._ended = "the worker was drained (heddle drain) and has left the broker"

    async def _await_requests(self, at_most: float) -> None:
        """Until none uses a version."""
        until = time.monotonic() + at_most
        while any(self._is_used(v) for v in self._versions.values()) and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)

    async def poll(self, timeout: float) -> None:
        """Takes what is there; where there is nothing, `timeout` seconds are waited for one update."""
        assert self._worker is not None         # is_open
        is_there, left = True, timeout
        while is_there:
            is_there = False
            async for update in self._worker.updates(timeout=left):
                await self._on(update)
                is_there, left = True, 0.0
                break
        self._look_whether_it_left(self._worker)
        await self._tidy()

    async def _on(self, update: Update) -> None:
        if update.phase == "arrived":
            await self._answer(update, self._stage)
        elif update.phase == "commit":
            await self._answer(update, self._activate)
        elif update.phase in ("retired", "failed"):
            version = self._find(update)
            if version is not None:
                self._retire(version)

    async def _answer(self, update: Update, do: Callable[[Update], Any]) -> None:
        try:
            async with self._moving:
                await do(update)
        except Exception as e:
            words = e if isinstance(e, HeddleError) else " ".join(str(e).split()) or type(e).__name__
            self._log.warning("heddle: %s is rejected: %s", update.tag, words)
            if not update.answered:
                update.reject(words)

    # -- a version comes -------------------------------------------------------------------------------------

    def _find(self, update: Update) -> V | None:
        """None: it is not here, or what has its name is another cluster's, of other bytes."""
        version = self._versions.get(_name_of(update))
        return version if version is not None and version.tag == update.tag else None

    async def _stage(self, update: Update) -> None:
        version = self._find(update)
        if version is None:
            other = self._versions.get(_name_of(update))
            if other is not None:
                raise RuntimeError(f"{other.tag} has that name here: the broker's data are not those that it "
                                   "came from. Restart the server")
            version = await self._build(update)
        version.is_retired = version.is_fetched = False
        if not update.staged():
            self._retire(version)

    async def _build(self, found: Update | Snapshot) -> V:
        """In every rank."""
        version, told = self._new(found)
        with found.share() as slot:
            await self._aside(self._ranks.stage, found.tag, slot, name=version.name, **told)
        self._versions[version.name] = version
        return version

    async def _activate(self, update: Update) -> None:
        version = self._find(update)
        if version is None:
            raise LookupError(f"{update.tag} was decided and is not staged here")
        await self._aside(self._ranks.commit, version.tag)
        try:
            await self._load(version)
        except Exception:                       # else a second load finds it half there, and says yes
            with contextlib.suppress(Exception):
                await self._unload(version)
            raise
        if self._switch(update, version):
            version.is_retired = False

    def _switch(self, update: Update, version: V) -> bool:
        """Without a pause, so that no request sees the names where the decision does not hold any more."""
        take_back = self._give_names(version)
        if not update.activate():
            take_back()
            return False
        before, self._active[version.adapter] = self._active[version.adapter], version
        version.is_named = True
        if before is not None and before is not version and before.is_retired:
            self._retire(before)
        return True

    # -- a version that a request names and that is not here ------------------------------------------------

    def may_fetch(self, name: Any) -> bool:
        """A request's name is that of a version of Heddle's which is not here."""
        parsed = kept.parse(name)
        return parsed is not None and parsed[0] in self._active and name not in self._versions

    async def fetch(self, name: str) -> V:
        """The version of that name, which is served when this returns.  What it raises says why it is not:
        kept.is_none(), kept.is_for_now().
        """
        version = self._versions.get(name)
        if version is not None and version.is_named:
            return version
        try:
            return await self._kept.fetch(name)
        except Exception as e:
            self._log.warning("heddle: %s is not served: %s", name, e)
            raise

    async def _bring(self, found: Snapshot) -> V:
        """What was fetched, as a version that is served under its own name alone."""
        assert self._worker is not None
        why = self._worker._why_foreign(found)
        if why is not None:
            raise why
        async with self._moving:
            version = self._versions.get(f"{found.adapter}@{found.version}")
            if version is not None and version.is_named:        # its update came first
                return version
            if version is not None:
                raise NotFound(f"{found.tag} is not served yet, or no longer", code="not_found", exit=3)
            await self._make_room()
            version = await self._build(found)
            try:
                await self._aside(self._ranks.commit, version.tag)
                await self._load_fetched(version)
            except BaseException:
                await self._remove(version)
                raise
            version.is_fetched, version.used_at = True, time.monotonic()
            version.is_named = True
            self._give_name(version)
        if not self._is_watching:
            self._is_watching = True
            self._begin(self._watch())
        return version

    def _fetched(self) -> list[V]:
        return [v for v in self._versions.values() if v.is_fetched and not v.is_retired]

    async def _make_room(self) -> None:
        """Of the fetched version that no request has used for the longest time."""
        self._note_uses()
        fetched = sorted(self._fetched(), key=lambda v: v.used_at)
        if len(fetched) < self._fetched_most:
            return
        if time.monotonic() < fetched[0].used_at + IDLE_S:
            raise Unavailable(f"all {len(fetched)} places for versions that requests have fetched are in use "
                              "by requests", code="unavailable", exit=7, retriable=True,
                              hint="ask again later, or give the engine more places")
        version = fetched[0]
        version.is_named, version.is_retired = False, True
        self._take_name(version)
        await self._remove(version)

    def _note_uses(self) -> None:
        now = time.monotonic()
        for version in self._fetched():
            if self._is_used(version):
                version.used_at = now

    async def _watch(self) -> None:
        """As long as there is one that was fetched: it goes when it is kept no longer, as any other."""
        while self._fetched():
            await asyncio.sleep(WATCH_S)
            self._note_uses()
            for version in self._fetched():
                is_kept = await self._kept.is_kept(version.tag)
                if not is_kept and version.is_fetched and not version.is_retired:
                    self._retire(version)
        self._is_watching = False

    # -- a version goes --------------------------------------------------------------------------------------

    def _retire(self, version: V) -> None:
        """The active version stays until another one is."""
        version.is_retired = True
        if self._active[version.adapter] is version:
            return
        if version.is_named:
            version.is_named = False
            self._take_name(version)
        self._leaving.add(version)
        self._has_leaving.set()

    async def _tidy_on(self) -> None:
        while await self._has_leaving.wait():
            await self._tidy()
            await asyncio.sleep(LOOK_S)

    async def _tidy(self) -> None:
        for version in list(self._leaving):
            async with self._moving:
                if version.is_retired and self._is_used(version):
                    continue
                self._leaving.discard(version)
                if version.is_retired:          # else it came back
                    await self._remove(version)
        if not self._leaving:
            self._has_leaving.clear()

    async def _remove(self, version: V) -> None:
        del self._versions[version.name]
        try:
            await self._unload(version)
        except Exception as e:
            self._log.warning("heddle: the engine keeps %s: %s", version.tag, e)
            return
        await self._aside(self._ranks.drop, version.tag)

    # -- for people ------------------------------------------------------------------------------------------

    def active(self, adapter: str) -> V | None:
        return self._active.get(adapter)

    @property
    def is_open(self) -> bool:
        """Between open() and stop()."""
        return self._worker is not None

    @property
    def has_left(self) -> bool:
        """The worker was drained: no version comes any more."""
        return self._has_left

    @property
    def is_ready(self) -> bool:
        """Every adapter has an active version here, and the server is not about to end."""
        return all(self._active.values()) and not self._has_left

    def status(self) -> dict[str, Any]:
        def tags(chosen: Callable[[V], bool], adapter: str) -> list[str]:
            found = (v for v in self._versions.values() if v.adapter == adapter and chosen(v))
            return [v.tag for v in sorted(found, key=lambda v: v.number)]
        return {"schema": "heddle/1", "kind": self.kind, "ok": True, "ready": self.is_ready,
                "joined": self._has_session, "error": self._ranks.lost or self._ended,
                "adapters": [{"name": name, "active": active.tag if active else None,
                              "served": tags(lambda v: v.is_named, name),
                              "staged": tags(lambda v: not v.is_named and not v.is_retired, name),
                              "leaving": tags(lambda v: v.is_retired and not v.is_named, name),
                              "fetched": tags(lambda v: v.is_fetched and v.is_named, name)}
                             for name, active in self._active.items()],
                "requests": {v.tag: v.uses for v in self._versions.values()},
                "ranks": [{"rank": hello["rank"], "pid": hello["pid"]} for hello in self._ranks.hellos]}

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._ranks.close()                     # the thread may be waiting for one of them
        await self._kept.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            await self._aside(worker.close)
        self._thread.shutdown()


def _name_of(update: Update) -> str:
    return f"{update.adapter}@{update.version}"
