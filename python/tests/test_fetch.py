# SPDX-License-Identifier: Apache-2.0
"""Admin.fetch and AsyncAdmin.fetch: a version in the memory of a process that is no worker."""
import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import threading

import pytest

import heddle
from conftest import FIXTURES, until


@pytest.fixture
def two(broker, adapter):
    """Versions 1, which is kept, and 2, which is active."""
    with heddle.Worker(adapters=[adapter], name=f"w-{adapter}"[:100], apply="auto") as w:
        with heddle.Publisher(adapter=adapter) as pub:
            for name in ("plain", "dora"):
                pub.publish_dir(FIXTURES / name).wait(timeout=60)
        yield w


def digests(version):
    return {name: hashlib.sha256(t.data).hexdigest() for name, t in version.tensors.items()}


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_kept_version_outlives_its_handle(two, adapter, tmp_path, is_apart):
    """In the memory of the process that has it, and in memory of this one."""
    apart = None
    if is_apart:
        apart = str(tmp_path / "apart")
        (tmp_path / "apart").mkdir(mode=0o700)
    with two.acquire(adapter, 1) as kept:
        wanted = digests(kept), kept.config_bytes, kept.tag
    with heddle.Admin() as adm:
        found = adm.fetch(f"{adapter}@1", host_share=apart)
        again = adm.fetch(wanted[2], host_share=apart, max_rate=1 << 30)
        assert [w.name for w in adm.workers() if adapter in w.name] == [f"w-{adapter}"[:100]], "no worker"
    with found, again:
        for it in (found, again):
            assert (digests(it), it.config_bytes, it.tag) == wanted and it.rehash() == it.digest
            assert it.version == 1 and it.kind == "lora" and it.features == ()
        with found.share() as slot:
            assert slot.tag == wanted[2]
    assert two.current(adapter).version == 2, "nothing becomes active by it"
    with pytest.raises(heddle.Closed):
        found.rehash()


def test_the_name_alone_is_the_active_version(two, adapter):
    with heddle.Admin() as adm, adm.fetch(adapter) as found:
        assert found.version == 2 and found.features == ("dora",)
        for ref, kind in ((f"{adapter}@9", heddle.NotFound), ("nothing", heddle.NotFound),
                          (f"{adapter}@1:000000000000", heddle.NotFound), (f"{adapter}@", heddle.UsageError)):
            with pytest.raises(kind):
                adm.fetch(ref)
        with pytest.raises(heddle.UsageError):
            adm.fetch(adapter, deadline=-1)


def test_one_that_is_dropped_is_released(two, adapter):
    with heddle.Admin() as adm:
        found = adm.fetch(adapter)
        views = found.tensors
        del found, views
        gc.collect()
        assert not adm._holds


@pytest.fixture
def silent(broker):
    """Within it the broker answers nothing."""
    @contextlib.contextmanager
    def stopped():
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    return stopped


def test_closing_ends_a_fetch(two, adapter, silent):
    said = []
    adm = heddle.Admin(timeout=None)

    def fetch():
        try:
            adm.fetch(f"{adapter}@1")
        except heddle.HeddleError as e:
            said.append(type(e))
    thread = threading.Thread(target=fetch)
    with silent():
        thread.start()
        until(lambda: adm._current is not None, "the call is in C")
        adm.close()
        thread.join()
    assert said == [heddle.Closed]


def test_of_coroutines(two, adapter, silent):
    async def main():
        async with heddle.AsyncAdmin(timeout=None) as adm:
            with await adm.fetch(f"{adapter}@1") as found:
                assert found.version == 1 and found.rehash() == found.digest
            with silent():
                waits = asyncio.create_task(adm.fetch(f"{adapter}@1"))
                while adm._admin._current is None:
                    await asyncio.sleep(0.005)
                waits.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waits
            with await adm.fetch(adapter) as found:
                assert found.version == 2
    asyncio.run(main())


def test_a_worker_says_what_its_application_does_not_take(two, adapter):
    with heddle.Worker(adapters=[adapter], accepts=["rslora"], name=f"p-{adapter}"[:100]) as plain, \
            heddle.Admin() as adm, adm.fetch(adapter) as dora, adm.fetch(f"{adapter}@1") as lora:
        assert plain._why_foreign(lora) is None and two._why_foreign(dora) is None
        why = plain._why_foreign(dora)
        assert why.code == "unsupported_feature" and (why.expected, why.found) == ("rslora", "dora")
        plain.kinds = ("tensors",)
        why = plain._why_foreign(lora)
        assert why.code == "unsupported_feature" and (why.expected, why.found) == ("tensors", "lora")
