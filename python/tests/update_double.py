# SPDX-License-Identifier: Apache-2.0
"""Doubles for the leaders inside engines: of heddle.Update, which notes its answer, and of the broker's
versions, which are fetched.
"""
import contextlib
from types import SimpleNamespace

from heddle.errors import NotFound


class Update:
    """`play`: has the log in which the answer is noted, and says whether it is wanted."""

    def __init__(self, play, phase, version, digest="abc"):
        self.phase, self.adapter, self.version = phase, "policy", version
        self.tag = f"policy@{version}:{digest}"
        self._play, self.answered = play, phase not in ("arrived", "commit")

    @contextlib.contextmanager
    def share(self):
        yield f"memory of {self.version}"

    def _answer(self, *said):
        assert not self.answered
        self.answered = True
        self._play.log.append((*said, self.version))
        return self._play.is_wanted

    def staged(self):
        return self._answer("staged")

    def activate(self):
        return self._answer("activate")

    def reject(self, why):
        return self._answer("reject", str(why))


class Found:
    """A fetched version: heddle.Snapshot."""

    def __init__(self, version, digest="abc"):
        self.adapter, self.version, self.tag = "policy", version, f"policy@{version}:{digest}"
        self.features, self.kind, self.is_released = (), "lora", False

    @contextlib.contextmanager
    def share(self):
        assert not self.is_released
        yield f"memory of {self.version}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_released = True


class Cluster:
    """What heddle.AsyncAdmin says: `states` by the version's number.  `gate`: an Event that a fetch waits
    for.
    """

    def __init__(self):
        self.states, self.log, self.wrong, self.gate = {}, [], None, None
        self.features, self.is_closed = (), False

    async def versions(self, ref):
        self.log.append(("versions", ref))
        if self.wrong is not None:
            raise self.wrong
        number = int(ref.partition("@")[2].partition(":")[0])
        if number not in self.states:
            raise NotFound(f"{ref} was never published", code="not_found", exit=3)
        return (SimpleNamespace(state=self.states[number], tag=f"policy@{number}:abc"),)

    async def fetch(self, ref, *, deadline):
        self.log.append(("fetch", ref))
        assert deadline > 0
        if self.gate is not None:
            await self.gate.wait()
        found = Found(int(ref.partition("@")[2].partition(":")[0]))
        found.features = self.features
        return found

    async def close(self):
        self.is_closed = True
