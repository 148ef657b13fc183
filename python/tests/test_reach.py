# SPDX-License-Identifier: Apache-2.0
"""Admin.reach: which workers this process reaches."""
import asyncio

import pytest

import heddle
from conftest import until
from heddle.records import ReachResult


def is_ready(adm):
    return ("near", "ready") in [(w.name, w.state) for w in adm.workers()]


def test_each_worker_is_reached(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="near", apply="auto"), heddle.Admin() as adm:
        until(lambda: is_ready(adm), "it has joined")
        found = adm.reach()
        row, = (w for w in found.workers if w.name == "near")
        assert isinstance(found, ReachResult) and found.device
        assert row.reach == "yes" and row.reach_ms >= 0 and row.reach_why is None and row.ucx


def test_from_a_loop_and_by_what_is_not_there(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with heddle.Worker(adapters=[adapter], name="near", apply="auto"), heddle.Admin() as sync:
                until(lambda: is_ready(sync), "it has joined")
                assert (await adm.reach(patience=5.0)).ok
            with pytest.raises(heddle.HeddleError, match="nosuch0"):
                await adm.reach(data_device="nosuch0")
    asyncio.run(main())
