# SPDX-License-Identifier: Apache-2.0
"""Worker.drain and Admin.drain: a worker leaves when other processes hold what only it had."""
import asyncio

import pytest

import heddle
from conftest import FIXTURES, until


def published(adapter):
    with heddle.Publisher(adapter=adapter) as pub:
        pub.publish_dir(FIXTURES / "plain").wait(timeout=60)


def test_the_last_holder_stays_until_another_has_it(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="last", apply="auto") as last, heddle.Admin() as adm:
        published(adapter)
        assert not last.drain(timeout=0.5)
        row, = adm.workers("last")
        assert row.state == "draining" and row.drain.only_here == (f"{adapter}@1",)
        assert last.stats()["session"]["state"] == "draining"
        assert last.current(adapter).version == 1
        with heddle.Worker(adapters=[adapter], name="next", apply="auto") as after:
            assert last.drain(timeout=60)
            assert [w.state for w in adm.workers("last")] == ["left"]
            assert after.current(adapter).version == 1
        with last.acquire(adapter) as snap:     # what is here stays until it is closed
            assert snap.version == 1
    assert last.left, "after close(), too"


def test_a_program_that_only_reads_updates_learns_of_it(broker, adapter, caplog):
    with heddle.Worker(adapters=[adapter], name="one", apply="auto") as one, heddle.Admin() as adm:
        with heddle.Worker(adapters=[adapter], name="two", apply="auto"):
            published(adapter)
            one.wait_current(60)
            adm.drain("one")
            assert [u.phase for u in one.updates()][-1] == "active", "the iteration ends by itself"
        assert one.left and "was drained" in caplog.text
        with pytest.raises(heddle.Closed, match="was drained"):
            one.wait_current(0)
        assert one.current(adapter).version == 1
    with heddle.Worker(adapters=[adapter]) as other:
        assert not other.left
    assert not other.left


def test_by_an_operator(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with heddle.Worker(adapters=[adapter], name="one", apply="auto"):
                with heddle.Worker(adapters=[adapter], name="two", apply="auto"):
                    published(adapter)
                    assert (await adm.drain("one")).state == "draining"
                    with heddle.Admin() as sync:
                        until(lambda: sync.workers("one")[0].state == "left", "it leaves")
            with pytest.raises(heddle.NotFound):
                await adm.drain("missing")
    asyncio.run(main())


def test_an_operator_takes_it_back(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="only", apply="auto") as only, heddle.Admin() as adm:
        published(adapter)
        assert adm.drain("only").state == "draining"
        until(lambda: only.stats()["session"]["state"] == "draining", "the worker drains")
        assert adm.drain("only", cancel=True).state == "ready"
        until(lambda: only.stats()["session"]["state"] == "ready", "of this, too")
        assert adm.drain("only", cancel=True).state == "ready", "once more changes nothing"
        assert not only.drain(timeout=0.5)
        with pytest.raises(heddle.Conflict, match="own wish"):
            adm.drain("only", cancel=True)
        with pytest.raises(heddle.NotFound):
            adm.drain("missing", cancel=True)

    async def main():
        async with heddle.AsyncAdmin() as adm:
            with pytest.raises(heddle.Conflict, match="has left"):
                await adm.drain("only", cancel=True)
    asyncio.run(main())
