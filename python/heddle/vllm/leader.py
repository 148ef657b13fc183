# SPDX-License-Identifier: Apache-2.0
"""In vLLM's API server: the one Heddle worker of the engine.

    arrived   every rank loads the version beside generation           -> staged, or rejected in vLLM's words
    commit    add_lora in the engine, which copies it into its place;
              then `policy@58` and `policy` are served                 -> activate
    retired   the name `policy@57` goes; when no request uses the version any more, so do the engine's copy
              and the memory

What clients load by path goes through add_lora too: `heddle://policy@57` and `heddle://policy` are found
here, and no rank is asked.

All of it runs on the server's own loop; what blocks (the rank link) runs in one thread beside it.
"""
from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from heddle import _ranks
from heddle.errors import HeddleError
from heddle.updates import Update
from heddle.vllm.answers import Requests
from heddle.vllm.loading import SCHEME, path_of
from heddle.worker import Worker

_log = logging.getLogger("vllm.heddle")
_LOOK_S = 0.2                   # between two looks whether a retired version is still in use


@dataclass(eq=False)
class Version:
    """One that every rank has built.  `uses`: HTTP requests that have looked it up and are not over."""

    adapter: str
    number: int
    tag: str
    request: Any                # vLLM's LoRARequest, its name `policy@57`
    uses: int = 0
    is_named: bool = False      # requests may ask for it
    is_retired: bool = False


