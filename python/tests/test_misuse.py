# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, and how it is said."""
import asyncio
import copy
import gc
import logging
import os
import pickle
import re
import select
import subprocess
import sys
import threading
import time
import warnings

import pytest

import heddle
from conftest import BIN, FIXTURES, ROOT, Broker, at_most, until
from heddle._native import ffi, lib

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": {"v_proj", "q_proj"}}
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def tensors(numpy, value=1.0, dtype="float32", rows=8):
    return {KEY.format("A"): numpy.full((rows, 64), value, dtype),
            KEY.format("B"): numpy.full((64, rows), value, dtype)}


@pytest.fixture
def numpy():
    return pytest.importorskip("numpy")


@pytest.fixture
def pub(broker, adapter):
    with heddle.Publisher(adapter=adapter) as it:
        yield it


# -- what comes in -------------------------------------------------------------------------------------------

def test_wrong_types_are_named(pub, numpy):
    good = tensors(numpy)
    for bad, found in ((good[KEY.format("A")].astype("complex128"), "complex128"), ([[1.0]], "list"),
                       (numpy.array([object()]), "object")):
        with pytest.raises(heddle.UsageError, match="lora_A") as e:
            pub.publish_tensors({**good, KEY.format("A"): bad}, CONFIG)
        assert e.value.found == found
    assert isinstance(e.value, ValueError)
    with pytest.raises(heddle.UsageError):
        pub.publish_tensors(good, 7)
    with pytest.raises(heddle.BadAdapter):
        pub.publish_tensors(good, {**CONFIG, "peft_type": "IA3"})
    with pytest.raises(heddle.BadAdapter) as e:
        pub.publish_tensors({"x.weight": good[KEY.format("A")]}, CONFIG)
    assert e.value.code == "no_lora" and e.value.exit == 8 and e.value.phase == "pack"


def test_strides_and_byte_order_do_not_matter(pub, numpy):
    base = {k: numpy.arange(v.size, dtype="float32").reshape(v.shape) for k, v in tensors(numpy).items()}
    digest = pub.publish_tensors(base, CONFIG).digest
    strange = {k: numpy.asfortranarray(v) for k, v in base.items()}
    assert pub.publish_tensors(strange, CONFIG).digest == digest
    assert pub.publish_tensors({k: v[:, ::-1].copy()[:, ::-1] for k, v in base.items()},
                               CONFIG).digest == digest
    assert pub.publish_tensors({k: v.astype(">f4") for k, v in base.items()}, CONFIG).digest == digest
    torch = pytest.importorskip("torch")
    assert pub.publish_tensors({k: torch.from_numpy(numpy.ascontiguousarray(v.T)).T for k, v in base.items()},
                               CONFIG).digest == digest


def test_a_mapping_as_config_has_its_sets_sorted(pub, numpy):
    ver = pub.publish_tensors(tensors(numpy), CONFIG)
    with heddle.Admin() as adm:
        assert adm.versions(f"{pub.adapter}@{ver.version}")[0].config["target_modules"] == ["q_proj",
                                                                                            "v_proj"]


def test_names_that_do_not_fit_a_model_are_told_by_side():
    import types

    from heddle import peft
    plan = types.SimpleNamespace(table=types.SimpleNamespace(rows=[("a", "F32", (1,)), ("b", "F32", (1,))]))
    for have, expected, found in (({"a": 0}, "also b", "1 tensors, without those"),
                                  ({"a": 0, "b": 0, "c": 0}, "these 2 tensors and no others", "also c")):
        with pytest.raises(heddle.BadAdapter) as e:
            peft._check_names(plan, have, "default")
        assert (e.value.expected, e.value.found) == (expected, found) and "expected" not in e.value.hint


def test_words_that_are_none(broker, adapter):
    for wrong in ({"activation": "some"}, {"if_unchanged": "maybe"}, {"timeout": -1},
                  {"timeout": float("nan")}, {"adapter": "no spaces"}):
        with pytest.raises(heddle.UsageError):
            heddle.Publisher(**{"adapter": adapter, **wrong})
    for wrong in ({"apply": "never"}, {"adapters": []}, {"adapters": adapter}, {"ranks": 2}, {"slots": 1000},
                  {"accepts": [], "apply": "auto"}):
        with pytest.raises(heddle.UsageError):
            heddle.Worker(**{"adapters": [adapter], **wrong})
    with heddle.Admin() as adm:
        for wrong in ({"quorum": "most"}, {"quorum": "101%"}, {"quorum": "none"}, {"phase": "done"},
                      {"deadline": -1}):
            with pytest.raises(heddle.UsageError):
                adm.wait(adapter, **wrong)
        with pytest.raises(heddle.UsageError, match="NUL"):
            adm.versions("a\0b")
        with pytest.raises(heddle.NotFound) as e:
            adm.versions("nobody-published-this@3")
        assert isinstance(e.value, LookupError) and e.value.exit == 3


WRONG_KINDS = [
    ("worker", {"slots": -1}, "slots"), ("worker", {"slots": "3"}, "slots"),
    ("worker", {"slots": True}, "slots"),
    ("worker", {"slots": 2**70}, "slots"), ("worker", {"max_rate": -5}, "max_rate"),
    ("worker", {"max_rate": 1.5}, "max_rate"),
    ("worker", {"labels": ["a=b"]}, "labels"), ("worker", {"labels": "a=b"}, "labels"),
    ("worker", {"adapters": 5}, "adapters"),
    ("worker", {"adapters": [5]}, "adapters"), ("worker", {"name": 5}, "text"),
    ("worker", {"apply": ["app"]}, "apply"),
    ("worker", {"join_timeout": True}, "join_timeout"), ("worker", {"name": "\ud800"}, "text"),
    ("worker", {"accepts": "dora"}, "accepts"), ("worker", {"accepts": ["dorra"]}, "accepts"),
    ("acquire", {"version": 2**70}, "version"), ("acquire", {"version": True}, "version"),
    ("acquire", {"version": "1"}, "version"),
    ("acquire", {"version": 0}, "version"), ("acquire", {"adapter": 5}, "text"),
    ("wait_current", {"timeout": "3"}, "timeout"), ("updates", {"timeout": -1}, "timeout"),
    ("admin", {"timeout": "5"}, "timeout"), ("admin", {"broker": 5}, "text"),
    ("wait", {"min": -1}, "min"), ("wait", {"min": "1"}, "min"), ("wait", {"workers": "zz"}, "workers"),
    ("wait", {"workers": [1]}, "workers"), ("wait", {"deadline": []}, "deadline"),
    ("events", {"since": -1}, "since"), ("events", {"limit": -1}, "limit"),
    ("events", {"limit": "1"}, "limit"),
    ("events", {"adapter": 5}, "text"), ("load_into", {"a": None}, "nothing to load"),
    ("load_into", {"a": object()}, "nothing to load"),
    ("events", {"since": "yesterday"}, "nor a time"),
    ("events", {"since": "2026-11-25T15"}, "nor a time"), ("events", {"since": "2026-W48"}, "nor a time"),
    ("events", {"since": "2026-02-30"}, "nor a time"), ("events", {"since": "15:50"}, "nor a time"),
    ("events", {"since": "-1"}, "nor a time"), ("events", {"since": -1}, "since is out of bounds"),
    ("events", {"since": 10**20}, "since is out of bounds"),
    ("events", {"since": str(10**20)}, "nor a time"), ("events", {"since": None}, "since is not a count"),
    ("events", {"limit": 10**20}, "limit is out of bounds"),
    ("events", {"last": 0}, "last is out of bounds"), ("events", {"last": "2"}, "last is not a count"),
]


