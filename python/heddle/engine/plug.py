# SPDX-License-Identifier: Apache-2.0
"""The plug: carries what the plan wants to a worker, to servers and to a directory, and brings back what came
of it.

One thread decides (`Plug.run`).  A thread for each server makes its calls, one at a time, and looks between
them what the server has; another writes exports.  They hand their results over in a queue and wake the
first."""
from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heddle import _native
from heddle.errors import HeddleError

from . import names
from .exports import Exports
from .plan import Activate, Discard, Kind, Load, Plan, Reject, Staged, State, Unload
from .releases import Content, Release
from .say import Counters, Voice
from .servers import Away, Refused, Server, Unfit, clean, cut

CALL_S = 10.0                            # for calls that take no time at a server that lives


@dataclass(frozen=True)
class Event:
    """What the worker says; `phase` as in heddle.worker.Update."""

    phase: str
    adapter: str = ""
    version: int = 0
    digest: str = ""
    tag: str = ""
    code: str | None = None
    message: str = ""
    step: int | None = None
    content: Content | None = None       # of "arrived" and "commit"; None: its bytes are not here


class Source(Protocol):
    """A worker, as far as a plug needs one.  staged, activate and reject: False where something overtook the
    version."""

    def fileno(self) -> int: ...
    def poll(self) -> Iterable[Event]: ...                # what is there now
    def left(self) -> bool: ...                           # drained: nothing comes any more
    def export(self, adapter: str, version: int, path: str) -> None: ...      # any thread
    def staged(self, adapter: str, version: int) -> bool: ...
    def activate(self, adapter: str, version: int) -> bool: ...
    def reject(self, phase: str, adapter: str, version: int, why: HeddleError) -> bool: ...
    def forget(self, adapter: str, version: int) -> None: ...


@dataclass(frozen=True)
class Times:
    load_s: float = 60.0                 # from a version's arrival until every server answers for it
    drain_s: float = 30.0                # requests that still name an unwanted version are waited for so long
    probe_s: float = 2.0                 # between two looks at a server
    # a server may be away so long; then the worker leaves until it is back
    away_s: float = float("inf")