class Leader:
    """Of one engine.  On the loop of the API server, but for what says otherwise."""

    def __init__(self, models: Any, engine: Any, ranks: _ranks.Ranks, adapters: Iterable[str],
                 open_worker: Callable[[], Worker]) -> None:
        self._models, self._engine, self._ranks = models, engine, ranks
        self._open_worker = open_worker
        self._versions: dict[str, Version] = {}         # by path
        self._active: dict[str, Version | None] = dict.fromkeys(adapters)
        self._thread = ThreadPoolExecutor(1, "heddle-leader")
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Lock()           # a version comes into the ranks, or goes
        self._worker: Worker | None = None
        self._ended: str | None = None          # why no update comes any more
        self._leaving: set[Version] = set()     # retired; some may be in use
        self._has_leaving = asyncio.Event()
        self._load = engine.add_lora            # vLLM's own

    async def start(self) -> None:
        """From now on what comes is taken by itself."""
        worker = await self.open()
        self._begin(self._follow(worker))
        self._begin(self._tidy_on())

    async def open(self) -> Worker:
        """What comes is taken by poll()."""
        try:
            worker: Worker = await self._aside(self._open_worker)
        except BaseException:
            await self.stop()
            raise
        self._worker = worker
        self._models.lora_requests = Requests(self._models.lora_requests, self._version_of)
        self._engine.add_lora = self._load_for_client
        return worker

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _aside(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        bound = functools.partial(call, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, bound)

    async def _follow(self, worker: Worker) -> None:
        try:
            async for update in worker.updates():
                await self._on(update)
        except Exception as e:
            self._ended = f"no further version comes, and those that are here stay: {e}"
            _log.warning("heddle: %s", self._ended)

    async def poll(self, timeout: float) -> None:
        """Takes what is there; where there is nothing, `timeout` seconds are waited for one update."""
        assert self._worker is not None
        is_there, left = True, timeout
        while is_there:
            is_there = False
            async for update in self._worker.updates(timeout=left):
                await self._on(update)
                is_there, left = True, 0.0
                break
        await self._tidy()

    async def _on(self, update: Update) -> None:
        if update.phase == "arrived":
            await self._answer(update, self._stage)
        elif update.phase == "commit":
            await self._answer(update, self._activate)
        elif update.phase in ("retired", "failed"):
            version = self._versions.get(self._path(update))
            if version is not None and version.tag == update.tag:
                self._retire(version)

    @staticmethod
    def _path(update: Update) -> str:
        return path_of(f"{update.adapter}@{update.version}")

    async def _answer(self, update: Update, do: Callable[[Update], Any]) -> None:
        try:
            async with self._moving:
                await do(update)
        except Exception as e:
            words = e if isinstance(e, HeddleError) else " ".join(str(e).split()) or type(e).__name__
            _log.warning("heddle: %s is rejected: %s", update.tag, words)
            if not update.answered:
                update.reject(words)

    # -- a version comes -------------------------------------------------------------------------------------

    async def _stage(self, update: Update) -> None:
        from vllm.lora.request import LoRARequest
        path, name = self._path(update), f"{update.adapter}@{update.version}"
        version = self._versions.get(path)
        if version is None:
            request = LoRARequest(name, self._models.lora_id_counter.inc(1), path)
            with update.share() as slot:
                await self._aside(self._ranks.stage, update.tag, slot, name=name, id=request.lora_int_id)
            version = self._versions[path] = Version(update.adapter, update.version, update.tag, request)
        version.is_retired = False
        if not update.staged():
            self._retire(version)

    async def _activate(self, update: Update) -> None:
        version = self._versions.get(self._path(update))
        if version is None:
            raise LookupError(f"{update.tag} was decided and is not staged here")
        await self._aside(self._ranks.commit, version.tag)
        await self._load(version.request)
        if self._switch(update, version):
            version.is_retired = False

    def _switch(self, update: Update, version: Version) -> bool:
        """Without a pause, so that no request sees the names where the decision does not hold any more."""
        names = self._models.lora_requests
        new = {version.request.lora_name: version.request, version.adapter: version.request}
        old = {name: names.get(name) for name in new}
        names.update(new)
        if not update.activate():
            for name, request in old.items():
                if request is None:
                    del names[name]
                else:
                    names[name] = request
            return False
        before, self._active[version.adapter] = self._active[version.adapter], version
        version.is_named = True
        if before is not None and before is not version and before.is_retired:
            self._retire(before)
        return True

    # -- a client's name for it ------------------------------------------------------------------------------

    def _version_of(self, path: str) -> Version | None:
        """`heddle://policy@57`, or `heddle://policy`: the active one."""
        if not path.startswith(SCHEME):
            return None
        return self._versions.get(path) or self._active.get(path.removeprefix(SCHEME))

    async def _load_for_client(self, request: Any) -> Any:
        """Instead of the engine's add_lora.  What it raises is the answer of /v1/load_lora_adapter."""
        name, path = request.lora_name, request.lora_path
        version = self._version_of(path)
        if path.startswith(SCHEME) and (version is None or not version.is_named):
            from vllm.lora.worker_manager import LoRAAdapterNotFoundError
            raise LoRAAdapterNotFoundError(name, path)
        self._check_name(name, version)
        if version is not None:
            return await self._load(version.request)
        number = request.lora_int_id
        behind = next((v for v in self._versions.values() if v.request.lora_int_id == number), None)
        if behind is not None:                  # in place of a name that stands for a version
            raise ValueError(f"{name} is a name for {behind.tag}, which does not change: unload {name} first")
        return await self._load(request)

    def _check_name(self, name: str, version: Version | None) -> None:
        """`policy` and `policy@57` stand for what they say."""
        adapter = name.partition("@")[0]
        if adapter not in self._active or (version is not None and name == version.request.lora_name):
            return
        if version is None or version is not self._active[adapter] or name != adapter:
            raise ValueError(f"{name} is a name that Heddle gives: load under another one")

    # -- a version goes --------------------------------------------------------------------------------------

    def _retire(self, version: Version) -> None:
        """The active version stays until another one is."""
        version.is_retired = True
        if self._active[version.adapter] is version:
            return
        if version.is_named:
            version.is_named = False
            self._models.lora_requests.pop(version.request.lora_name, None)
        self._leaving.add(version)
        self._has_leaving.set()

    async def _tidy_on(self) -> None:
        while await self._has_leaving.wait():
            await self._tidy()
            await asyncio.sleep(_LOOK_S)

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

    async def _remove(self, version: Version) -> None:
        del self._versions[version.request.lora_path]
        try:
            await self._engine.remove_lora(version.request.lora_int_id)
        except Exception as e:
            _log.warning("heddle: the engine keeps %s: %s", version.tag, e)
            return
        await self._aside(self._ranks.drop, version.tag)

    def _is_used(self, version: Version) -> bool:
        """By a request, or by a name that a client gave to its path."""
        path = version.request.lora_path
        states = self._engine.output_processor.request_states.values()
        return (version.uses > 0
                or any(named.lora_path == path for named in self._models.lora_requests.values())
                or any(state.lora_request is not None and state.lora_request.lora_path == path
                       for state in states))

    # -- for people ------------------------------------------------------------------------------------------

    def active(self, adapter: str) -> Version | None:
        return self._active.get(adapter)

    @property
    def is_ready(self) -> bool:
        """Every adapter has an active version here."""
        return all(self._active.values())

    def status(self) -> dict[str, Any]:
        def tags(chosen: Callable[[Version], bool], adapter: str) -> list[str]:
            found = (v for v in self._versions.values() if v.adapter == adapter and chosen(v))
            return [v.tag for v in sorted(found, key=lambda v: v.number)]
        joined = self._worker is not None and self._worker.stats()["joined"] is not None
        return {"schema": "heddle/1", "kind": "vllm", "ok": True, "ready": self.is_ready, "joined": joined,
                "error": self._ranks.lost or self._ended,
                "adapters": [{"name": name, "active": active.tag if active else None,
                              "served": tags(lambda v: v.is_named, name),
                              "staged": tags(lambda v: not v.is_named and not v.is_retired, name),
                              "leaving": tags(lambda v: v.is_retired and not v.is_named, name)}
                             for name, active in self._active.items()],
                "requests": {v.tag: v.uses for v in self._versions.values()},
                "ranks": [{"rank": hello["rank"], "pid": hello["pid"]} for hello in self._ranks.hellos]}

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._ranks.close()                     # the thread may be waiting for one of them
        if self._worker is not None:
            await self._aside(self._worker.close)
        self._thread.shutdown()