@pytest.fixture(scope="module")
def taker(broker):
    """The calls that WRONG_KINDS names."""
    import heddle.peft
    with heddle.Worker(adapters=["kinds"], name="kinds") as w, heddle.Admin() as adm:
        yield {"worker": lambda **how: heddle.Worker(**{"adapters": ["kinds"], **how}), "admin": heddle.Admin,
               "acquire": lambda adapter="kinds", **how: w.acquire(adapter, **how),
               "wait_current": w.wait_current,
               "updates": w.updates, "wait": lambda **how: adm.wait("kinds@1", **how),
               "events": lambda **how: list(adm.events(**how)),
               "load_into": lambda a: heddle.peft.load_into(object(), a)}


@pytest.mark.parametrize("call,how,named", WRONG_KINDS,
                         ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_an_argument_of_a_wrong_kind_is_a_usage_error_that_names_it(taker, call, how, named):
    with pytest.raises(heddle.UsageError, match=named) as e:
        taker[call](**how)
    assert e.value.code == "usage" and e.value.expected and e.value.found


def test_publish_dir_tells_what_is_wrong(pub, tmp_path):
    with pytest.raises(heddle.NotFound):
        pub.publish_dir(tmp_path / "none")
    with pytest.raises(heddle.HeddleError):
        pub.publish_dir(tmp_path)
    with pytest.raises(heddle.UsageError, match="step") as e:
        pub.publish_dir(FIXTURES / "plain", step=-1)
    assert e.value.found == "-1" and "without step=" in e.value.hint
    with pytest.raises(heddle.UsageError, match="deadline") as e:
        pub.publish_dir(FIXTURES / "plain", deadline=-1)
    assert "deadline=" in e.value.hint
    with pytest.raises(heddle.Deadline) as e:
        pub.publish_dir(FIXTURES / "plain", deadline=0.3).wait(timeout=5)
    assert e.value.code == "no_workers" and isinstance(e.value,
                                                       TimeoutError) and e.value.rollout.eligible_count == 0


def test_a_count_that_was_never_there_is_no_success_of_a_retired_version(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], name="one",
                                                                 apply="auto"):
        first = pub.publish_dir(FIXTURES / "plain")
        first.wait(timeout=60)
        for other in ("dora", "bf16"):                      # --keep 1: the first one retires
            pub.publish_dir(FIXTURES / other).wait(timeout=60)
        until(lambda: pub.report(first.version).state == "retired", "the first version retired")
        for phase in ("staged", "active"):
            with pytest.raises(heddle.RolloutFailed, match="retired"):
                first.wait(phase, quorum=5, timeout=5)


def test_a_wait_that_lacks_somebody_says_what_he_said(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], name="picky") as picky:
        until(lambda: [w for w in heddle.Admin().workers() if w.name == "picky"], "the worker joined")
        ver = pub.publish_dir(FIXTURES / "plain")
        for u in picky.updates(timeout=30):
            if u.phase == "arrived":
                break
        with pytest.raises(heddle.Deadline) as e:
            ver.wait("staged", quorum=2, timeout=0.2)
        assert e.value.code == "deadline" and e.value.worker == "picky" and "picky: " in str(e.value)
        u.reject("rank 64 is more than max_lora_rank 16")
        with pytest.raises(heddle.HeddleError, match="picky.*rank 64 is more than max_lora_rank 16"):
            ver.wait("staged", quorum=2, timeout=5)


# -- conflicts -----------------------------------------------------------------------------------------------

def test_two_publishers(broker, adapter):
    with heddle.Publisher(adapter=adapter, writer="first") as first:
        with pytest.raises(heddle.Conflict, match="first") as e:
            heddle.Publisher(adapter=adapter, writer="second")
        assert e.value.code == "writer_held" and e.value.retriable
        with heddle.Publisher(adapter=adapter, writer="second", takeover=True) as second:
            second.publish_dir(FIXTURES / "plain")
            with pytest.raises(heddle.Fenced):
                first.publish_dir(FIXTURES / "plain")


def test_a_writer_that_died_is_waited_for(broker, adapter, program):
    """Until the broker's lease of 2 s is over; a shorter timeout does not do."""
    def dead():
        it = program("import heddle; kept = heddle.Publisher(adapter=sys.argv[1]); print('open', "
                     "flush=True); sys.stdin.read()", adapter)
        assert it.line() == "open"
        it.end(sign=9)
    dead()
    with pytest.raises(heddle.Conflict, match="has a writer"):
        heddle.Publisher(adapter=adapter, timeout=0.3)
    with heddle.Publisher(adapter=adapter, timeout=20) as pub:
        assert pub.publish_dir(FIXTURES / "plain").created


def test_a_live_writer_is_not_waited_for(broker, adapter):
    with heddle.Publisher(adapter=adapter):
        with at_most(20, "until it was heard of again"), pytest.raises(heddle.Conflict, match="has a writer"):
            heddle.Publisher(adapter=adapter, timeout=60)


def test_unchanged_step_back_and_request_ids(broker, adapter):
    with heddle.Publisher(adapter=adapter, if_unchanged="fail") as pub:
        first = pub.publish_dir(FIXTURES / "plain", step=5, request_id="r1", meta={"run": "a"})
        with heddle.Admin() as adm:
            assert [(v.meta, v.step) for v in adm.versions(adapter)] == [({"run": "a"}, 5)]
        again = pub.publish_dir(FIXTURES / "plain", step=5, request_id="r1")
        assert (again.version, again.reason, again.created) == (first.version, "replayed", False)
        with pytest.raises(heddle.Conflict) as e:
            pub.publish_dir(FIXTURES / "dora", request_id="r1")
        assert e.value.code == "request_conflict"
        with pytest.raises(heddle.Conflict) as e:
            pub.publish_dir(FIXTURES / "plain", step=6)
        assert e.value.code == "unchanged"
        with pytest.raises(heddle.Conflict) as e:
            pub.publish_dir(FIXTURES / "dora", step=4)
        assert e.value.code == "step_back"
        assert pub.publish_dir(FIXTURES / "dora", step=4, allow_step_back=True).features == ("dora",)


