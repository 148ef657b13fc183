# SPDX-License-Identifier: Apache-2.0
"""Every time argument of the package: None, infinite, huge, 0, negative, not a number."""
import asyncio

import pytest

import heddle
from conftest import FIXTURES

FOR_EVER = (None, float("inf"), 1e300, 2**70)
NO_TIMES = (-1, -1e-9, float("-inf"), float("nan"), "1", True, [])
LONGEST_MS = 2**31 - 1              # what a deadline of the broker's can be at most: 24 days


@pytest.fixture
def served(broker, adapter):
    """A publisher whose version 1 is active on a worker."""
    with heddle.Worker(adapters=[adapter], apply="auto") as w, heddle.Publisher(adapter=adapter) as pub:
        ver = pub.publish_dir(FIXTURES / "plain")
        ver.wait(min=1, timeout=60)
        yield pub, ver, w


def asked(call):
    """A call of AsyncAdmin."""
    async def run():
        async with heddle.AsyncAdmin() as adm:
            return await call(adm)
    return asyncio.run(run())


def takers(served):
    """Calls with one time each, which end by themselves."""
    pub, ver, w = served
    ref = f"{pub.adapter}@{ver.version}"

    def opened(kind, name, **how):
        def call(time):
            with kind(**how, **{name: time}):
                pass
        return call

    def synced(time):
        sync = heddle.trl.Sync(None, pub, timeout=time)
        sync._recent.append(ver)
        assert sync._wait() is ver

    def admin(name, *args):
        def call(time):
            with heddle.Admin() as adm:
                getattr(adm, name)(*args, deadline=time)
            asked(lambda adm: getattr(adm, name)(*args, deadline=time))
        return call
    return {
        "Publisher timeout": opened(heddle.Publisher, "timeout", adapter=f"{pub.adapter}-2"),
        "Publisher close_timeout": opened(heddle.Publisher, "close_timeout", adapter=f"{pub.adapter}-3"),
        "Worker join_timeout": opened(heddle.Worker, "join_timeout", adapters=[pub.adapter]),
        "Admin timeout": lambda time: heddle.Admin(timeout=time).close(),
        "AsyncAdmin timeout": lambda time: asyncio.run(heddle.AsyncAdmin(timeout=time).close()),
        "publish_dir deadline": lambda time: pub.publish_dir(FIXTURES / "plain", deadline=time),
        "safetensors.publish deadline":
            lambda time: heddle.safetensors.publish(pub, FIXTURES / "plain", deadline=time),
        "Version.wait timeout": lambda time: ver.wait(min=1, timeout=time),
        "updates timeout": lambda time: next(w.updates(timeout=time)),
        "wait_current timeout": lambda time: w.wait_current(timeout=time),
        "trl.attach timeout": synced,
        "Admin.wait deadline": admin("wait", ref), "Admin.verify deadline": admin("verify", ref),
        "Admin.activate deadline": admin("activate", ref)}


def test_none_infinite_and_huge_are_for_ever(served):
    pub, _, w = served
    calls = takers(served)
    assert next(w.updates(timeout=60)).phase == "active"
    del calls["updates timeout"]                        # below: it takes what it gives
    for what, call in calls.items():
        for time in FOR_EVER:
            try:
                call(time)
            except Exception as e:
                raise AssertionError(f"{what}={time!r}: {e!r}") from e
    for n, time in enumerate(FOR_EVER):
        pub.publish_dir(FIXTURES / ("dora", "plain")[n % 2]).wait(min=1, timeout=60)
        assert next(u for u in w.updates(timeout=time) if u.phase == "active").version == n + 2


def test_what_is_no_time_is_refused_by_name(served):
    for what, call in takers(served).items():
        for time in NO_TIMES:
            with pytest.raises(heddle.UsageError, match="is not a time") as e:
                call(time)
            assert what.split()[-1] in e.value.message, what
            assert e.value.expected == "seconds, 0 or more, or None: no limit"


def test_a_rollout_without_end_has_the_longest_deadline_there_is(broker, adapter):
    """A rollout that never ended would be held by a broker for ever."""
    with heddle.Publisher(adapter=adapter, close_timeout=0) as pub, heddle.Admin() as adm:
        for n, time in enumerate(FOR_EVER):
            ver = pub.publish_dir(FIXTURES / ("dora", "plain")[n % 2], deadline=time)
            assert adm.versions(ver.tag.split(":")[0])[0].rollout.deadline_ms == LONGEST_MS


def test_no_time_is_at_once(served):
    pub, ver, w = served
    with heddle.Admin() as adm:
        with pytest.raises(heddle.Deadline):
            adm.wait(pub.adapter, quorum=2, deadline=0)
    with pytest.raises(heddle.Deadline):
        ver.wait(quorum=2, timeout=0)
    with pytest.raises(heddle.Unavailable):
        heddle.Publisher("tcp://127.0.0.1:9", adapter="x", timeout=0)
    assert ver.wait(min=1, timeout=0).active_count == 1
    assert w.wait_current(timeout=0)[pub.adapter].version == 1
    assert [u.phase for u in w.updates(timeout=0)] == ["active"] and list(w.updates(timeout=0)) == []


def test_what_waits_for_ever_ends_with_ctrl_c(program):
    it = program("""
        import threading, heddle
        for open_ in (lambda: heddle.Publisher("tcp://127.0.0.1:9", adapter="x", timeout=None),
                      lambda: heddle.Admin("tcp://127.0.0.1:9", timeout=None).status()):
            try:
                threading.Timer(0.3, lambda: os.kill(os.getpid(), 2)).start()
                open_()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
    """)
    assert [it.line(), it.line()] == ["interrupted"] * 2
    assert it.end(sign=None) == 0, it.log.read_text()
