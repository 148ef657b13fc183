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