def test_a_held_adapter(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="held",
                       apply="auto") as w, heddle.Publisher(adapter=adapter) as pub, heddle.Admin() as adm:
        pub.publish_dir(FIXTURES / "plain").wait(timeout=60)
        pub.publish_dir(FIXTURES / "dora").wait(timeout=60)
        back = adm.activate(f"{adapter}@1", by="ann")
        assert back.changed and back.from_ == 2 and back.to == 1 and back.bytes_moved == 0 and back.held
        with pytest.raises(heddle.Held, match="ann") as e:
            pub.publish_dir(FIXTURES / "bf16").wait(timeout=60)
        assert e.value.rollout.state == "staged"
        assert adm.adapters()[[a.name for a in adm.adapters()].index(adapter)].held.by == "ann"
        until(lambda: w.current(adapter).version == 1, "the worker went back")


def _joined(name):
    with heddle.Admin() as adm:
        until(lambda: any(w.name == name and w.state == "ready" for w in adm.workers()), f"{name} joined")


def test_a_version_that_the_engine_rejects(broker, adapter):
    def engine(w):
        for u in w.updates():
            if u.phase == "arrived":
                assert u.reject(MemoryError("no room for this one"))
    with heddle.Worker(adapters=[adapter], name="full") as w, heddle.Publisher(adapter=adapter) as pub:
        thread = threading.Thread(target=engine, args=(w,))
        thread.start()
        _joined("full")
        with pytest.raises(heddle.RolloutFailed, match="MemoryError: no room for this one") as e:
            pub.publish_dir(FIXTURES / "plain").wait(min=1, timeout=60)
        assert e.value.code == "version_failed" and e.value.exit == 1
        assert [(m.worker, m.phase) for m in e.value.rollout.missing] == [("full", "stage")]
        assert w.current(adapter) is None
        w.close()
        thread.join(10)
        assert not thread.is_alive()


def test_a_worker_that_is_not_there_yet_has_no_error(broker, adapter):
    """The engine of one has not answered yet; one is enough."""
    with (heddle.Worker(adapters=[adapter], name="quick", apply="auto"),
          heddle.Worker(adapters=[adapter], name="slow"), heddle.Publisher(adapter=adapter) as pub):
        _joined("quick")
        _joined("slow")
        found = pub.publish_dir(FIXTURES / "plain").wait("staged", quorum=1, timeout=60)
        assert [m.code for m in found.missing if m.worker == "slow"] == [None]


def test_a_whole_error_as_the_reason(broker, adapter):
    why = heddle.HeddleError("it does not fit \u00e9" + "x" * 2000, code="unsupported_feature", exit=8,
                             phase="stage", expected="a plain LoRA", found="alora", hint="train without it")
    with heddle.Worker(adapters=[adapter], name="w" + adapter[-20:]) as w, \
            heddle.Publisher(adapter=adapter) as pub:
        until(lambda: w.stats()["joined"], "it joined")
        ver = pub.publish_dir(FIXTURES / "plain")
        assert next(u for u in w.updates(timeout=30) if u.phase == "arrived").reject(why)
        with pytest.raises(heddle.RolloutFailed, match="it does not fit \u00e9xxx") as e:
            ver.wait(min=1)
        reason = heddle.Admin().versions(f"{adapter}@{ver.version}")[0].reason
    assert (e.value.code, e.value.phase, e.value.worker) == ("version_failed", "stage", "w" + adapter[-20:])
    assert (reason.code, reason.phase) == ("unsupported_feature", "stage")


def test_features_that_an_engine_does_not_accept(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="picky",
                       accepts=["rslora"]) as w, heddle.Publisher(adapter=adapter) as pub:
        _joined("picky")                    # one that joins later may refuse it, and fails nothing
        ver = pub.publish_dir(FIXTURES / "dora")
        seen = threading.Thread(target=lambda: [u.staged() if u.phase == "arrived" else u.activate()
                                                for u in w.updates() if not u.answered])
        seen.start()
        with pytest.raises(heddle.RolloutFailed, match="dora"):
            ver.wait(min=1, timeout=60)
        assert pub.publish_dir(FIXTURES / "rslora").wait(phase="staged", min=1, timeout=60).staged_count == 1
        w.close()
        seen.join(10)
        assert not seen.is_alive()


def test_an_update_left_unanswered_is_rejected_with_a_warning(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="lazy") as w, heddle.Publisher(adapter=adapter) as pub:
        _joined("lazy")
        ver = pub.publish_dir(FIXTURES / "plain")
        updates = w.updates(timeout=30)
        first = next(updates)
        assert first.phase == "arrived" and first.features == () and first.config["peft_type"] == "LORA"
        with pytest.raises(heddle.UsageError, match="answers a commit"):
            first.activate()
        with pytest.warns(RuntimeWarning, match="left unanswered") as said:
            assert next(updates).phase == "failed"
        assert [w.filename for w in said] == [__file__]
        with pytest.raises(heddle.RolloutFailed, match="unanswered"):
            ver.wait(timeout=30)
        with pytest.raises(heddle.UsageError, match="answered already"):
            first.staged()


def test_an_answer_may_come_later(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="later") as w, heddle.Publisher(adapter=adapter) as pub:
        ver = pub.publish_dir(FIXTURES / "plain")
        updates = w.updates(timeout=30)
        arrived = next(updates).defer()
        assert list(w.updates(timeout=0)) == []
        answered = threading.Thread(target=lambda: arrived.staged())
        answered.start()
        commit = next(updates)
        answered.join()
        assert commit.phase == "commit" and commit.activate()
        assert ver.wait(timeout=30).active_count == 1 and w.wait_current(5)[adapter].version == 1


def test_a_call_under_way_keeps_the_slot(broker, adapter):
    """export() and rehash() run without the GIL: another thread may end the block meanwhile."""
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto") as w:
        pub.publish_dir(FIXTURES / "plain").wait(min=1)
        w.wait_current(20)
        a, seen = w.acquire(adapter), []
        hold = a._held()

        def ends_meanwhile(_):
            a.release()
            seen.append(hold.live)
            return 0
        hold.call(ends_meanwhile)
        assert seen == [True] and not hold.live
        with pytest.raises(heddle.Closed):
            a.rehash()


# -- a join that is refused ----------------------------------------------------------------------------------

@pytest.fixture
def namesake(broker, adapter):
    """namesake(): a worker under a name that another one has, which gives up joining at once."""
    opened = [heddle.Worker(adapters=[adapter], name=f"one-{adapter[-20:]}")]
    until(lambda: opened[0].stats()["joined"], "it has the name")

    def make(**how):
        opened.append(heddle.Worker(adapters=[adapter], name=f"one-{adapter[-20:]}", join_timeout=0.2, **how))
        return opened[-1]
    yield make
    for w in opened:
        w.close()


async def _async_updates(w):
    return [u async for u in w.updates(timeout=20)]


@pytest.mark.parametrize("wait", [lambda w: list(w.updates(timeout=20)), lambda w: w.wait_current(20),
                                  lambda w: asyncio.run(_async_updates(w))],
                         ids=["updates", "wait_current", "async"])
def test_a_join_that_is_refused_for_good_ends_every_wait(namesake, wait):
    w = namesake()
    for _ in range(2):                      # not only who hears it first
        with pytest.raises(heddle.Conflict) as e:
            wait(w)
        assert e.value.code == "worker_alive" and not w.closed


