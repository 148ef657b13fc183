# SPDX-License-Identifier: Apache-2.0
"""Admin.forget: an adapter that no process publishes or serves is removed."""
import asyncio

import pytest

import heddle
from conftest import FIXTURES


def names(adm):
    return [a.name for a in adm.adapters()]


def test_a_mistyped_name_is_forgotten(broker, adapter):
    with heddle.Admin() as adm:
        with heddle.Publisher(adapter=adapter) as pub:
            ver = pub.publish_dir(FIXTURES / "plain", deadline=1)
            with pytest.raises(heddle.Conflict) as refused:
                adm.forget(adapter)
            assert refused.value.code == "writer_held"
            with pytest.raises(heddle.HeddleError):
                ver.wait(timeout=20)
        trial = adm.forget(adapter, dry_run=True)
        assert (trial.adapter, trial.version_count, trial.dry_run) == (adapter, 1, True)
        assert adapter in names(adm)
        assert adm.forget(adapter).version_count == 1
        assert adapter not in names(adm)
        assert [e.type for e in adm.events(adapter=adapter)][-1] == "adapter.forgotten"
        with pytest.raises(heddle.NotFound):
            adm.forget(adapter)
        with pytest.raises(heddle.UsageError):
            adm.forget(f"{adapter}@1")


def test_one_with_a_worker_stays(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="reads", apply="auto"), heddle.Admin() as adm:
        with heddle.Publisher(adapter=adapter) as pub:
            pub.publish_dir(FIXTURES / "plain").wait(timeout=60)
        with pytest.raises(heddle.Conflict) as refused:
            adm.forget(adapter)
        assert (refused.value.code, refused.value.found) == ("worker_alive", "reads")
        assert adapter in names(adm)


def test_of_a_coroutine(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with pytest.raises(heddle.NotFound):
                await adm.forget(adapter)
    asyncio.run(main())
