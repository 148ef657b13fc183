# SPDX-License-Identifier: Apache-2.0
"""In the API server: which HTTP request uses which version, and the header that says it.

A version counts as used from the moment a request takes it until the answer has ended.
"""
from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEADER = b"x-heddle-version"


class Use:
    """Of one HTTP request.  Its tasks share it: they copy the context, not what is in it."""

    def __init__(self) -> None:
        self._versions: list[Any] = []          # leader.Version; several where a request is a batch

    @property
    def tags(self) -> list[str]:
        return [version.tag for version in self._versions]

    def take(self, version: Any) -> None:
        """In place of what it took before."""
        self.end()
        self.add(version)

    def add(self, version: Any) -> None:
        if version not in self._versions:
            self._versions.append(version)
            version.uses += 1

    def end(self) -> None:
        now = time.monotonic()
        for version in self._versions:
            version.uses -= 1
            version.used_at = now
        self._versions = []


_use: ContextVar[Use | None] = ContextVar("heddle_use", default=None)


def current() -> Use | None:
    """Of the HTTP request that this task works for."""
    return _use.get()


class Middleware:
    """Pure ASGI: adds X-Heddle-Version, to streams too.  `start` and `stop` are called on the server's loop,
    before it begins and when it has ended.  `waits`: an answer's head goes out with the first part of its
    body, for a server that sends the head of a stream before it looks at the request.
    """

    def __init__(self, app: App, stop: Callable[[], Awaitable[None]],
                 start: Callable[[], Awaitable[None]] | None = None, waits: bool = False) -> None:
        self._app, self._start, self._stop, self._waits = app, start, stop, waits

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                if self._start is not None:
                    await self._start()
                await self._app(scope, receive, send)
            finally:
                await self._stop()
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        use = Use()
        head: Message | None = None

        async def tell(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start" and self._waits and not use.tags:
                head = message
                return
            if head is not None:
                first, head = head, None
                await tell_head(first)
            if message["type"] == "http.response.start":
                await tell_head(message)
            else:
                await send(message)

        async def tell_head(message: Message) -> None:
            if use.tags:
                message["headers"] = [*message.get("headers", ()), (HEADER, ", ".join(use.tags).encode())]
            await send(message)

        token = _use.set(use)
        try:
            await self._app(scope, receive, tell)
        finally:
            _use.reset(token)
            use.end()