def test_a_refusal_that_another_call_has_heard_wakes_readers(namesake, adapter):
    w = namesake(apply="auto")
    until(lambda: w.stats() and w._is_over, "stats() heard of it")
    assert w.stats()["joined"] is None and w.current(adapter) is None
    with pytest.raises(heddle.NotFound):
        w.acquire(adapter)
    for _ in range(2):
        assert select.select([w], [], [], 0)[0] == [w]
        with pytest.raises(heddle.Conflict):
            list(w.updates(timeout=0))


def test_a_refusal_is_said_once_however_often_it_comes(broker, adapter, caplog, monkeypatch):
    heard, events, error_of = [], [], heddle.worker._native.error_of
    note = heddle.Worker._note

    def by_turns(code):                     # as of two endpoints
        found = error_of(code)
        found.expected = found.hint = None
        if found.code == "worker_alive":
            heard.append(found)
            if len(heard) % 2:
                found.code = "unavailable"
        return found

    def kept(self, event):
        events.append(event)
        note(self, event)
    monkeypatch.setattr("heddle.worker._native.error_of", by_turns)
    name = f"one-{adapter[-20:]}"
    with heddle.Worker(adapters=[adapter], name=name) as first:
        until(lambda: first.stats()["joined"], "it has the name")
        monkeypatch.setattr(heddle.Worker, "_note", kept)
        with heddle.Worker(adapters=[adapter], name=name) as second:
            until(lambda: second.stats() and heard, "it is refused")
            for _ in range(4):              # the library gives one a minute while the reason stays
                note(second, events[0])
    said = [record for record in caplog.records if "refused this worker for now" in record.message]
    assert len(heard) >= 5
    assert [record.args[0].code for record in said] == ["unavailable", "worker_alive"]


def test_a_broker_that_goes_is_said_though_another_call_has_heard_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("heddle.worker._ALONE_S", 0.3)
    it = Broker(tmp_path, "--lease", "1s")
    with heddle.Worker(it.endpoint, ["x"], name="deaf") as w:
        until(lambda: w.stats()["joined"], "it joined")
        waits = threading.Thread(target=lambda: list(w.updates()))
        waits.start()
        until(lambda: w._pollers, "somebody waits")
        with monkeypatch.context() as m:
            m.setattr(w, "_take", lambda: None)         # the reader comes late, whatever wakes it
            it.end()
            until(lambda: w.stats()["joined"] is None, "stats() heard of it")
        until(lambda: "worker.waiting" in caplog.text, "it is said")
        w.close()
        waits.join(10)


# -- ends ----------------------------------------------------------------------------------------------------

def test_a_closed_handle_has_no_descriptor(broker, adapter):
    def eventfds():
        files = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.islink(f) and "eventfd" in os.readlink(f) for f in files)

    def opened_and_closed(make):
        with make() as it:
            pass
        return it

    def refused():
        with pytest.raises(heddle.UsageError) as e:
            heddle.Worker(adapters=[adapter], accepts=["nothing"])
        return e                        # its traceback has the worker

    for make in (lambda: opened_and_closed(lambda: heddle.Publisher(adapter=adapter)),
                 lambda: opened_and_closed(heddle.Admin), refused,
                 lambda: opened_and_closed(lambda: heddle.Worker(adapters=[adapter], name="counted"))):
        make()                          # what the process keeps for all of them
        gc.collect()
        before = eventfds()
        them = [make() for _ in range(3)]
        until(lambda: eventfds() <= before, f"{them[0]!r} has none, though it is not collected yet")


def test_a_copy_of_the_descriptor_stays_readable(broker, adapter):
    w = heddle.Worker(adapters=[adapter], name="copied")
    copy = os.dup(w.fileno())
    try:
        w.close()
        gc.collect()
        assert select.select([copy], [], [], 0)[0], "a loop that comes late sees that it is closed"
    finally:
        os.close(copy)


def test_closed_objects(broker, adapter, numpy):
    pub, w, adm = heddle.Publisher(adapter=adapter), heddle.Worker(adapters=[adapter], name="closed",
                                                                   apply="auto"), heddle.Admin()
    ver = pub.publish_tensors(tensors(numpy), CONFIG)
    ver.wait(min=1, timeout=60)
    a = w.acquire(adapter)
    view = a.tensors[KEY.format("A")].numpy()
    for it in (pub, w, adm):
        it.close()
        it.close()
        assert it.closed
    calls = [lambda: pub.publish_tensors(tensors(numpy), CONFIG), lambda: pub.publish_dir(FIXTURES / "plain"),
             lambda: ver.wait(), lambda: pub.report(1),
             lambda: w.acquire(adapter), w.stats, w.fileno, lambda: w.current(adapter), lambda: w.updates(),
             lambda: w.wait_current(1), adm.status,
             adm.workers, lambda: adm.wait(adapter), lambda: next(adm.events()), lambda: pub.__enter__()]
    for call in calls:
        with pytest.raises(heddle.Closed) as e:
            call()
        assert e.value.hint
    for it in (pub, w):
        with pytest.raises(heddle.Closed, match=adapter) as e:
            it.__enter__()
        assert e.value.adapter == adapter
    assert numpy.array_equal(view, tensors(numpy)[KEY.format("A")]), (
        "what was held stays, the worker's end notwithstanding")
    del view
    a.release()
    with pytest.raises(heddle.Closed, match="released"):
        a.tensors


@pytest.mark.parametrize("taken", [0, 1])
def test_updates_end_with_the_worker_whatever_is_left(broker, adapter, numpy, taken):
    with heddle.Publisher(adapter=adapter) as pub:
        w = heddle.Worker(adapters=[adapter], name="left", apply="auto")
        for n in (1, 2):
            pub.publish_tensors(tensors(numpy, n), CONFIG).wait(min=1, timeout=60)
        w.wait_current(60)                      # reads them
        found = w.updates(timeout=60)
        for _ in range(taken):
            assert next(found).phase == "active"
        w.close()
        with pytest.raises(StopIteration):
            next(found)


def test_updates_of_a_worker_that_was_closed_reject_nothing(broker, adapter, recwarn):
    """Nobody is left to be told."""
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], name="left") as w:
        _joined_any(adapter)
        pub.publish_dir(FIXTURES / "plain")
        phases = []
        for update in w.updates(timeout=60):
            phases.append(update.phase)
            w.close()
        assert phases == ["arrived"] and not update.answered
    assert not [str(w.message) for w in recwarn if "unanswered" in str(w.message)]


def test_a_closing_that_failed_half_way_closes_no_descriptor_twice(broker, adapter, monkeypatch):
    def fail():
        raise RuntimeError("of the test")
    w = heddle.Worker(adapters=[adapter])
    with monkeypatch.context() as m:
        m.setattr(w, "_forget_interrupt", fail)
        with pytest.raises(RuntimeError, match="of the test"):
            w.close()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]       # take the numbers that are free again
    w.close()
    assert w._freed.is_set()
    for fd in others:
        os.close(fd)


