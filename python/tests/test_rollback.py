# SPDX-License-Identifier: Apache-2.0
"""Admin.rollback and Admin.resume: back to what was active before, and forward again."""
import asyncio

import pytest

import heddle
from conftest import FIXTURES


def held(adm, adapter):
    return next(a.held for a in adm.adapters() if a.name == adapter)


def test_back_and_forward_again(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="turns", apply="auto"), heddle.Admin() as adm:
        with pytest.raises(heddle.NotFound):
            adm.rollback(adapter)
        with heddle.Publisher(adapter=adapter) as pub:
            for name in ("plain", "dora"):
                pub.publish_dir(FIXTURES / name).wait(timeout=60)
        trial = adm.rollback(adapter, dry_run=True)
        assert (trial.from_, trial.to) == (2, 1) and not held(adm, adapter)
        back = adm.rollback(adapter, by="ann")
        assert (back.from_, back.to, back.changed, back.held, back.bytes_moved) == (2, 1, True, True, 0)
        assert held(adm, adapter).by == "ann"
        with pytest.raises(heddle.Conflict) as refused:
            adm.rollback(adapter)
        assert refused.value.code == "not_activatable"
        assert not adm.rollback(f"{adapter}@1").changed
        forward = adm.resume(adapter)
        assert (forward.from_, forward.to, forward.changed, forward.held) == (1, 2, True, False)
        assert not adm.resume(adapter).changed


def test_the_same_bytes_are_no_step_back(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="same", apply="auto"), heddle.Admin() as adm:
        with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
            for _ in range(2):
                pub.publish_dir(FIXTURES / "plain").wait(timeout=60)
        for trial in (True, False):
            with pytest.raises(heddle.Conflict, match="same bytes") as refused:
                adm.rollback(adapter, dry_run=trial)
            assert refused.value.code == "not_activatable"
        named = adm.rollback(f"{adapter}@1")
        assert named.changed and named.same_bytes and named.to == 1


def test_of_coroutines(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with pytest.raises(heddle.NotFound):
                await adm.rollback(adapter)
            with pytest.raises(heddle.NotFound):
                await adm.resume(adapter)
    asyncio.run(main())
