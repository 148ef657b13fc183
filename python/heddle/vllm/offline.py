# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM without a server: `vllm.LLM`, or an AsyncLLM that the program calls itself.

    llm = vllm.LLM(model, enable_lora=True, max_loras=2)
    with heddle.vllm.attach(llm) as versions:
        versions.wait_current(60)
        while True:
            request = versions.current("policy")
            llm.generate(prompts, lora_request=request)     # request.lora_name is policy@58
            versions.poll()

The same leader as in the API server; but it works only in poll() and wait_current(), so that no version comes
or goes between them.  A request that current() gave is good until the next of these calls.
"""
from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from heddle import _ranks
from heddle._inside import switch
from heddle.errors import Closed, Deadline, NotFound, Unavailable, UsageError
from heddle.vllm import plugin, seams
from heddle.vllm.leader import Leader

_FIRST_ID = 1 << 20             # numbers of requests below it are the program's own
_SLICE = 0.1                    # of a wait, between two looks whether what left is still in use


class _Names:
    """What the leader has of a server: names and numbers."""

    def __init__(self) -> None:
        self.lora_requests: dict[str, Any] = {}
        self.lora_id_counter = self
        self._numbers = itertools.count(_FIRST_ID)

    def inc(self, _: int) -> int:
        return next(self._numbers)


class _Engine:
    """An LLMEngine, as the leader calls an engine.  Its own calls wait."""

    def __init__(self, engine: Any) -> None:
        self.vllm_config, self.output_processor = engine.vllm_config, engine.output_processor
        self._engine = engine

    async def add_lora(self, request: Any) -> Any:
        return self._engine.add_lora(request)

    async def remove_lora(self, number: int) -> Any:
        return self._engine.remove_lora(number)


class _Versions:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def current(self, adapter: str) -> Any:
        """The LoRARequest of the active version, named as `policy@58`.  NotFound: none is active here yet."""
        return self._active(adapter).request

    def tag(self, adapter: str) -> str:
        """Of what current() gives: `policy@58:3f9a1c20d4e1`, to be stored with each sample."""
        return str(self._active(adapter).tag)

    def status(self) -> dict[str, Any]:
        """As GET /heddle/status."""
        return self._leader.status()

    def _active(self, adapter: str) -> Any:
        found = self._leader.active(adapter)
        if found is None:
            raise NotFound(f"no version of {adapter} is active here", code="not_found", exit=3,
                           adapter=adapter, expected=f"one of {', '.join(plugin.adapters())}",
                           hint="wait_current() waits for the first one; status() tells what is here")
        return found

    def _check_open(self) -> None:
        if not self._leader.is_open:
            raise Closed("the versions of this engine are closed, or were not opened", code="closed", exit=2,
                         hint="call it within `with heddle.vllm.attach(llm) as versions`, for an AsyncLLM "
                              "`async with`")
        self._check_here()

    def _check_here(self) -> None:
        if self._leader.has_left:
            raise Closed("the worker of this engine was drained (heddle drain) and has left: no version "
                         "comes any more", code="closed", exit=2,
                         hint="end this program; what is loaded stays in the engine until then")

    async def _poll(self, timeout: float) -> None:
        await self._leader.poll(timeout)
        self._check_here()

    async def _wait_current(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        while not self._leader.is_ready:
            left = until - time.monotonic()
            if left <= 0:
                raise Deadline(f"not every adapter has an active version within {timeout:g} s",
                               code="deadline", exit=5, phase="activate", retriable=True,
                               expected=", ".join(plugin.adapters()), found=str(self.status()["adapters"]))
            await self._poll(min(left, _SLICE))


class Attached(_Versions):
    """Of an LLM.  Context manager; one thread, the one that calls generate()."""

    def __init__(self, leader: Leader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(leader)
        self._loop = loop

    def poll(self, timeout: float = 0.0) -> None:
        """Takes the updates that are there; where there are none, waits so many seconds for one.  Raises
        Closed after close(), and when the worker was drained and has left.
        """
        self._check_open()
        self._loop.run_until_complete(self._poll(timeout))

    def wait_current(self, timeout: float = 30.0) -> None:
        """Until every adapter has an active version.  Raises Deadline, and Closed."""
        self._check_open()
        self._loop.run_until_complete(self._wait_current(timeout))

    def close(self) -> None:
        """Leaves the broker.  What is loaded stays in the engine."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._leader.stop())
            self._loop.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class AsyncAttached(_Versions):
    """Of an AsyncLLM.  Asynchronous context manager, on the loop of the engine.  Requests that run keep their
    version over poll(); one that current() gave and that was not sent before it may be of a version that has
    gone.
    """

    async def poll(self, timeout: float = 0.0) -> None:
        """As Attached.poll.  Raises Closed before `async with`, too."""
        self._check_open()
        await self._poll(timeout)

    async def wait_current(self, timeout: float = 30.0) -> None:
        """As Attached.wait_current."""
        self._check_open()
        await self._wait_current(timeout)

    async def close(self) -> None:
        """As Attached.close."""
        await self._leader.stop()

    async def __aenter__(self) -> AsyncAttached:
        await self._leader.open()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def attach(engine: Any) -> Attached | AsyncAttached:
    """The worker of an AsyncLLM is opened by `async with`."""
    of = getattr(engine, "llm_engine", engine)
    if not hasattr(of, "add_lora"):
        raise UsageError("attach() takes an engine of vLLM", code="usage", exit=2,
                         expected="a vllm.LLM or an AsyncLLM", found=type(engine).__name__)
    is_async = asyncio.iscoroutinefunction(of.add_lora)
    why = switch.what_differs("vLLM", plugin.release, [] if is_async else seams.missing(seams.OFFLINE))
    why = why or plugin.what_forbids(of)
    if why is not None:
        raise _unavailable(why)
    if is_async:
        return AsyncAttached(_leader_of(of))
    leader, loop = _leader_of(_Engine(of)), asyncio.new_event_loop()
    try:
        loop.run_until_complete(leader.open())
    except BaseException:
        loop.close()
        raise
    return Attached(leader, loop)


def _leader_of(engine: Any) -> Leader:
    links = plugin.links_of(engine.vllm_config)
    if links is None:
        raise _unavailable(plugin.why_off)
    plugin.say_on(engine.vllm_config)
    return Leader(_Names(), engine, _ranks.Ranks(links), plugin.adapters(), plugin.open_worker)


def _unavailable(why: str) -> Unavailable:
    return Unavailable(f"no versions for this engine: {why}", code="unavailable", exit=7,
                       hint="HEDDLE_BROKER, HEDDLE_ADAPTERS and VLLM_PLUGINS=heddle must be set before the "
                            "engine is made (docs/vllm.md)")