def test_what_owns_a_handle_cannot_be_copied(broker, adapter):
    with (heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter]) as w,
          heddle.Admin() as adm):
        _joined_any(adapter)
        pub.publish_dir(FIXTURES / "plain")
        update = next(w.updates(timeout=30)).defer()
        with w.acquire(adapter, 1) as a:
            for it in (pub, w, adm, a, update):
                for by in (copy.copy, copy.deepcopy, pickle.dumps):
                    with pytest.raises(TypeError, match="cannot be copied, pickled"):
                        by(it)
        update.reject("enough")


def _joined_any(adapter):
    with heddle.Admin() as adm:
        until(lambda: any(a.name == adapter for w in adm.workers() for a in w.adapters),
              f"somebody has {adapter}")


def test_closing_ends_the_waits_of_other_threads(broker, adapter):
    w = heddle.Worker(adapters=[adapter], name="waits")
    got = []
    threads = [threading.Thread(target=lambda: got.append(list(w.updates()))),
               threading.Thread(target=lambda: _raises(got, w.wait_current))]
    for t in threads:
        t.start()
    until(lambda: w._pollers, "somebody waits")
    with at_most(5):
        w.close()
        for t in threads:
            t.join(10)
    assert not any(t.is_alive() for t in threads)
    assert sorted(map(str, got)) == ["[]", "closed"]


def _raises(got, call):
    try:
        call(timeout=60)
    except heddle.Closed as e:
        got.append(e.code)


def test_what_is_not_here_is_told_in_full(broker, adapter, tmp_path):
    with heddle.Worker(adapters=[adapter, adapter + "-2"], name="whole",
                       apply="auto") as w, heddle.Publisher(adapter=adapter) as pub:
        with pytest.raises(heddle.NotFound, match=f"no version of {adapter} is active") as e:
            w.acquire(adapter)
        assert e.value.adapter == adapter and e.value.found == "none" and e.value.expected and e.value.hint
        pub.publish_dir(FIXTURES / "plain").wait(min=1, timeout=60)
        with pytest.raises(heddle.NotFound, match=f"{adapter}@7 is not here") as e:
            w.acquire(adapter, 7)
        assert (e.value.adapter, e.value.version, e.value.expected,
                e.value.found) == (adapter, 7, "version 7", "1") and e.value.hint
        with pytest.raises(heddle.NotFound, match="did not subscribe to zz") as e:
            w.acquire("zz")
        assert (e.value.expected, e.value.found) == (f"{adapter} {adapter}-2", "zz") and e.value.hint
        with w.acquire(adapter) as a:
            a.export(tmp_path / "out")
            with pytest.raises(heddle.UsageError, match="it is there already") as e:
                a.export(tmp_path / "out")
            assert e.value.phase == "export" and e.value.hint
        with pytest.raises(heddle.Closed, match="was released") as e:
            a.tensors
        assert e.value.adapter == adapter and e.value.hint


def test_descriptors_are_asked_for_once(broker, adapter, monkeypatch):
    """Nobody asks a C handle for its descriptor when another thread may have freed it."""
    from heddle import _native
    with heddle.Worker(adapters=[adapter], apply="auto") as w, heddle.Publisher(adapter=adapter) as pub:
        for name in ("heddle_worker_fd", "heddle_publisher_fd"):
            monkeypatch.setattr(_native.lib, name, None)
        pub.publish_dir(FIXTURES / "plain").wait(min=1, timeout=60)
        assert w.wait_current(60)[adapter].version == 1 and w.fileno() >= 0


def test_views_that_outlive_their_block(broker, adapter, numpy):
    with heddle.Worker(adapters=[adapter], name="views", apply="auto",
                       slots=4) as w, heddle.Publisher(adapter=adapter) as pub:
        pub.publish_tensors(tensors(numpy), CONFIG).wait(min=1, timeout=60)
        for end in (lambda a: a.__exit__(None, None, None), lambda a: a.release()):
            with pytest.warns(ResourceWarning, match="lora_A") as said:
                a = w.acquire(adapter)
                kept = a.numpy()[KEY.format("A")][2:4]
                end(a)
            assert [w.filename for w in said] == [__file__]
        held = w.stats()["held"]
        assert [(h["version"], h["views"], h["in_block"])
                for h in held] == [(1, [KEY.format("A")], False)] and __file__ in held[0]["where"]
        for n in range(2, 6):
            pub.publish_tensors(tensors(numpy, float(n)), CONFIG).wait(min=1, timeout=60)
        assert (kept == 1.0).all() and not kept.flags.writeable, "its bytes are the first version's still"
        with pytest.raises(ValueError):
            kept[0] = 2
        del kept
        assert w.stats()["held"] == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with w.acquire(adapter) as a:
                assert a.tensors[KEY.format("B")].numpy()[0, 0] == 5.0


def test_a_piece_of_a_torch_view_keeps_the_slot_under_its_name(broker, adapter, numpy):
    pytest.importorskip("torch")
    with heddle.Worker(adapters=[adapter], name="pieces", apply="auto") as w, \
            heddle.Publisher(adapter=adapter) as pub:
        pub.publish_tensors(tensors(numpy), CONFIG).wait(min=1, timeout=60)
        with pytest.warns(ResourceWarning, match=r"slot: [^,]*lora_A[^,]*$"), w.acquire(adapter) as a:
            kept = a.torch()[KEY.format("A")][2:4].t()
        assert [h["views"] for h in w.stats()["held"]] == [[KEY.format("A")]]
        assert (kept == 1.0).all()
        del kept
        assert w.stats()["held"] == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with w.acquire(adapter) as a:
                assert all(bool((t == 1.0).all()) for t in a.torch().values())


def test_views_that_were_not_taken_over_keep_nothing(broker, adapter, numpy):
    """An exception (Ctrl-C) while torch takes them: those that it has stay good, the rest is given back."""
    from_dlpack = pytest.importorskip("torch.utils.dlpack").from_dlpack
    with heddle.Worker(adapters=[adapter], name="torn", apply="auto") as w, \
            heddle.Publisher(adapter=adapter) as pub:
        pub.publish_tensors(tensors(numpy), CONFIG).wait(min=1, timeout=60)
        kept = []

        def take(capsule):
            if kept:
                raise KeyboardInterrupt
            kept.append(from_dlpack(capsule))
            return kept[0]
        with pytest.warns(ResourceWarning, match=r"slot: [^,]*lora_A[^,]*$"), w.acquire(adapter) as a:
            with pytest.raises(KeyboardInterrupt):
                a._held().hand_over(a.tensors._layout, take)
        assert [h["views"] for h in w.stats()["held"]] == [[KEY.format("A")]] and (kept[0] == 1.0).all()
        kept.clear()
        assert w.stats()["held"] == []


