# SPDX-License-Identifier: Apache-2.0
"""In the API server: which request uses which version, exactly, and the header that says it.

vLLM looks a request's model up in one dictionary, `lora_requests`.  Requests is that dictionary: it notes
each look-up with the HTTP request that made it.  So the header names the version that answers, also where the
active version changes in between, and a version counts as used from its look-up until the answer has ended.

A name that a client gives to a path of Heddle is one more name of that version: it has no number, no place
and no prefix cache of its own.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from heddle.vllm.loading import SCHEME

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEADER = b"x-heddle-version"


class Use:
    """Of one HTTP request.  Its tasks share it: they copy the context, not what is in it."""

    def __init__(self) -> None:
        self.version: Any = None

    def take(self, version: Any) -> None:
        self.end()
        self.version = version
        version.uses += 1

    def end(self) -> None:
        if self.version is not None:
            self.version.uses -= 1
            self.version = None


_use: ContextVar[Use | None] = ContextVar("heddle_use", default=None)


class Requests(dict[str, Any]):
    """vLLM's names.  `version_of` says which version (leader.Version) stands behind a path; None: none, or a
    path that is not Heddle's.
    """

    def __init__(self, names: dict[str, Any], version_of: Callable[[str], Any | None]) -> None:
        super().__init__(names)
        self._version_of = version_of

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        use, version = _use.get(), self._version_of(found.lora_path)
        if use is not None and version is not None:
            use.take(version)
        return found

    def __setitem__(self, name: str, request: Any) -> None:
        """What vLLM does with a client's name, when the engine has it."""
        version = self._version_of(request.lora_path)
        if version is None and request.lora_path.startswith(SCHEME):
            raise LookupError(f"{request.lora_path} went while it was loaded")
        super().__setitem__(name, request if version is None else version.request)


class Middleware:
    """Pure ASGI: adds X-Heddle-Version, to streams too, and calls `stop` when the server has ended."""

    def __init__(self, app: App, stop: Callable[[], Awaitable[None]]) -> None:
        self._app, self._stop = app, stop

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                await self._stop()
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        use = Use()

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and use.version is not None:
                message["headers"] = [*message.get("headers", ()), (HEADER, use.version.tag.encode())]
            await send(message)

        token = _use.set(use)
        try:
            await self._app(scope, receive, tell)
        finally:
            _use.reset(token)
            use.end()