class Results:
    """A queue with a descriptor to poll."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def put(self, *result: Any) -> None:
        self._queue.put(result)
        os.eventfd_write(self._fd, 1)

    def take(self) -> list[tuple[Any, ...]]:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass
        found = []
        while not self._queue.empty():
            found.append(self._queue.get())
        return found


def unexpected(e: Exception) -> str:
    return f"unexpected {type(e).__name__}: {cut(str(e))}"


def _whole(e: HeddleError) -> str:
    """All on one line: a broker keeps the message alone."""
    more = (f"{what}: {told}" for what, told in (("expected", e.expected), ("hint", e.hint)) if told)
    return "; ".join([e.message, *more])


class Hand(threading.Thread):
    """Makes the calls to one server.  Puts ("seen", i, listing), ("away", i, words), ("done", i, job, data),
    ("refused", i, job, words, kind). Whatever goes wrong is put as one of these: without this thread the plug
    would be deaf."""

    def __init__(self, index: int, server: Server, results: Results, times: Times) -> None:
        super().__init__(name=f"heddle-engine-{index}", daemon=True)
        self._index, self._server, self._results, self._times = index, server, results, times
        self._jobs: queue.SimpleQueue[Load | Unload | None] = queue.SimpleQueue()
        self._is_known = False           # checked since it was away

    def do(self, job: Load | Unload | None) -> None:
        """None: ends the thread."""
        self._jobs.put(job)

    def run(self) -> None:
        self._look()
        while True:
            try:
                job = self._jobs.get(timeout=self._times.probe_s)
            except queue.Empty:
                self._look()
                continue
            if job is None:
                return
            if not self._try(job):
                self._look()

    def _look(self) -> None:
        try:
            if not self._is_known:
                self._server.check(CALL_S)
            self._results.put("seen", self._index, self._server.listing(CALL_S))
            self._is_known = True
        except (Away, Refused, Unfit) as e:
            self._is_known = False
            self._results.put("away", self._index, f"{e}: {e.hint}" if isinstance(e, Unfit) else str(e))
        except Exception as e:
            self._is_known = False
            self._results.put("away", self._index, unexpected(e))

    def _try(self, job: Load | Unload) -> bool:
        began = time.monotonic()
        try:
            data = self._load(job) if isinstance(job, Load) else self._unload(job)
        except Refused as e:
            self._results.put("refused", self._index, job, str(e), e.kind)
            return False
        except Away as e:
            self._results.put("refused", self._index, job, str(e), Kind.PASSING)
            return False
        except Exception as e:
            self._results.put("refused", self._index, job, unexpected(e), Kind.DOUBTFUL)
            return False
        data["ms"] = round((time.monotonic() - began) * 1000, 1)
        self._results.put("done", self._index, job, data)
        return True

    def _load(self, job: Load) -> dict[str, Any]:
        began = time.monotonic()
        try:
            self._server.load(job.name, job.path, self._left(job))
        except Refused as e:
            if not e.taken or self._server.listing(CALL_S).names.get(job.name) != job.path:
                raise
        loaded = time.monotonic()
        self._server.ask(job.name, self._left(job))
        return {"load_ms": round((loaded - began) * 1000, 1),
                "answer_ms": round((time.monotonic() - loaded) * 1000, 1)}

    def _unload(self, job: Unload) -> dict[str, Any]:
        if not job.force and self._server.is_busy(job.name, CALL_S):
            raise Refused("requests that name it are under way", Kind.PASSING)
        self._server.unload(job.name, CALL_S)
        return {}

    @staticmethod
    def _left(job: Load) -> float:
        left = job.deadline - time.monotonic()
        if left <= 0:
            raise Away("the time to load it is over")
        return left


class Plug:
    def __init__(self, servers: Sequence[Server], template: names.Template, exports: Exports,
                 adapters: Sequence[str], *, accepted: Collection[str] = (),
                 times: Times, voice: Voice, counters: Counters) -> None:
        """`accepted`: features that are taken whatever the servers' releases do with them."""
        self._servers, self._template, self._exports, self._adapters = servers, template, exports, adapters
        self._times, self._voice, self._counters = times, voice, counters
        self._accepted = frozenset(accepted)
        self.releases = [Release(s.kind, None) for s in servers]     # as each told last
        self._asked: set[int] = set()    # servers that were asked for theirs
        self._contents: dict[tuple[str, int], Content] = {}
        # name without a version in it -> directory of the version that was active under it
        self._by_step: dict[str, str] = {}
        self._results = Results()
        self.plan = Plan([s.url for s in servers], load_s=times.load_s, drain_s=times.drain_s,
                         adapter_of=exports.adapter_of)
        self._hands = [Hand(i, s, self._results, times) for i, s in enumerate(servers)]
        self._worker: Source | None = None
        self._session = 0                # exports of an earlier session have no owner
        self._committed: dict[str, int] = {}        # adapter -> decided, and not here yet
        self._exporting: set[tuple[str, int]] = set()
        self._told: dict[int, str] = {}  # server -> what was said last of it
        self._slots: dict[int, int] = {}
        self._stuck: set[str] = set()    # what could not be removed
        self._refused: set[tuple[str, int]] = set()      # said to have failed, by this plug
        self._waits: dict[int, str] = {}         # server -> the name whose requests it waits for
        self._ending = False

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        for hand in self._hands:
            hand.start()

    def stop(self) -> None:
        """From any thread or signal handler: `wait_up` and `run` return."""
        self._ending = True
        self._results.put("stop")

    def close(self) -> None:
        for hand in self._hands:
            hand.do(None)

    def wait_up(self) -> bool:
        """Until every server answers; False: stopped."""
        while not self._ending and self.plan.away_since() is not None:
            self._turn(None)
        return not self._ending

    def run(self, worker: Source, is_told: Callable[[], bool] = lambda: True) -> bool:
        """Serves a worker's session.  True: stopped, or drained.  False: a server has been away for too long,
        the worker should leave. `is_told` is called until it is true: it tells that the worker is ready, once
        it is."""
        self._worker = worker
        is_ready = False
        self._session += 1
        try:
            while not self._ending and not worker.left():
                since = self.plan.away_since()
                if since is not None and time.monotonic() - since >= self._times.away_s:
                    return False
                is_ready = is_ready or is_told()
                self._turn(worker, 1.0 if is_ready else 0.05)
            return True
        finally:
            self._worker = None
            self._committed.clear()
            self._exporting.clear()
            self._refused.clear()
            self._contents.clear()
            self.plan.left(time.monotonic())

    def _turn(self, worker: Source | None, at_most_s: float = 1.0) -> None:
        """One wait, and what it brought."""
        poll = select.poll()
        for fd in [self._results.fileno()] + ([worker.fileno()] if worker else []):
            poll.register(fd, select.POLLIN)
        pause = min(max(self.plan.wake() - time.monotonic(), 0.0), at_most_s)
        poll.poll(int(pause * 1000 + 0.999))
        for result in self._results.take():
            self._take(*result)
        for event in worker.poll() if worker else ():
            self._hear(event)
        while worker and (actions := self.plan.step(time.monotonic())):
            for action in actions:
                self._act(worker, action)

    # --- from the worker -------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        hear = {"arrived": self._on_arrived, "commit": self._on_commit, "failed": self._on_gone,
                "retired": self._on_gone,
                "stale": self._on_stale}.get(event.phase)
        if event.content:
            self._contents[event.adapter, event.version] = event.content
        if hear:
            hear(event)

    def _on_arrived(self, event: Event) -> None:
        self._refused.discard((event.adapter, event.version))
        self._voice.event("stage.started", event.adapter, event.version, tag=event.tag)
        self._admit(event)

    def _on_commit(self, event: Event) -> None:
        if not self.plan.commit(time.monotonic(), event.adapter, event.version):
            # a way back to what was dropped here: it is loaded again
            self._committed[event.adapter] = event.version
            self._admit(event)

    def _on_stale(self, event: Event) -> None:
        self._voice.event("activate.failed", event.adapter, event.version, code=event.code,
                          message=event.message)

    def _on_gone(self, event: Event) -> None:
        key = event.adapter, event.version
        if event.phase == "retired":
            self._voice.event("version.retired", event.adapter, event.version)
        elif key not in self._refused and (key in self._exporting or key in self.plan.versions):
            self._voice.event("stage.failed", event.adapter, event.version, code=event.code,
                              message=event.message)
        self._exporting.discard(key)
        self._refused.discard(key)
        self._contents.pop(key, None)
        if self._worker:
            self._worker.forget(event.adapter, event.version)
        self.plan.gone(time.monotonic(), event.adapter, event.version)

    # --- what may not be served ------------------------------------------------------------------

    def applies(self) -> frozenset[str]:
        """Features that every server serves as they were trained, and those that are taken anyway."""
        return frozenset.intersection(*(r.applies() for r in self.releases)) | self._accepted

    def _admit(self, event: Event) -> None:
        """Exports the version, unless it is refused before a server may see it."""
        key = event.adapter, event.version
        why = self._misfit(key, range(len(self._servers))) or self._nameless(event)
        if why and self._worker:
            self._reject(self._worker, event.phase, *key, why)
        else:
            self._export(event)

    def _misfit(self, key: tuple[str, int], servers: Iterable[int]) -> HeddleError | None:
        """Why one of these servers would answer otherwise than the version was trained."""
        if (content := self._contents.get(key)) is None:
            return None
        whys = (self.releases[i].misfit(self._servers[i].url, content, self._accepted)
                for i in servers)
        return next(filter(None, whys), None)

    def _misfit_of_load(self, job: Load) -> HeddleError | None:
        """The same of a server that was started again, perhaps in another release."""
        key = next((key for key, v in self.plan.versions.items() if v.name == job.name), None)
        return self._misfit(key, [job.server]) if key else None

    def _nameless(self, event: Event) -> HeddleError | None:
        """Why --served-name gives the version no name of its own."""
        if self._template.needs_step and event.step is None:
            return _native.error("version_failed",
                                 f"it has no step, and --served-name is {self._template.text}",
                                 phase="stage", expected="a version that was published with a step",
                                 hint="publish with --step (step= in Python), or name versions by {version}")
        name = self._template.name(event.adapter, event.version, event.digest, event.step)
        folder = names.folder(event.adapter, event.version, event.digest)
        served = self._by_step.get(name)
        if served is None or served == self._exports.server_path(folder):
            return None
        other = names.read_folder(served, self._exports.server_root)
        held = f"{other.adapter}@{other.version}" if other else served
        return _native.error("version_failed", f"{name} was the name of {held} already, and servers may have "
                                               "cached prefixes of it",
                             phase="stage", expected="one version for each step",
                             hint="put {version} or {digest} into --served-name")

    # --- exports ---------------------------------------------------------------------------------

    def _export(self, event: Event) -> None:
        key = event.adapter, event.version
        if key in self._exporting:
            return
        self._exporting.add(key)
        threading.Thread(target=self._write, args=(self._worker, self._session, event), name="heddle-export",
                         daemon=True).start()

    def _write(self, worker: Source, session: int, event: Event) -> None:
        folder = names.folder(event.adapter, event.version, event.digest)
        began, words = time.monotonic(), None
        try:
            self._exports.write(folder, lambda path: worker.export(event.adapter, event.version, path))
        except (HeddleError, OSError) as e:
            words = f"export to {self._exports.root}: {e}"
        except Exception as e:           # else the version would have no answer
            words = f"export to {self._exports.root}: {unexpected(e)}"
        self._results.put("exported", session, event, folder, words,
                          round((time.monotonic() - began) * 1000, 1))

    def _on_exported(self, session: int, event: Event, folder: str, words: str | None, ms: float) -> None:
        key = event.adapter, event.version
        path = self._exports.server_path(folder)
        if session != self._session or self._worker is None or key not in self._exporting:
            if key not in self.plan.versions and path not in self._served_paths():
                self._discard(path)
            return
        self._exporting.discard(key)
        name = self._template.name(event.adapter, event.version, event.digest, event.step)
        other = next((v for k, v in self.plan.versions.items() if v.name == name and k != key), None)
        if other:
            words = (f"{name} is the name of {other.adapter}@{other.number} already: --served-name needs "
                     "{adapter} and {version} apart")
        if words:
            self._reject(self._worker, event.phase, event.adapter, event.version, words)
            return
        self._voice.log("debug", "export.done", f"{folder} in {ms:g} ms")
        now = time.monotonic()
        self.plan.arrived(now, event.adapter, event.version, name, path)
        if self._committed.get(event.adapter) == event.version:
            del self._committed[event.adapter]
            self.plan.commit(now, event.adapter, event.version)

    # --- from the hands --------------------------------------------------------------------------

    def _take(self, what: str, *details: Any) -> None:
        takers: dict[str, Callable[..., None]] = {
            "seen": self._on_seen, "away": self._on_away, "done": self._on_done,
            "refused": self._on_refused_job, "exported": self._on_exported}
        if what in takers:
            takers[what](*details)

    def _on_seen(self, index: int, listing: Any) -> None:
        url = self._servers[index].url
        self._note_release(index, listing.release)
        was_up = self.plan.servers[index].up
        lost = self.plan.seen(time.monotonic(), index, listing.names, listing.room)
        self._counters.put("heddle_engine_up", 1, server=url)
        self._counters.put("heddle_engine_adapters", len(listing.names), server=url)
        if not was_up:
            self._told.pop(index, None)
            self._voice.event("engine.up", server=url)
        for name in lost:
            self._counters.add("heddle_engine_lost_total", server=url)
            self._voice.event("engine.lost", server=url, name=name,
                              message="the server has it no more, it is loaded again if it is wanted")
        self._warn_of_slots(index, listing.slots)

    def _note_release(self, index: int, release: Release) -> None:
        if self.releases[index] != release or index not in self._asked:
            self._asked.add(index)
            self.releases[index] = release
            if doubt := release.doubt():
                self._voice.log("warn", "engine.release", f"{self._servers[index].url} {doubt}")

    def _warn_of_slots(self, index: int, slots: int | None) -> None:
        if slots is None or self._slots.get(index) == slots:
            return
        self._slots[index] = slots
        need = 2 * len(self._adapters)
        if slots < need:
            self._voice.log("warn", "engine.slots",
                            f"{self._servers[index].url} runs {slots} adapters in one batch; an old and a "
                            f"new version of {len(self._adapters)} need {need}, else requests for the one "
                            "wait for the other (--max-loras, --max-loras-per-batch)")

    def _on_away(self, index: int, words: str) -> None:
        url = self._servers[index].url
        self.plan.away(time.monotonic(), index, words)
        self._counters.put("heddle_engine_up", 0, server=url)
        if self._told.get(index) != words:
            self._told[index] = words
            self._voice.event("engine.away", server=url, message=words)

    def _on_done(self, index: int, job: Load | Unload, data: dict[str, Any]) -> None:
        url = self._servers[index].url
        if isinstance(job, Load):
            self.plan.loaded(time.monotonic(), index)
            self._counters.add("heddle_engine_loads_total", server=url)
            self._counters.add("heddle_engine_load_seconds_total", data["ms"] / 1000, server=url)
        else:
            self.plan.unloaded(time.monotonic(), index)
            self._counters.add("heddle_engine_unloads_total", server=url)
        self._voice.event("engine.loaded" if isinstance(job, Load) else "engine.unloaded", server=url,
                          name=job.name, **data)
        if isinstance(job, Unload):
            self._waits.pop(index, None)
            self._sweep()

    def _on_refused_job(self, index: int, job: Load | Unload, words: str, kind: Kind) -> None:
        url = self._servers[index].url
        self.plan.refused(time.monotonic(), index, words, kind)
        if kind is Kind.WAITING and isinstance(job, Unload):
            if self._waits.get(index) != job.name:
                self._waits[index] = job.name
                self._voice.log("warn", "engine.waits",
                                f"{url} unloads {job.name} when its requests are over, and loads nothing "
                                "until then; a --drain longer than they take, or more --max-loaded-loras, "
                                "and it would not have had to")
            return
        if kind is Kind.PASSING and isinstance(job, Unload):
            self._voice.log("debug", "engine.busy", f"{url} {job.name}: {words}")
            return
        self._counters.add("heddle_engine_refusals_total", server=url)
        self._voice.log("warn", "engine.refused", f"{url} {'load' if isinstance(job, Load) else 'unload'} "
                                                  f"{job.name}: {words} ({kind.value})")

    # --- what the plan wants ---------------------------------------------------------------------

    def _act(self, worker: Source, action: object) -> None:
        if isinstance(action, Load) and (why := self._misfit_of_load(action)):
            self._on_refused_job(action.server, action, why.message, Kind.LASTING)
        elif isinstance(action, (Load, Unload)):
            self._hands[action.server].do(action)
        elif isinstance(action, Staged):
            self._stage(worker, action)
        elif isinstance(action, Activate):
            self._activate(worker, action)
        elif isinstance(action, Reject):
            self._reject(worker, action.phase, action.adapter, action.number, action.words)
        elif isinstance(action, Discard):
            self._discard(action.path)

    def _stage(self, worker: Source, action: Staged) -> None:
        name = self.plan.versions[action.adapter, action.number].name
        if worker.staged(action.adapter, action.number):
            self._voice.event("stage.done", action.adapter, action.number, name=name)
        else:                            # not wanted any more
            self.plan.gone(time.monotonic(), action.adapter, action.number)

    def _activate(self, worker: Source, action: Activate) -> None:
        now = time.monotonic()
        version = self.plan.versions[action.adapter, action.number]
        if not worker.activate(action.adapter, action.number):
            self._voice.log("info", "activate.overtaken",
                            f"{action.adapter}@{action.number}: another decision follows")
            self.plan.overtaken(now, action.adapter, action.number)
            return
        self.plan.activated(now, action.adapter, action.number)
        self._counters.put("heddle_engine_active_version", action.number, adapter=action.adapter)
        if self._template.is_by_step:
            self._by_step[version.name] = version.path
        try:
            self._exports.link(action.adapter, version.path)
        except OSError as e:
            self._voice.log("warn", "export.link",
                            f"{self._exports.root}/{action.adapter} stays as it was: {e.strerror}")
        # Last, so that a reader of this event finds the counter and the link changed.
        self._voice.event("activate.done", action.adapter, action.number, name=version.name)
        self._sweep()

    def _reject(self, worker: Source, phase: str, adapter: str, number: int, why: str | HeddleError) -> None:
        error = why if isinstance(why, HeddleError) else _native.error("version_failed", clean(why))
        words = _whole(error)            # cleaned: paths and names of a server may be in it
        self._counters.add("heddle_engine_rejects_total", adapter=adapter)
        if phase == "arrived":
            self._refused.add((adapter, number))
            self._voice.event("stage.failed", adapter, number, code=error.code, message=words)
        worker.reject(phase, adapter, number, _native.error(error.code, words, phase=error.phase))

    def _sweep(self) -> None:
        """Directories of an earlier run, once another version is active and no server has them."""
        active = {v.adapter for v in self.plan.versions.values() if v.state is State.ACTIVE}
        used = {v.path for v in self.plan.versions.values()} | self._served_paths()
        for adapter in active:
            if not any(key[0] == adapter for key in self._exporting):
                for path in self._exported(adapter):
                    if path not in used:
                        self._discard(path)

    def _exported(self, adapter: str) -> list[str]:
        try:
            return self._exports.all(adapter)
        except OSError as e:
            self._untidy(str(self._exports.root), e)
            return []

    def _discard(self, path: str) -> None:
        try:
            self._exports.discard(path)
            self._stuck.discard(path)
        except OSError as e:
            self._untidy(path, e)

    def _untidy(self, path: str, e: OSError) -> None:
        """What should go stays: said once, and tried again with the next version."""
        if path not in self._stuck:
            self._stuck.add(path)
            self._voice.log("warn", "export.discard",
                            f"{path}: {e.strerror or e}; tried again when the next version is active")

    def _served_paths(self) -> set[str]:
        return {path for s in self.plan.servers if s.up for path in s.has.values()}