def test_an_interrupt_of_torch_keeps_nothing(broker, adapter, numpy):
    """At each instruction of Python's on the way."""
    from_dlpack = pytest.importorskip("torch.utils.dlpack").from_dlpack
    updates = sys.modules["heddle.updates"].__file__
    finalizers = ("__del__", "_release_views")          # whose exceptions Python only reports
    with heddle.Worker(adapters=[adapter], name="struck", apply="auto") as w, \
            heddle.Publisher(adapter=adapter) as pub:
        pub.publish_tensors(tensors(numpy), CONFIG).wait(min=1, timeout=60)

        def torch_struck_at(n):
            """Whether it was: a KeyboardInterrupt at the n-th instruction."""
            left = n

            def strike(frame, event, _):
                nonlocal left
                names = {frame.f_code.co_name, frame.f_back.f_code.co_name}
                if frame.f_code.co_filename != updates or not names.isdisjoint(finalizers):
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode":
                    left -= 1
                    if left == 0:
                        raise KeyboardInterrupt
                return strike
            with w.acquire(adapter) as a:
                hold = a._held()
                layout = a.tensors._layout
                sys.settrace(strike)
                try:
                    hold.hand_over(layout, from_dlpack)
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
            return left <= 0
        assert not torch_struck_at(10 ** 6), "and all that it calls was called once"
        n = 1
        while torch_struck_at(n):
            if w.stats()["held"]:
                gc.collect()                    # of what the traceback refers to
            assert w.stats()["held"] == [], f"instruction {n}"
            n += 1
        assert n > 50


def test_an_interrupt_of_what_gives_back_keeps_nothing(broker, adapter, numpy, monkeypatch):
    """A second Ctrl-C, while what the first one left is given back."""
    from heddle.updates import Handed

    def struck(_):
        raise KeyboardInterrupt
    with heddle.Worker(adapters=[adapter], name="struck-twice", apply="auto") as w, \
            heddle.Publisher(adapter=adapter) as pub:
        pub.publish_tensors(tensors(numpy), CONFIG).wait(min=1, timeout=60)
        with pytest.warns(ResourceWarning), w.acquire(adapter) as a:
            layout = a.tensors._layout
            gc.collect()        # else garbage of an earlier test may meet `struck`
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Handed, "give_back", struck)
                a._held().hand_over(layout, struck)
        assert w.stats()["held"] == []


def test_torch_views_of_every_type_and_shape(broker, adapter, numpy):
    torch = pytest.importorskip("torch")
    kinds = ("bool uint8 int8 float8_e5m2 float8_e4m3fn int16 uint16 float16 bfloat16 int32 uint32 float32 "
             "complex64 float64 int64 uint64").split()
    with heddle.Worker(adapters=[adapter], name="every-type", apply="auto") as w, \
            heddle.Publisher(adapter=adapter) as pub:
        sent = {f"base_model.model.{kind}.{shape}.weight":
                torch.randint(0, 2, shape).to(getattr(torch, kind))
                for kind in kinds for shape in ((), (3,), (2, 3, 5), (2, 0, 5))}
        sent |= {name: torch.from_numpy(t) for name, t in tensors(numpy).items()}
        pub.publish_tensors(sent, CONFIG).wait(min=1, timeout=60)
        with w.acquire(adapter) as a:
            got, one_by_one = a.torch(), {name: t.torch() for name, t in a.tensors.items()}
            names = a._held()._handed[0].names()
            handed = {kind for kind in kinds if f"base_model.model.{kind}.(3,).weight" in names}
            assert handed == {"uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32",
                              "complex64", "float64", "int64"}
            for name, t in sent.items():
                for found in (got[name], one_by_one[name]):
                    assert found.dtype is t.dtype and found.shape == t.shape and found.is_contiguous()
                    assert bytes(found.reshape(-1).view(torch.uint8).numpy()) == bytes(
                        t.reshape(-1).view(torch.uint8).numpy()), name
            del got, one_by_one, found
        assert w.stats()["held"] == []


def test_views_that_outlive_their_update_are_named(broker, adapter, numpy):
    with heddle.Worker(adapters=[adapter], name="keeps") as w, heddle.Publisher(adapter=adapter) as pub:
        tag = pub.publish_tensors(tensors(numpy), CONFIG).tag
        update = next(w.updates(timeout=30))
        kept = update.numpy()[KEY.format("A")]
        with pytest.warns(ResourceWarning,
                          match=f"views of {tag} outlive their update .arrived.*lora_A") as said:
            assert update.staged()
        assert [w.filename for w in said] == [__file__]
        assert [(h["where"], h["views"])
                for h in w.stats()["held"]] == [(f"Update arrived {tag}", [KEY.format("A")])]
        assert kept[0, 0] == 1.0
        del kept
        assert w.stats()["held"] == []


def test_stats_know_the_session_that_nobody_read_of(tmp_path, numpy):
    it = Broker(tmp_path, "--lease", "1s", listen=f"ipc://{tmp_path}/broker")
    with heddle.Worker(it.endpoint, ["x"], apply="auto", name="asks") as w:
        first = until(lambda: w.stats()["joined"], "it joined")
        it.end(sign=9)
        until(lambda: w.stats()["joined"] is None, "it knows that the broker is gone")
        with pytest.raises(heddle.Deadline, match="the broker is away"):
            w.wait_current(0)
        again = Broker(tmp_path, "--lease", "1s", listen=f"ipc://{tmp_path}/broker")
        assert until(lambda: w.stats()["joined"], "it joined again")["cluster"] == first["cluster"]
    assert again.end() == 0


def test_wait_current_says_why(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="why") as w, heddle.Publisher(adapter=adapter) as pub:
        _joined("why")
        tag = pub.publish_dir(FIXTURES / "plain").tag
        for wait in (0.3, 0):                       # read by wait_current alone; then taken, and not answered
            with pytest.raises(heddle.Deadline, match=f"{tag} arrived") as e:
                w.wait_current(wait)
            assert "unanswered" in e.value.found and 'apply="auto"' in e.value.hint
            updates = w.updates(timeout=30)
            update = next(updates).defer() if wait else update
        update.reject("rank 64 is too much")
        assert next(updates).phase == "failed"
        with pytest.raises(heddle.Deadline, match=f"{tag} failed: .*rank 64 is too much.*version_failed"):
            w.wait_current(0)
        tag = pub.publish_dir(FIXTURES / "dora").tag
        assert next(updates).staged()
        commit = next(updates)
        commit.reject("the engine is gone")
        found = next(updates)
        assert found.phase == "stale"
        with pytest.raises(heddle.Deadline, match=f"{tag} is not served: .*the engine is gone") as e:
            w.wait_current(0)
        assert found.code in str(e.value) and found.code in e.value.found


