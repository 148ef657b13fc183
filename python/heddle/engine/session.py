# SPDX-License-Identifier: Apache-2.0
"""A heddle.Worker as the plug sees it: its updates as events, answered later and by name."""
from __future__ import annotations

from typing import Any

import heddle
from heddle.errors import HeddleError
from heddle.worker import Update

from .plug import Event
from .releases import Content, content_of


class Session:
    """One thread, but for export."""

    def __init__(self, **options: Any) -> None:
        self._worker = heddle.Worker(apply="app", **options)
        # an update that is dropped without an answer would be rejected
        self._owed: dict[tuple[str, str, int], Update] = {}

    def close(self) -> None:
        for update in self._owed.values():
            update.answered = True
        self._owed.clear()
        self._worker.close()

    def joined(self) -> dict[str, Any] | None:
        """token, epoch, cluster; None: no broker knows this worker now."""
        found: dict[str, Any] | None = self._worker.stats()["joined"]
        return found

    def left(self) -> bool:
        """An operator drained this worker, and it has left for good."""
        return self._worker.left

    def transport(self) -> dict[str, Any]:
        return self._worker.transport()

    def fileno(self) -> int:
        return self._worker.fileno()

    def poll(self) -> list[Event]:
        """Raises what the broker refused the join for, where it stays so."""
        found = []
        for update in self._worker.updates(timeout=0):
            if not update.answered:
                self._forget(update.phase, update.adapter, update.version)
                self._owed[update.phase, update.adapter, update.version] = update.defer()
            found.append(Event(update.phase, update.adapter, update.version, update.digest, update.tag,
                               update.code, update.message or "", update.step, self._content(update)))
        return found

    def _content(self, update: Update) -> Content | None:
        if update.phase not in ("arrived", "commit"):
            return None
        try:
            with self._worker.acquire(update.adapter, update.version) as snapshot:
                return content_of(snapshot.features, snapshot.config_bytes, snapshot.tensors)
        except HeddleError:              # gone in the meantime; the worker tells of that
            return None

    def export(self, adapter: str, version: int, path: str) -> None:
        with self._worker.acquire(adapter, version) as snapshot:
            snapshot.export(path)

    def staged(self, adapter: str, version: int) -> bool:
        update = self._owed.pop(("arrived", adapter, version), None)
        return update is not None and update.staged()

    def activate(self, adapter: str, version: int) -> bool:
        update = self._owed.pop(("commit", adapter, version), None)
        return update is not None and update.activate()

    def reject(self, phase: str, adapter: str, version: int, why: HeddleError) -> bool:
        update = self._owed.pop((phase, adapter, version), None)
        return update is not None and update.reject(why)

    def forget(self, adapter: str, version: int) -> None:
        """No answer is expected any more."""
        for phase in ("arrived", "commit"):
            self._forget(phase, adapter, version)

    def _forget(self, phase: str, adapter: str, version: int) -> None:
        update = self._owed.pop((phase, adapter, version), None)
        if update is not None:
            update.answered = True
