# SPDX-License-Identifier: Apache-2.0
"""asyncio, poll loops, and Admin's events and waits."""
import _thread
import asyncio
import gc
import select
import sys
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import heddle
from conftest import FIXTURES, at_most, machine_time, until
from heddle import _calls


def test_async_updates(broker, adapter):
    async def engine(w, seen):
        async for u in w.updates():
            if u.phase == "arrived":
                await asyncio.sleep(0)          # the load of an engine
                u.staged()
            if u.phase == "commit":
                u.activate()
                seen.append(u.version)
                if u.version == 3:
                    return

    async def main():
        seen = []
        with heddle.Worker(adapters=[adapter], name="async") as w, heddle.Publisher(adapter=adapter) as pub:
            task = asyncio.create_task(engine(w, seen))
            for n, name in enumerate(("plain", "dora", "bf16"), 1):
                ver = pub.publish_dir(FIXTURES / name)
                await _until(lambda: len(seen) >= n, "the engine switched")
                await asyncio.to_thread(ver.wait, min=1, timeout=60)
            await task
            assert seen == [1, 2, 3]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(engine(w, seen), 0.1)        # cancelled in the midst of its wait
            start = time.monotonic()
            assert [u async for u in w.updates(timeout=0.1)] == [] and time.monotonic() - start >= 0.1
            ending = asyncio.create_task(engine(w, seen))
            await _until(lambda: ending._fut_waiter is not None, "it waits")
            w.close()
            await asyncio.wait_for(ending, 10)
    asyncio.run(main())


def test_fileno_in_a_poll_loop(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="polls",
                       apply="auto") as w, heddle.Publisher(adapter=adapter) as pub:
        poll = select.poll()
        poll.register(w, select.POLLIN)
        seen = []
        for name in ("plain", "dora"):
            pub.publish_dir(FIXTURES / name)
            while not seen or seen[-1] != name:
                assert poll.poll(30_000), "nothing came"
                for u in w.updates(timeout=0):
                    if u.phase == "active":
                        seen.append(name)
        w.wait_current(10)
        pub.publish_dir(FIXTURES / "bf16").wait(min=1, timeout=60)
        # reads events that updates() still wants: the descriptor stays readable for them
        w.wait_current(10)
        assert poll.poll(0) and [u.phase for u in w.updates(timeout=0) if u.phase == "active"] == ["active"]
        until(lambda: list(w.updates(timeout=0)) == [] and not poll.poll(0), "quiet")