def test_wait_current_names_a_version_that_is_lost(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto"):
        pub.publish_dir(FIXTURES / "plain").wait(min=1)
    with heddle.Worker(adapters=[adapter], name="late", apply="auto") as w:
        with pytest.raises(heddle.RolloutFailed, match="within 1 s: no connected process holds") as e:
            w.wait_current(1)
        assert (e.value.code, e.value.adapter, e.value.version) == ("version_lost", adapter, 1)
        assert "publish again" in str(e.value) and "publish the bytes again" in e.value.hint
        with heddle.Publisher(adapter=adapter) as pub:
            pub.publish_dir(FIXTURES / "plain")
            assert w.wait_current(30)[adapter].version == 2


def test_who_only_acquires_is_told_of_no_dropped_events(broker, adapter, program):
    it = program("""
        import heddle
        name, fixtures = sys.argv[1], sys.argv[2:]
        with heddle.Worker(adapters=[name], apply="auto") as w, heddle.Publisher(adapter=name,
                                                                                 close_timeout=0.1) as pub:
            pub.publish_dir(fixtures[0]).wait(min=1)
            w.wait_current(30)
            for i in range(150):
                ver = pub.publish_dir(fixtures[(i + 1) % 2])
                ver.wait(min=1)
                with w.acquire(name) as a:
                    assert a.version == ver.version
    """, adapter, FIXTURES / "plain", FIXTURES / "dora")
    assert it.end(sign=None) == 0, it.log.read_text()
    assert "events.dropped" not in it.log.read_text()


def test_a_trainer_that_only_publishes_is_told_of_no_dropped_events(broker, adapter, program):
    """After a wait, which reads events, none is read: 600 versions release more than a queue holds."""
    it = program("""
        import heddle
        name, fixtures = sys.argv[1], sys.argv[2:]
        with heddle.Worker(adapters=[name], apply="auto") as w, heddle.Publisher(adapter=name,
                                                                                 close_timeout=0.1) as pub:
            pub.publish_dir(fixtures[0]).wait(min=1)
            for i in range(600):
                ver = pub.publish_dir(fixtures[(i + 1) % 2])
                while pub.report(ver).active_count == 0:
                    pass
    """, adapter, FIXTURES / "plain", FIXTURES / "dora")
    assert it.end(sign=None) == 0, it.log.read_text()
    assert "events.dropped" not in it.log.read_text()


def test_nobody_is_woken_for_what_is_no_update(broker, adapter, monkeypatch):
    read, note = [], heddle.Worker._note

    def noted(self, event):
        read.append(ffi.string(lib.heddle_event_name(event.type)).decode())
        note(self, event)
    monkeypatch.setattr(heddle.Worker, "_note", noted)
    with heddle.Worker(adapters=[adapter], apply="auto") as w, heddle.Publisher(adapter=adapter) as pub:
        pub.publish_dir(FIXTURES / "plain").wait(min=1)
        w.wait_current(30)
        assert next(w.updates(timeout=30)).phase == "active"
    assert read[:2] == ["worker.joined", "activate.done"]


def test_every_slot_held_fails_a_version_by_name(broker, adapter, numpy):
    with heddle.Worker(adapters=[adapter], name="hoarder", apply="auto",
                       slots=3) as w, heddle.Publisher(adapter=adapter) as pub:
        kept = []
        for n in range(1, 4):
            pub.publish_tensors(tensors(numpy, float(n)), CONFIG).wait(min=1, timeout=60)
            kept.append(w.acquire(adapter))
        with pytest.raises(heddle.RolloutFailed) as e:
            pub.publish_tensors(tensors(numpy, 9.0), CONFIG, deadline=20).wait(min=1, timeout=60)
        assert (e.value.rollout.missing[0].code == "no_slot"
                and str(e.value).count("version 1 held by 1 reader") == 1)
        for a in kept:
            a.release()


def test_a_worker_without_a_broker_says_so_once(own_keys, broker, adapter, monkeypatch, caplog):
    monkeypatch.setattr("heddle.worker._ALONE_S", 0.3)
    caplog.set_level(logging.WARNING, "heddle")

    async def listen(w):
        return [u async for u in w.updates(timeout=1)]
    for wait in (lambda w: list(w.updates(timeout=1)), lambda w: asyncio.run(listen(w))):
        caplog.clear()
        with heddle.Worker("tcp://127.0.0.1:9", [adapter]) as w:
            assert wait(w) == [] and list(w.updates(timeout=0.5)) == []
            with pytest.raises(heddle.Deadline, match="no broker has admitted") as e:
                w.wait_current(0.1)
        said = [r.getMessage() for r in caplog.records if "worker.waiting" in r.getMessage()]
        assert len(said) == 1 and "tcp://127.0.0.1:9" in said[0] and "HEDDLE_BROKER" in said[0], said
        assert (e.value.adapter == adapter and "tcp://127.0.0.1:9" in e.value.expected
                and "Worker(broker=...)" in e.value.hint)
    caplog.clear()
    with heddle.Worker(adapters=[adapter]) as w:
        with pytest.raises(heddle.Deadline, match="not current") as e:
            w.wait_current(1)
        assert e.value.adapter == adapter and e.value.hint and "admitted" not in str(e.value)
    assert not [r for r in caplog.records if "worker.waiting" in r.getMessage()]


def test_a_refused_key_is_denied_with_one_hint(own_keys, broker, adapter, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("heddle.worker._ALONE_S", 0.3)
    caplog.set_level(logging.WARNING, "heddle")
    theirs = os.environ["HEDDLE_KEYS"] + "/broker.key"
    monkeypatch.setenv("HEDDLE_KEYS", str(tmp_path / "stranger"))
    for broker_key, timeout in ((theirs, 60), (None, 3)):       # ours is not let in; theirs is not known
        with heddle.Worker(adapters=[adapter], broker_key=broker_key) as w:
            with pytest.raises(heddle.Denied) as e:
                w.wait_current(timeout)
        assert isinstance(e.value, PermissionError) and e.value.code == "denied" and e.value.exit == 6
        own = (tmp_path / "stranger" / "client.key").read_text().split("public ")[1].split()[0]
        assert f"`heddle keys add '{own}' --role" in e.value.hint
        assert str(e.value).count("hint:") == 1
        for record in caplog.records:
            assert record.getMessage().count("heddle keys add") <= 1, record.getMessage()
    with heddle.Worker(adapters=[adapter], broker_key=str(tmp_path / "stranger" / "client.key")) as w:
        with pytest.raises(heddle.Deadline) as e:               # not the key of this broker
            w.wait_current(4)
        assert "ends the connection" in e.value.found and str(e.value).count("hint:") == 1


def test_a_wait_ends_when_the_key_is_revoked(own_keys, broker, adapter, tmp_path):
    def heddle_(*words):
        subprocess.run([BIN / "heddle", *words], capture_output=True, timeout=60, check=True)
    heddle_("keygen", "--out", str(tmp_path / "trainer.key"))
    heddle_("keys", "add", str(tmp_path / "trainer.key"), "--name", adapter, "--role", f"publisher:{adapter}")
    with heddle.Worker(adapters=[adapter], name="patient"), heddle.Publisher(
            adapter=adapter, key=str(tmp_path / "trainer.key")) as pub:
        until(lambda: [w for w in heddle.Admin().workers() if w.name == "patient"], "the worker joined")
        ver = pub.publish_dir(FIXTURES / "plain")
        threading.Timer(0.5, heddle_, ("keys", "revoke", adapter)).start()
        with at_most(20), pytest.raises(heddle.Denied) as e:
            ver.wait(timeout=50)
        assert "revoked" in str(e.value) and e.value.exit == 6


@pytest.mark.parametrize("what", ["Worker", "Publisher"])
def test_a_directory_that_others_may_enter_is_denied(broker, adapter, tmp_path, what):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    opts = {"adapters": [adapter]} if what == "Worker" else {"adapter": adapter}
    with pytest.raises(heddle.Denied) as e:
        getattr(heddle, what)(host_share=str(tmp_path / "open"), **opts)
    assert str(tmp_path / "open") in str(e.value) and "mode 0777" in e.value.found
    assert "host_share=" in e.value.hint and "--" not in e.value.hint
    with pytest.raises(heddle.UsageError):
        getattr(heddle, what)(host_share=str(tmp_path / "none"), **opts)


def test_memory_is_shared_over_a_directory(broker, adapter, tmp_path, numpy):
    """The environment of both may be two containers: nothing but the directory is used."""
    (tmp_path / "share").mkdir(mode=0o700)
    share = str(tmp_path / "share")
    with pytest.raises(heddle.UsageError):
        heddle.Worker(adapters=[adapter], own_memory=True, host_share=share)
    with heddle.Admin() as adm, \
            heddle.Worker(adapters=[adapter], apply="auto", name="shares", host_share=share), \
            heddle.Publisher(adapter=adapter, host_share=share) as pub:
        pub.publish_dir(FIXTURES / "plain").wait(timeout=60)
        until(lambda: [w for w in adm.workers("shares") if w.memory and w.memory.held_bytes], "it holds")
        worker, = adm.workers("shares")
        assert worker.transport.host_share == share and worker.transport.memory_why is None
        assert worker.memory.own_bytes == 0
    assert not list((tmp_path / "share").iterdir())


def test_broker_away(tmp_path, numpy):
    with pytest.raises(heddle.Unavailable) as e:
        heddle.Publisher("tcp://127.0.0.1:9", adapter="x", timeout=0.3)
    assert isinstance(e.value, ConnectionError) and e.value.retriable and "127.0.0.1:9" in str(e.value)
    with heddle.Admin("tcp://127.0.0.1:9", timeout=0.3) as adm, pytest.raises(heddle.Unavailable):
        adm.status()
    it = Broker(tmp_path, "--lease", "2s", listen=f"ipc://{tmp_path}/broker")
    with heddle.Publisher(it.endpoint, adapter="x") as pub, heddle.Worker(it.endpoint, ["x"], apply="auto",
                                                                          name="away") as w:
        pub.publish_tensors(tensors(numpy), CONFIG).wait(min=1, timeout=60)
        it.end(sign=9)
        with w.acquire("x") as a:
            assert a.version == 1, "broker down is not serving down"
        with pytest.raises((heddle.Unavailable, heddle.Deadline)):
            pub.publish_tensors(tensors(numpy, 2.0), CONFIG, deadline=1.0)
        again = Broker(tmp_path, "--lease", "2s", listen=f"ipc://{tmp_path}/broker")
        ver = until(lambda: _try(lambda: pub.publish_tensors(tensors(numpy, 3.0), CONFIG)),
                    "the broker is back")
        assert ver.version >= 2 and ver.wait(min=1, timeout=60).active_count == 1
    assert again.end() == 0


def _try(call):
    try:
        return call()
    except heddle.Unavailable:
        return None


def _hints():
    """Those of the library, and of a broker to its members, as the sources have them."""
    # of a program to who starts it
    daemon = ("sidecar", "main", "datadir", "store", "node_keys", "option")
    for room in ("client", "trainer_client", "worker", "transfer", "broker", "core", "wire"):
        for path in sorted((ROOT / room).rglob("*.c")):
            if not path.stem.startswith(daemon):
                for call in re.findall(r'error_hint\(((?:"(?:[^"\\]|\\.)*"|[^";])*);', path.read_text()):
                    hint = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call))
                    yield f"{room}/{path.name}", re.sub(r"%[.\d]*l*[us]", "7", hint)


