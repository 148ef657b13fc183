# SPDX-License-Identifier: Apache-2.0
"""Versions that requests name and that are not here (heddle._inside.kept), with a cluster that stands in."""
import asyncio

import pytest

import heddle
from heddle._inside import kept
from update_double import Cluster


class Handle(Cluster):
    """One call after the other, as AsyncAdmin makes them."""

    def __init__(self, states):
        super().__init__()
        self.states, self._line, self.unknown_gate = states, asyncio.Lock(), None

    async def versions(self, ref):
        if self.unknown_gate is not None and int(ref.partition("@")[2].partition(":")[0]) not in self.states:
            await self.unknown_gate.wait()      # the broker takes its time
            return await super().versions(ref)
        async with self._line:
            return await super().versions(ref)

    async def fetch(self, ref, *, deadline):
        async with self._line:
            return await super().fetch(ref, deadline=deadline)


def play(story, states):
    async def run():
        made = []

        async def bring(found):
            return found.version

        def opened():
            made.append(Handle(states))
            return made[-1]

        here = kept.Kept(bring, opened)
        try:
            await story(here, made)
        finally:
            await here.close()
        assert all(handle.is_closed for handle in made)
    asyncio.run(asyncio.wait_for(run(), 30))


async def turns(condition):
    while not condition():
        await asyncio.sleep(0)


def test_versions_that_there_are_not_take_no_place_of_a_fetch():
    async def story(here, made):
        with pytest.raises(heddle.NotFound):
            await here.fetch("policy@99")
        made[0].unknown_gate = asyncio.Event()
        asking = [asyncio.create_task(here.fetch(f"policy@{100 + i}")) for i in range(16)]
        await turns(lambda: len(here._tasks) == 16)
        assert await here.fetch("policy@7") == 7
        made[0].unknown_gate.set()
        for task in asking:
            with pytest.raises(heddle.NotFound):
                await task
        assert here._tasks == {} and here._fetching == 0
        assert [ref for handle in made for what, ref in handle.log if what == "fetch"] == ["policy@7:abc"]
    play(story, {7: "kept"})


def test_one_that_there_is_not_waits_for_no_fetch():
    async def story(here, made):
        assert await here.fetch("policy@1") == 1
        for handle in made:
            handle.gate = asyncio.Event()
        asking = [asyncio.create_task(here.fetch(f"policy@{i}")) for i in range(1, 9)]
        await turns(lambda: here._fetching == 8)
        with pytest.raises(heddle.NotFound):
            await asyncio.wait_for(here.fetch("policy@99"), 10)
        with pytest.raises(heddle.Unavailable, match="8 other versions are on their way"):
            await here.fetch("policy@9")
        for handle in made:
            handle.gate.set()
        assert await asyncio.gather(*asking) == list(range(1, 9))
        assert await here.fetch("policy@9") == 9, "the places are free again"
    play(story, dict.fromkeys(range(1, 10), "kept"))


def test_only_so_many_names_are_asked_about(monkeypatch):
    monkeypatch.setattr(kept, "ASKS_MAX", 4)

    async def story(here, made):
        assert await here.fetch("policy@7") == 7
        asker = next(handle for handle in made if ("versions", "policy@7") in handle.log)
        asker.unknown_gate = asyncio.Event()
        asking = [asyncio.create_task(here.fetch(f"policy@{100 + i % 4}")) for i in range(8)]
        await turns(lambda: len(here._tasks) == 4)
        with pytest.raises(heddle.Unavailable, match="asked about 4 other versions"):
            await here.fetch("policy@104")
        asker.unknown_gate.set()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(why) for why in found} == {heddle.NotFound}
        assert len([ref for what, ref in asker.log if what == "versions"]) == 5, "each name once"
        assert await here.fetch("policy@7") == 7
    play(story, {7: "kept"})


def test_a_broker_that_does_not_answer_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(kept, "ASK_S", 0.01)

    async def story(here, made):
        assert await here.fetch("policy@7") == 7
        made[0].unknown_gate = asyncio.Event()
        with pytest.raises(heddle.Unavailable, match="has not answered") as why:
            await here.fetch("policy@99")
        assert kept.is_for_now(why.value) and here._tasks == {}
    play(story, {7: "kept"})