def test_events(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Admin() as adm:
        pub.publish_dir(FIXTURES / "plain")
        first = list(adm.events(adapter=adapter))
        assert [e.type for e in first[:2]] == ["writer.opened",
                                               "version.published"] and first[0].seq < first[1].seq
        assert len(list(adm.events(limit=1))) == 1 and list(adm.events(limit=0)) == []
        follow = adm.events(follow=True, adapter=adapter, since=first[-1].seq + 1)
        pub.publish_dir(FIXTURES / "dora")
        assert next(follow).seq > first[-1].seq


def test_events_of_a_time_and_the_last_ones(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Admin() as adm:
        pub.publish_dir(FIXTURES / "plain")
        kept = list(adm.events())
        at = kept[-1].at
        later = list(adm.events(since=at))
        assert later and later == [e for e in kept if e.at >= at] and later[-1] == kept[-1]
        assert list(adm.events(since=at.replace("Z", "+00:00"), limit=1)) == later[:1]
        assert list(adm.events(since="24h")) == kept and list(adm.events(since="2999-01-01T00:00:00Z")) == []
        assert list(adm.events(since=str(kept[1].seq))) == kept[1:]
        for short in (at[:10], at[:16], at[:19]):       # in UTC, as `at`
            found = [e for e in kept if e.at >= short]
            assert list(adm.events(since=short)) == list(adm.events(since=short.replace("T", " "))) == found
        assert list(adm.events(since=at[:16] + "Z")) == [e for e in kept if e.at >= at[:16]]
        assert list(adm.events(since="1d")) == kept
        assert list(adm.events(last=2)) == kept[-2:] and list(adm.events(last=10**6)) == kept
        assert list(adm.events(last=2, limit=1)) == kept[-2:-1]
        follow = adm.events(follow=True, last=1, since="24h")
        assert next(follow) == kept[-1]
        pub.publish_dir(FIXTURES / "dora")
        assert next(follow).seq == kept[-1].seq + 1


def test_async_admin(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with heddle.Worker(adapters=[adapter], name="async-admin",
                               apply="auto"), heddle.Publisher(adapter=adapter) as pub:
                asked = asyncio.create_task(adm.wait(adapter + "@1", deadline=60))
                await _until(lambda: adm._admin._current or asked.done(), "the call is in the library")
                asked.cancel()
                with at_most(5), pytest.raises((asyncio.CancelledError, heddle.NotFound)):
                    await asked
                ver = await asyncio.to_thread(pub.publish_dir, FIXTURES / "plain")
                found = await adm.wait(ver.tag.split(":")[0], deadline=60)
                assert found.have_count == 1 and found.workers[0].digest == ver.digest
                assert ((await adm.versions(adapter))[0].tag == ver.tag
                        and (await adm.status()).count.adapters >= 1)
                assert (await adm.workers("async-admin"))[0].current and await adm.adapters()
                assert ((await adm.verify(adapter)).workers[0].match
                        and not (await adm.activate(f"{adapter}@1")).changed)
                async for event in adm.events(adapter=adapter, follow=True):
                    if event.type == "version.activated":
                        break
                slow = asyncio.create_task(adm.wait(adapter, quorum=9, deadline=60))
                await _until(lambda: adm._admin._current, "the call is in the library")
                slow.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await slow
                assert (await adm.status()).broker.state == "ready", (
                    "the interrupt does not end the next call")
        with pytest.raises(heddle.Closed):
            await adm.status()
    asyncio.run(main())


def test_following_events_keeps_nobody_waiting(broker, adapter):
    """Quiet events of an adapter that nobody knows: the follower sits in its longest wait."""
    with heddle.Admin() as adm:
        ended = []

        def follow():
            try:
                list(adm.events(follow=True, adapter=adapter))
            except heddle.Closed:
                ended.append(True)
        thread = threading.Thread(target=follow)
        thread.start()
        until(lambda: list(adm._followers) and list(adm._followers)[0]._current, "the follower waits")
        with at_most(3):
            for _ in range(5):
                adm.status()
    thread.join(10)
    assert ended == [True] and not thread.is_alive(), "the follower ends with its handle"

    async def main():
        async with heddle.AsyncAdmin() as adm:
            async def follow():
                async for _ in adm.events(follow=True, adapter=adapter):
                    pass
            task = asyncio.create_task(follow())
            await _until(lambda: list(adm._admin._followers) and list(adm._admin._followers)[0]._current,
                         "the follower waits")
            with at_most(3):
                for _ in range(5):
                    await adm.status()
        with pytest.raises(heddle.Closed):
            await asyncio.wait_for(task, 10)
    asyncio.run(main())


async def _until(condition, what, timeout=60):
    """Until a condition of another thread holds, the loop running."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.002)


def test_cancelling_never_blocks_the_loop_nor_ends_the_next_call(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with heddle.Publisher(adapter=adapter) as pub:
                await asyncio.to_thread(pub.publish_dir, FIXTURES / "plain")
                longest, last = 0.0, machine_time()

                async def tick():
                    nonlocal longest, last
                    while True:
                        await asyncio.sleep(0.01)
                        now = machine_time()
                        longest, last = max(longest, now - last), now
                ticks = asyncio.create_task(tick())
                for n in range(4):
                    slow = asyncio.create_task(adm.wait(f"{adapter}@1", min=2, deadline=30))
                    behind = asyncio.create_task(adm.status())
                    await _until(lambda: adm._admin._current, "the call is in the library")
                    with at_most(5):
                        slow.cancel()
                        if n % 2:
                            await asyncio.sleep(0)
                            slow.cancel()           # again, while the call is on its way out
                        with pytest.raises(asyncio.CancelledError):
                            await slow
                        assert (await behind).broker.state == "ready"
                first, queued = (asyncio.create_task(adm.wait(f"{adapter}@1", min=2, deadline=30))
                                 for _ in range(2))
                await _until(lambda: adm._admin._current, "the call is in the library")
                queued.cancel()                 # has not begun: needs not wait for the first one
                with at_most(5), pytest.raises(asyncio.CancelledError):
                    await queued
                assert not first.done()
                first.cancel()
                ticks.cancel()
                assert longest < 3, f"the loop stood still for {longest} s"
    asyncio.run(main())


def test_closing_an_async_admin_ends_its_calls(broker, adapter):
    async def main():
        adm = heddle.AsyncAdmin()
        with heddle.Publisher(adapter=adapter) as pub:
            await asyncio.to_thread(pub.publish_dir, FIXTURES / "plain")
            slow = asyncio.create_task(adm.wait(f"{adapter}@1", min=2, deadline=60))
            await _until(lambda: adm._admin._current, "the call is in the library")
            with at_most(5):
                await adm.close()
                await adm.close()
                with pytest.raises(heddle.Closed):
                    await slow
            assert adm.closed
    asyncio.run(main())


def test_a_follower_is_made_while_another_call_is_under_way(broker, adapter):
    async def main():
        async with heddle.AsyncAdmin() as adm:
            with heddle.Publisher(adapter=adapter) as pub:
                await asyncio.to_thread(pub.publish_dir, FIXTURES / "plain")
                slow = asyncio.create_task(adm.wait(f"{adapter}@1", min=2, deadline=60))
                await _until(lambda: adm._admin._current, "the call is in the library")
                async for _ in adm.events(follow=True):
                    break
                assert next(adm._admin.events(follow=True)) and not slow.done()
                slow.cancel()
    asyncio.run(main())


def test_a_call_behind_the_end_is_refused(broker):
    """close() has begun, and the handle is not closed yet: nobody would answer it."""
    async def main():
        adm = heddle.AsyncAdmin()
        loop = asyncio.get_running_loop()
        gate, executor = threading.Event(), ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        busy = loop.run_in_executor(None, gate.wait)
        closing = asyncio.create_task(adm.close())
        await asyncio.sleep(0)
        assert adm.closed and not adm._admin.closed
        try:
            with pytest.raises(heddle.Closed):
                await asyncio.wait_for(adm.status(), 20)
        finally:
            gate.set()
            await asyncio.gather(busy, closing)
    asyncio.run(main())


def test_a_line_takes_nothing_after_its_end():
    line = _calls.Line("test")
    assert line.submit(lambda: 1).result(20) == 1
    ident = line.submit(threading.get_ident).result(20)
    line.end()
    with pytest.raises(RuntimeError, match="no more calls"):
        line.submit(lambda: 2)
    until(lambda: ident not in sys._current_frames(), "its thread ends", 20)


def test_a_line_that_is_dropped_or_cannot_be_made_leaves_no_thread(monkeypatch):
    ident = _calls.Line("test").submit(threading.get_ident).result(20)
    until(lambda: ident not in sys._current_frames(), "its thread ends", 20)
    before, start = set(sys._current_frames()), _thread.start_new_thread

    def interrupted(*what):
        start(*what)
        raise KeyboardInterrupt
    monkeypatch.setattr(_calls, "_thread", types.SimpleNamespace(start_new_thread=interrupted))
    with pytest.raises(KeyboardInterrupt):
        _calls.Line("test")
    until(lambda: gc.collect() is not None and set(sys._current_frames()) <= before, "its thread ends", 20)


def test_an_async_admin_that_is_dropped_is_closed(broker):
    async def main():
        adm = heddle.AsyncAdmin()
        await adm.workers()
        return weakref.ref(adm._admin), adm._thread.submit(threading.get_ident).result(20)
    with pytest.warns(ResourceWarning, match="Admin.* was not closed"):
        handle, ident = asyncio.run(main())
        until(lambda: gc.collect() is not None and (handle() is None or handle().closed), "it is closed", 20)
        # it is what warns, when it has closed it
        until(lambda: ident not in sys._current_frames(), "its thread ends", 20)


def test_progress_is_told_in_wait_on_its_thread(broker, adapter):
    told = []
    with heddle.Worker(adapters=[adapter], name="progress",
                       apply="auto"), heddle.Publisher(adapter=adapter) as pub:
        pub.on_progress(lambda p: told.append((threading.current_thread(), p.type, p.version)))
        ver = pub.publish_dir(FIXTURES / "embeddings")
        assert told == []
        ver.wait(min=1, timeout=60)
        pub.publish_dir(FIXTURES / "dora").wait(min=1, timeout=60)
        assert (told and {t for t, _, _ in told} == {threading.current_thread()}
                and "rollout" in {kind for _, kind, _ in told})
        assert pub.report(ver.version).active_count >= 0
        with pytest.raises(heddle.NotFound):
            pub.report(99)