def test_hints_speak_python():
    from heddle import _native
    told = dict(_hints())
    assert len(told) > 15
    for where, hint in _hints():
        # without commands, and what is the broker's own
        own = r"`[^`]*`|heddle keys add .*|--(data|keep|help|keys|store-[a-z]+)\b|with(out)? --insecure"
        said = re.sub(own, "", _native.spoken(hint))
        assert not re.search(r"--[a-z]|heddle_[a-z]|HEDDLE_PHASE", said), f"{where}: {said}"
        commands = [m.split("`")[0] for m in _native.spoken(hint).split("`heddle ")[1:]]
        stay = ("keygen", "keys", "invite", "context", "broker", "worker", "publish", "--version")
        assert all(c.startswith(stay) for c in commands), f"{where}: {commands}"
    for command, call in (("`heddle versions a@7`", '`Admin().versions("a@7")`'),
                          ("`heddle status` tells", "`Admin().status()` tells"),
                          ("`heddle wait --phase staged`", '`Admin().wait(..., phase="staged")`'),
                          ("`heddle versions`", "`Admin().versions(...)`"),
                          ("`heddle workers w1`", '`Admin().workers("w1")`')):
        assert _native.spoken(command) == call
    assert "Publisher(takeover=True)" in _native.spoken("opts.takeover ends it now")
    unheld = next(hint for _, hint in _hints() if "before closing" in hint)
    assert unheld.startswith("wait for phase staged") and "ver.wait(phase=" in _native.spoken(unheld)


def test_a_conflict_says_what_to_do_in_python(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub:
        with pytest.raises(heddle.Conflict) as e:
            heddle.Publisher(adapter=adapter)
        assert "Publisher(takeover=True)" in e.value.hint and "--" not in e.value.hint
        pub.publish_dir(FIXTURES / "plain", step=5)
        with pytest.raises(heddle.Conflict) as e:
            pub.publish_dir(FIXTURES / "dora", step=4)
        assert "allow_step_back=True" in e.value.hint and "--" not in e.value.hint


def test_errors_travel():
    e = heddle.Deadline("m", code="deadline", exit=5, adapter="a", version=3, worker="w", phase="fetch",
                        expected="x", found="y", hint="z", retriable=True)
    e.answer = {"k": 1}
    f = pickle.loads(pickle.dumps(e))
    assert type(f) is heddle.Deadline and str(f) == str(e) and vars(f) == vars(e) and f.answer == {"k": 1}
    for kind in (heddle.NotFound, heddle.Denied, heddle.Unavailable, heddle.Deadline, heddle.Fenced,
                 heddle.ForkError, heddle.Closed):
        assert str(pickle.loads(pickle.dumps(kind("text")))) == str(kind("text"))
    assert all(issubclass(getattr(heddle, name), heddle.HeddleError)
               for name in ("Fenced", "Held")) and issubclass(heddle.Held, heddle.Conflict)
