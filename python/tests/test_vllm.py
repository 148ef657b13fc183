# SPDX-License-Identifier: Apache-2.0
"""heddle.vllm without vLLM: the leader, the answers' header, what a rank keeps, and an engine without a
server.  tests/engines/inside.py runs them in a real one.
"""
from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from dataclasses import dataclass, field

import pytest

import heddle
import update_double
from conftest import PATIENCE
from heddle import _inside, _ranks
from heddle.vllm import answers, fit, leader, loading, offline, plugin, seams
from test_rank_link import slot_of


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


class LoRAAdapterNotFoundError(Exception):
    pass


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """Two modules of vLLM, of which the package is not here."""
    for name in ("vllm", "vllm.lora", "vllm.lora.request", "vllm.lora.worker_manager"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm.lora.request"].LoRARequest = LoRARequest
    sys.modules["vllm.lora.worker_manager"].LoRAAdapterNotFoundError = LoRAAdapterNotFoundError
    monkeypatch.setattr(_inside.leader, "LOOK_S", 0.001)


class Update(update_double.Update):
    def activate(self):
        self._play.named_at_activate = sorted(self._play.lora_requests)
        return super().activate()


class Engine:
    """vLLM's engine and names, the ranks, and Heddle's worker: each notes what it is asked for."""

    def __init__(self):
        self.log, self.wrong, self.is_wanted, self.faults = [], {}, True, []
        self.lora_requests, self._last = {}, 0
        self.lora_id_counter = self.output_processor = self
        self.request_states = {}
        self.hellos, self.lost = [{"rank": 0, "pid": 1}], None
        self.is_over, self.gate, self.left, self.ends, self.has_session = False, None, False, 0, True
        self.lora_resolvers, self.cluster = [], update_double.Cluster()

    def _why_foreign(self, found):
        return heddle.BadAdapter("no", code="unsupported_feature") if found.features else None

    def inc(self, by):
        self._last += by
        return self._last

    async def add_lora(self, request):
        self._do("add_lora", request.lora_name)

    async def remove_lora(self, number):
        self._do("remove_lora", number)

    async def add_request(self, request_id, prompt, params, arrival_time, lora_request, priority=0):
        self.log.append(("add_request", request_id, lora_request, priority))
        if self.gate is not None:
            await self.gate.wait()              # a prompt is tokenized
        self.request_states[request_id] = types.SimpleNamespace(lora_request=lora_request)

    def stage(self, tag, slot, *, name, id):
        self._do("STAGE", tag, slot, name, id)

    def commit(self, tag):
        self._do("COMMIT", tag)

    def drop(self, tag):
        self._do("DROP", tag)

    def _do(self, *what):
        self.log.append(what)
        if what[0] in self.wrong:
            raise self.wrong[what[0]]

    async def updates_of(self, queue):
        while (update := await queue.get()) is not None:
            yield update

    def updates(self):
        return self.updates_of(self.queue)

    def stats(self):
        return {"joined": {"token": 1} if self.has_session else None}

    def end(self):                              # of the server
        self.ends += 1

    def close(self):                            # of the ranks, and then of the worker
        self.is_over = True


def play(story):
    """`await story(engine, leader, say)`: say("arrived", 1) is an update of policy@1, answered when it
    returns.
    """
    async def run():
        engine = Engine()
        engine.queue = asyncio.Queue()
        made = leader.Leader(engine, engine, engine, ["policy"], lambda: engine, places=4,
                             open_admin=lambda: engine.cluster)
        await made.start(engine.end)
        asyncio.get_running_loop().set_exception_handler(lambda _, what: engine.faults.append(what))

        async def say(phase, version, digest="abc"):
            update = Update(engine, phase, version, digest)
            engine.queue.put_nowait(update)
            await until(lambda: update.answered and engine.queue.empty())
            return update
        await story(engine, made, say)
        await made.stop()
        assert engine.is_over and not made._tasks and not engine.faults
    asyncio.run(asyncio.wait_for(run(), PATIENCE))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def active(say, version):
    await say("arrived", version)
    await say("commit", version)


def test_a_version_is_served_when_the_engine_has_it():
    async def story(engine, made, say):
        assert not made.is_ready
        await active(say, 1)
        assert engine.log == [("STAGE", "policy@1:abc", "memory of 1", "policy@1", 1), ("staged", 1),
                              ("COMMIT", "policy@1:abc"), ("add_lora", "policy@1"), ("activate", 1)]
        assert engine.named_at_activate == ["policy", "policy@1"]
        assert engine.lora_requests["policy"].lora_name == "policy@1" and made.is_ready
        await say("arrived", 2)
        assert engine.lora_requests["policy"].lora_name == "policy@1"
        assert "policy@2" not in engine.lora_requests
        (told,) = made.status()["adapters"]
        assert told == {"name": "policy", "active": "policy@1:abc", "served": ["policy@1:abc"],
                        "staged": ["policy@2:abc"], "leaving": [], "fetched": []}
    play(story)


def test_a_version_of_another_cluster_is_not_taken_for_the_one_of_its_name():
    async def story(engine, made, say):
        await active(say, 1)
        for phase, words in (("arrived", "policy@1:abc has that name"), ("commit", "is not staged here")):
            await say(phase, 1, "def")
            assert engine.log[-1][0] == "reject" and words in engine.log[-1][1]
        assert made.status()["adapters"][0]["active"] == "policy@1:abc"
        assert sum(entry[0] in ("STAGE", "COMMIT") for entry in engine.log) == 2
    play(story)


@pytest.mark.parametrize("what, error, words", [
    ("STAGE", _ranks.Refused("rank 1: too large"), "rank 1: too large"),
    ("STAGE", heddle.HeddleError("no memory", code="no_memory"), "no memory [no_memory]")])
def test_what_a_rank_refuses_is_rejected_in_its_words(what, error, words):
    async def story(engine, made, say):
        await active(say, 1)
        engine.wrong = {what: error}
        await say("arrived", 2)
        assert engine.log[-1] == ("reject", words, 2)
        await say("commit", 2)
        assert engine.log[-1][0] == "reject" and "not staged" in engine.log[-1][1]
        engine.wrong = {}
        await active(say, 3)
        assert engine.lora_requests["policy"].lora_name == "policy@3"
        assert "policy@2" not in engine.lora_requests
    play(story)


@pytest.mark.parametrize("what", ["COMMIT", "add_lora"])
def test_a_switch_that_fails_leaves_the_one_before(what):
    async def story(engine, made, say):
        await active(say, 1)
        await say("arrived", 2)
        engine.wrong = {what: RuntimeError("out of places")}
        await say("commit", 2)
        assert engine.log[-1] == ("reject", "out of places", 2)
        assert sorted(engine.lora_requests) == ["policy", "policy@1"]
        assert engine.lora_requests["policy"].lora_name == "policy@1"
    play(story)


@pytest.mark.parametrize("before", [[], ["policy", "policy@1"]])
def test_a_decision_that_does_not_hold_any_more_changes_no_name(before):
    async def story(engine, made, say):
        if before:
            await active(say, 1)
        await say("arrived", 2)
        engine.is_wanted = False
        await say("commit", 2)
        assert sorted(engine.lora_requests) == before and made.is_ready is bool(before)
        engine.is_wanted = True
        await say("commit", 2)                  # what was loaded stays for this
        assert engine.lora_requests["policy"].lora_name == "policy@2"
        assert sum(entry[0] == "STAGE" for entry in engine.log) == (2 if before else 1)
    play(story)


def leave(engine, version, number):
    return [("remove_lora", number), ("DROP", f"policy@{version}:abc")] == engine.log[-2:]


@pytest.mark.parametrize("how", ["looked up", "in the engine", "by path"])
def test_a_retired_version_stays_while_it_is_used(how):
    async def story(engine, made, say):
        await active(say, 1)
        request, use = engine.lora_requests["policy@1"], answers.Use()
        if how == "looked up":
            token = _inside.answers._use.set(use)
            assert engine.lora_requests["policy@1"] is request
            _inside.answers._use.reset(token)
        elif how == "in the engine":
            engine.request_states[5] = types.SimpleNamespace(lora_request=None)     # of the base model
            engine.request_states[6] = types.SimpleNamespace(lora_request=request)
        else:
            engine.lora_requests["mine"] = LoRARequest("mine", 9, request.lora_path)
        await active(say, 2)
        await say("retired", 1)
        await say("retired", 1)
        before = list(engine.log)
        await asyncio.sleep(0.02)
        assert "policy@1" not in engine.lora_requests, "a new request does not find it"
        assert engine.log == before, "and what uses it goes on"
        assert made.status()["adapters"][0]["leaving"] == ["policy@1:abc"]
        use.end()
        engine.request_states.clear()
        engine.lora_requests.pop("mine", None)
        await until(lambda: leave(engine, 1, 1))
        assert made.status()["adapters"][0]["leaving"] == [] and not engine.faults
    play(story)


def test_the_active_version_stays_until_another_one_is():
    async def story(engine, made, say):
        await active(say, 1)
        await say("retired", 1)
        await say("arrived", 2)
        assert sorted(engine.lora_requests) == ["policy", "policy@1"]
        await say("commit", 2)
        await until(lambda: leave(engine, 1, 1))
        assert sorted(engine.lora_requests) == ["policy", "policy@2"]
    play(story)


@pytest.mark.parametrize("comes", [("arrived", "commit"), ("commit",)])
def test_a_version_may_come_back_while_it_leaves(comes):
    async def story(engine, made, say):
        await active(say, 1)
        await active(say, 2)
        engine.request_states[5] = types.SimpleNamespace(lora_request=engine.lora_requests["policy@1"])
        await say("retired", 1)
        for phase in comes:
            await say(phase, 1)
        engine.request_states.clear()
        await asyncio.sleep(0.02)
        assert not [entry for entry in engine.log if entry[0] in ("DROP", "remove_lora")]
        assert engine.lora_requests["policy"].lora_name == "policy@1"
        assert sum(entry[0] == "STAGE" for entry in engine.log) == 2, "the ranks have it"
        await active(say, 3)
        assert "policy@1" in engine.lora_requests, "it is kept, as any other"
    play(story)


def test_a_request_for_a_version_that_is_gone_is_an_error_of_that_request():
    async def story(engine, made, say):
        await active(say, 1)
        stale = engine.lora_requests["policy@1"]
        await engine.add_request("a", "text", 5, lora_request=stale, priority=3)
        assert engine.log[-1] == ("add_request", "a", stale, 3)
        await active(say, 2)
        await say("retired", 1)
        await engine.add_request("b", "text", 5, lora_request=stale)   # it leaves, and is there for the other
        engine.request_states.clear()
        await until(lambda: leave(engine, 1, 1))
        before = list(engine.log)
        for request in (stale, LoRARequest("mine", 5, "heddle://policy"),
                        LoRARequest("x", 2, "heddle://x@1")):
            with pytest.raises(LoRAAdapterNotFoundError):
                await engine.add_request("c", "text", 5, lora_request=request)
        await active(say, 1)
        with pytest.raises(LoRAAdapterNotFoundError):   # of the number that it had
            await engine.add_request("c", "text", 5, lora_request=stale)
        assert "add_request" not in [entry[0] for entry in engine.log[len(before):]]
        for request in (None, LoRARequest("other", 9, "/a/folder")):
            await engine.add_request("d", "text", 5, lora_request=request)
            assert engine.log[-1] == ("add_request", "d", request, 0)
        engine.request_states.clear()
    play(story)


def test_a_version_does_not_leave_while_the_engine_takes_a_request():
    async def story(engine, made, say):
        await active(say, 1)
        await active(say, 2)
        engine.gate = asyncio.Event()
        adding = asyncio.create_task(engine.add_request("a", "text", 5,
                                                        lora_request=engine.lora_requests["policy@1"]))
        await until(lambda: engine.log[-1][0] == "add_request")
        await say("retired", 1)
        await asyncio.sleep(0.02)
        assert engine.log[-1][0] == "add_request"
        engine.gate.set()
        await adding
        await asyncio.sleep(0.02)
        assert engine.log[-1][0] == "add_request" and made.status()["requests"]["policy@1:abc"] == 0
        engine.request_states.clear()
        await until(lambda: leave(engine, 1, 1))
    play(story)


def test_a_version_that_left_may_come_again():
    async def story(engine, made, say):
        await active(say, 1)
        await active(say, 2)
        await say("retired", 1)
        await until(lambda: leave(engine, 1, 1))
        await active(say, 1)
        assert engine.lora_requests["policy@1"].lora_int_id == 3, "under another number: one for one load"
    play(story)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_staged_version_that_fails_goes(wanted):
    async def story(engine, made, say):
        await active(say, 1)
        engine.is_wanted = wanted               # False: overtaken before it was staged here
        await say("arrived", 2)
        if wanted:
            await say("failed", 2)
        await until(lambda: leave(engine, 2, 2))
        await say("failed", 7)                  # of which nothing came here
        assert sorted(engine.lora_requests) == ["policy", "policy@1"]
        assert sum(entry[0] == "DROP" for entry in engine.log) == 1
    play(story)


async def load(engine, name, path, in_place=False):
    """What vLLM does with /v1/load_lora_adapter."""
    number = engine.lora_requests[name].lora_int_id if in_place and name in engine.lora_requests \
        else engine.inc(1)
    request = LoRARequest(name, number, path, in_place)
    await engine.add_lora(request)
    engine.lora_requests[name] = request


def test_a_clients_name_stands_for_the_version_that_its_path_said():
    async def story(engine, made, say):
        await active(say, 1)
        await load(engine, "mine", "heddle://policy@1")
        await load(engine, "newest", "heddle://policy")
        assert engine.lora_requests["mine"] is engine.lora_requests["newest"] \
            is engine.lora_requests["policy@1"]
        await active(say, 2)
        assert engine.lora_requests["newest"].lora_name == "policy@1", "it moves when the client says so"
        await load(engine, "newest", "heddle://policy", in_place=True)
        assert engine.lora_requests["newest"] is engine.lora_requests["policy@2"]
        assert engine.log[-1] == ("add_lora", "policy@2"), "no copy of it, and none in place of another"
        assert not engine.lora_requests["newest"].load_inplace
        await load(engine, "policy", "heddle://policy", in_place=True)      # what it is already
        await load(engine, "policy@1", "heddle://policy@1", in_place=True)
        assert engine.lora_requests["policy@1"].lora_name == "policy@1"
    play(story)


@pytest.mark.parametrize("name, path, words", [
    ("yours", "heddle://policy@9", "heddle://policy@9"), ("yours", "heddle://other", "heddle://other"),
    ("yours", "heddle://policy@2", "heddle://policy@2"),                    # staged: not decided
    ("mine", "/a/folder", "mine is a name for policy@1:abc"), ("policy", "/a/folder", "Heddle gives"),
    ("policy@2", "/a/folder", "Heddle gives"), ("policy@1", "/a/folder", "Heddle gives"),
    ("policy@7", "heddle://policy@1", "Heddle gives"), ("policy", "heddle://policy@1", None)])
def test_a_clients_load_that_would_change_a_version_is_refused(name, path, words):
    async def story(engine, made, say):
        await active(say, 1)
        await load(engine, "mine", "heddle://policy@1")
        await say("arrived", 2)
        before, names = list(engine.log), dict(engine.lora_requests)
        if words is None:
            await load(engine, name, path, in_place=True)
        else:
            with pytest.raises((LoRAAdapterNotFoundError, ValueError), match=words):
                await load(engine, name, path, in_place=True)
            assert engine.log == before
        assert dict(engine.lora_requests) == names
    play(story)


@pytest.mark.parametrize("name", ["policy", "policy@1", "policy@2"])
def test_a_client_unloads_no_name_that_heddle_gives(name, fastapi):
    """`del` is what vLLM does with /v1/unload_lora_adapter."""
    async def story(engine, made, say):
        await active(say, 1)
        await active(say, 2)
        await load(engine, "mine", "heddle://policy@1")
        await load(engine, "yours", "/a/folder")
        names = dict(engine.lora_requests)
        with pytest.raises(sys.modules["fastapi"].HTTPException, match="Heddle gives") as told:
            del engine.lora_requests[name]
        assert told.value.status_code == 400 and dict(engine.lora_requests) == names
        for own in ("mine", "yours"):
            del engine.lora_requests[own]
        assert sorted(engine.lora_requests) == ["policy", "policy@1", "policy@2"]
        with pytest.raises(KeyError):
            del engine.lora_requests["mine"]
    play(story)


def test_other_paths_are_loaded_as_ever():
    async def story(engine, made, say):
        await active(say, 1)
        await load(engine, "yours", "policy")
        assert engine.log[-1] == ("add_lora", "yours")
        assert engine.lora_requests["yours"].lora_path == "policy"
        await say("retired", 1)
        await active(say, 2)
        await until(lambda: leave(engine, 1, 1))
        with pytest.raises(LookupError, match="went while"):
            engine.lora_requests["mine"] = LoRARequest("mine", 9, "heddle://policy@1")
    play(story)


async def ask(engine, name):
    """What vLLM does with a request's name: the request, or the status of the error."""
    if name not in engine.lora_requests:
        (resolver,) = engine.lora_resolvers
        try:
            request = await resolver.resolve_lora("base", name)
        except Exception as e:
            return e.status_code
        if request is None:
            return 404
        request.lora_int_id = engine.inc(1)
        await engine.add_lora(request)
        engine.lora_requests[name] = request
    return engine.lora_requests[name]


@pytest.fixture
def fastapi(monkeypatch):
    class HTTPException(Exception):
        def __init__(self, status_code, detail):
            super().__init__(detail)
            self.status_code = status_code
    module = types.ModuleType("fastapi")
    module.HTTPException = HTTPException
    monkeypatch.setitem(sys.modules, "fastapi", module)


def test_a_kept_version_is_fetched_at_its_first_request():
    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states = {7: "kept"}
        engine.cluster.gate = asyncio.Event()
        asking = [asyncio.create_task(ask(engine, "policy@7")) for _ in range(3)]
        await until(lambda: ("fetch", "policy@7:abc") in engine.cluster.log)
        asking.pop().cancel()                   # its client hangs up
        await active(say, 10)                   # nothing waits for it
        engine.cluster.gate.set()
        one, two = await asyncio.gather(*asking)
        assert one is two is engine.lora_requests["policy@7"] and one.lora_name == "policy@7"
        assert one.lora_path == "heddle://policy@7"
        staged = [entry for entry in engine.log if "policy@7:abc" in entry]
        assert staged == [("STAGE", "policy@7:abc", "memory of 7", "policy@7", one.lora_int_id),
                          ("COMMIT", "policy@7:abc")], "once"
        assert engine.lora_requests["policy"].lora_name == "policy@10"
        (told,) = made.status()["adapters"]
        assert told["fetched"] == ["policy@7:abc"] and told["active"] == "policy@10:abc"
        assert told["served"] == ["policy@7:abc", "policy@9:abc", "policy@10:abc"]
        assert [what for what, _ in engine.cluster.log].count("fetch") == 1
        await load(engine, "mine", "heddle://policy@7")
        assert engine.lora_requests["mine"] is one
    play(story)


def test_a_clients_path_is_fetched_too():
    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states = {7: "active"}
        await load(engine, "mine", "heddle://policy@7")
        assert engine.lora_requests["mine"].lora_name == "policy@7"
        assert engine.lora_requests["mine"] is engine.lora_requests["policy@7"]
    play(story)


@pytest.mark.parametrize("name, why, status", [
    ("policy@7", "staged", 404), ("policy@7", "retired", 404), ("policy@8", None, 404),
    ("policy@7", heddle.Unavailable("no broker", code="unavailable"), 503), ("other@7", "kept", 404),
    ("policy@07", "kept", 404), ("policy@x", "kept", 404), ("policy@", "kept", 404), ("a text", "kept", 404),
    ("policy@7:abc", "kept", 404), ("policy@" + "1" * 20, "kept", 404)])
def test_what_is_not_kept_is_not_found(name, why, status, fastapi):
    async def story(engine, made, say):
        await active(say, 9)
        if isinstance(why, Exception):
            engine.cluster.wrong = why
        elif why is not None:
            engine.cluster.states = {7: why}
        before = list(engine.log)
        assert await ask(engine, name) == status
        assert engine.log == before and "fetch" not in [what for what, _ in engine.cluster.log]
        assert sorted(engine.lora_requests) == ["policy", "policy@9"]
    play(story)


@pytest.mark.parametrize("wrong, gone", [("STAGE", False), ("COMMIT", True), ("add_lora", True),
                                         ("features", None)])
def test_what_the_engine_refuses_is_not_kept_here(wrong, gone, fastapi):
    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states = {7: "kept"}
        before = list(engine.log)
        if wrong == "features":
            engine.cluster.features = ("dora",)
        else:
            engine.wrong = {wrong: RuntimeError("too large")}
        assert await ask(engine, "policy@7") == 400
        assert sorted(engine.lora_requests) == ["policy", "policy@9"]
        assert (("DROP", "policy@7:abc") in engine.log) is bool(gone)
        assert gone is not None or engine.log == before
        engine.wrong, engine.cluster.features = {}, ()
        assert (await ask(engine, "policy@7")).lora_name == "policy@7"
    play(story)


def test_a_fetched_version_gives_its_place_to_another_when_no_request_uses_it(monkeypatch, fastapi):
    """Two places beside those of the active version and the one before."""
    monkeypatch.setattr(_inside.leader, "IDLE_S", 0.05)

    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states = dict.fromkeys((1, 2, 3, 4), "kept")
        for version in (1, 2):
            await ask(engine, f"policy@{version}")
        assert await ask(engine, "policy@3") == 503, "both were used a moment ago"
        engine.request_states[5] = types.SimpleNamespace(lora_request=engine.lora_requests["policy@1"])
        await asyncio.sleep(0.06)
        assert (await ask(engine, "policy@3")).lora_name == "policy@3"
        assert sorted(engine.lora_requests) == ["policy", "policy@1", "policy@3", "policy@9"]
        assert ("DROP", "policy@2:abc") in engine.log
        engine.lora_requests["mine"] = LoRARequest("mine", 9, "heddle://policy@3")
        await asyncio.sleep(0.06)
        assert await ask(engine, "policy@4") == 503, "one is in the engine, and one has a client's name"
        engine.request_states.clear()
        await asyncio.sleep(0.06)
        assert (await ask(engine, "policy@4")).lora_name == "policy@4"
        assert "policy@1" not in engine.lora_requests
    play(story)


@pytest.mark.parametrize("why", ["retired", "away"])
def test_a_fetched_version_goes_when_it_is_kept_no_longer(why, monkeypatch):
    monkeypatch.setattr(_inside.leader, "WATCH_S", 0.01)

    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states = {7: "kept"}
        await ask(engine, "policy@7")
        if why == "away":
            engine.cluster.wrong = heddle.Unavailable("no broker", code="unavailable")
            asked = len(engine.cluster.log)
            await until(lambda: len(engine.cluster.log) > asked + 2)
            assert "policy@7" in engine.lora_requests
            engine.cluster.wrong = None
        engine.cluster.states = {7: "retired"}
        await until(lambda: ("DROP", "policy@7:abc") in engine.log)
        assert sorted(engine.lora_requests) == ["policy", "policy@9"]
        await until(lambda: not made._is_watching)
        engine.cluster.states = {7: "kept"}
        assert (await ask(engine, "policy@7")).lora_name == "policy@7"
        assert made._is_watching
    play(story)


def test_a_fetched_version_that_becomes_active_is_as_any_other():
    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states = {7: "kept"}
        await ask(engine, "policy@7")
        await active(say, 7)
        assert sum("policy@7:abc" in entry and entry[0] == "STAGE" for entry in engine.log) == 1
        assert engine.lora_requests["policy"].lora_name == "policy@7"
        assert made.status()["adapters"][0]["fetched"] == []
        await active(say, 9)
        await say("retired", 7)
        await until(lambda: ("DROP", "policy@7:abc") in engine.log)
        assert sorted(engine.lora_requests) == ["policy", "policy@9"]
    play(story)


def test_only_so_many_versions_are_fetched_at_a_time(monkeypatch, fastapi):
    monkeypatch.setattr(_inside.kept, "FETCHES_MAX", 1)

    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states, engine.cluster.gate = {1: "kept", 2: "kept"}, asyncio.Event()
        asking = asyncio.create_task(ask(engine, "policy@1"))
        await until(lambda: ("fetch", "policy@1:abc") in engine.cluster.log)
        assert await ask(engine, "policy@2") == 503
        engine.cluster.gate.set()
        await asking
        assert (await ask(engine, "policy@2")).lora_name == "policy@2"
    play(story)


def test_the_end_does_not_wait_for_a_fetch():
    async def story(engine, made, say):
        await active(say, 9)
        engine.cluster.states, engine.cluster.gate = {1: "kept"}, asyncio.Event()
        asking = asyncio.create_task(ask(engine, "policy@1"))
        await until(lambda: ("fetch", "policy@1:abc") in engine.cluster.log)
        await made.stop()
        assert engine.cluster.is_closed
        with pytest.raises(asyncio.CancelledError):
            await asking
    play(story)


def test_a_worker_that_cannot_open_leaves_nothing():
    async def run():
        engine = Engine()
        names = engine.lora_requests
        made = leader.Leader(engine, engine, engine, ["policy"], lambda: engine._do("open"))
        engine.wrong = {"open": heddle.HeddleError("no UCX")}
        with pytest.raises(heddle.HeddleError, match="no UCX"):
            await made.start(engine.end)
        assert engine.is_over and engine.lora_requests is names
    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() == before


def test_a_worker_that_ends_is_in_the_status():
    async def story(engine, made, say):
        await active(say, 1)

        async def refused():
            raise heddle.Denied("the key was taken back")
            yield
        assert made.status()["error"] is None
        await made._follow(types.SimpleNamespace(updates=refused), engine.end)
        assert "the key was taken back" in made.status()["error"] and engine.ends == 0
    play(story)


def test_a_version_that_the_engine_fails_to_load_is_not_left_half_there():
    async def story(engine, made, say):
        engine.wrong["add_lora"] = RuntimeError("out of memory")
        await say("arrived", 1)
        engine.log.clear()
        await say("commit", 1)
        assert [what[0] for what in engine.log] == ["COMMIT", "add_lora", "remove_lora", "reject"]
        assert made.status()["adapters"][0]["active"] is None
        del engine.wrong["add_lora"]
        await say("commit", 1)
        assert made.status()["adapters"][0]["active"] == "policy@1:abc"
    play(story)


def test_the_active_version_of_which_no_request_comes_is_not_in_use():
    async def story(engine, made, say):
        await active(say, 1)
        version = made._versions["policy@1"]
        assert not made._is_used(version), "`policy` and `policy@1` are names that Heddle gives"
        engine.lora_requests["mine"] = version.request
        assert made._is_used(version)
    play(story)


def test_the_log_of_a_drained_server_does_not_say_that_the_broker_is_away(caplog, monkeypatch):
    monkeypatch.setattr(_inside.leader, "SESSION_S", 0.001)
    monkeypatch.setattr(_inside.leader, "AWAY_S", 0.005)

    async def story(engine, made, say):
        await active(say, 1)
        made._versions["policy@1"].uses = 1
        engine.left, engine.has_session = True, False
        engine.queue.put_nowait(None)
        await until(lambda: made.has_left)
        # the two that tidy and end go on; the one that watches ends
        await until(lambda: len(made._tasks) == 2 or "no session" in caplog.text)
        assert "no session" not in caplog.text
        made._versions["policy@1"].uses = 0
        await until(lambda: engine.ends)
    play(story)


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_server_whose_worker_was_drained_ends_when_no_request_uses_a_version(is_busy, caplog, monkeypatch):
    if is_busy:                                 # for ever, too
        monkeypatch.setattr(_inside.leader, "END_S", 0.05)

    async def story(engine, made, say):
        await active(say, 1)
        made._versions["policy@1"].uses = 1
        engine.left = True
        engine.queue.put_nowait(None)           # updates() ends
        await until(lambda: made.has_left)
        told = made.status()
        assert not told["ready"] and "was drained" in told["error"], "a balancer sends no more"
        assert told["adapters"][0]["active"] == "policy@1:abc", "what is here is served"
        if not is_busy:
            await asyncio.sleep(0.02)
            assert engine.ends == 0
            made._versions["policy@1"].uses = 0
        await until(lambda: engine.ends)
        assert engine.ends == 1 and "this server ends" in caplog.text
    play(story)


def test_the_log_says_that_the_broker_is_away_and_that_it_is_back(caplog, monkeypatch):
    monkeypatch.setattr(_inside.leader, "SESSION_S", 0.001)
    monkeypatch.setattr(_inside.leader, "AWAY_S", 0.005)

    async def story(engine, made, say):
        await active(say, 1)
        engine.has_session = False
        await until(lambda: "no session with the broker" in caplog.text)
        assert not made.status()["joined"] and made.is_ready
        engine.has_session = True
        await until(lambda: "session with the broker again" in caplog.text)
    play(story)
    assert len(caplog.messages) == 2


def test_a_worker_that_is_closed_ends_no_server():
    async def story(engine, made, say):
        engine.queue.put_nowait(None)
        await until(lambda: len(made._tasks) == 1)      # the one that tidies
        assert engine.ends == 0 and made.status()["error"] is None
    play(story)


# -- the header ----------------------------------------------------------------------------------------------

@dataclass
class Version:
    tag: str
    uses: int = 0


@dataclass
class Server:
    """An application behind the middleware, which looks names up and answers."""

    names: tuple[str, ...]
    fails: bool = False
    stopped: int = 0
    sent: list = field(default_factory=list)

    def __post_init__(self):
        self.versions = {f"heddle://policy@{n}": Version(f"policy@{n}:abc") for n in (1, 2)}
        paths = {"policy@1": "heddle://policy@1", "policy@2": "heddle://policy@2", "other": "/a/folder"}
        self.requests = answers.Requests({name: LoRARequest(name, 1, path) for name, path in paths.items()},
                                         self.versions.get)

    async def app(self, scope, receive, send):
        async def handle():                     # vLLM's handlers run in a task of their own
            for name in self.names:
                assert self.requests[name].lora_name == name
        await asyncio.create_task(handle())
        self.during = [v.uses for v in self.versions.values()]
        if self.fails:
            raise RuntimeError("the handler")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        self.in_stream = [v.uses for v in self.versions.values()]
        await send({"type": "http.response.body", "body": b"2"})

    async def stop(self):
        self.stopped += 1

    def ask(self, kind="http"):
        async def send(message):
            self.sent.append(message)
        asyncio.run(answers.Middleware(self.app, self.stop)({"type": kind}, None, send))
        return dict(self.sent[0]["headers"])


@pytest.mark.parametrize("names, tag, uses", [
    (("policy@2",), b"policy@2:abc", [0, 1]), (("policy@1", "policy@2"), b"policy@2:abc", [0, 1]),
    (("policy@1", "policy@1"), b"policy@1:abc", [1, 0]), (("other",), None, [0, 0]), ((), None, [0, 0])])
def test_an_answer_says_which_version_it_is_of(names, tag, uses):
    server = Server(names)
    headers = server.ask()
    assert headers.pop(b"a") == b"b" and headers == ({answers.HEADER: tag} if tag else {})
    assert server.during == uses and server.in_stream == uses
    assert [v.uses for v in server.versions.values()] == [0, 0] and server.stopped == 0


def test_a_version_is_not_used_by_a_request_that_failed():
    server = Server(("policy@1",), fails=True)
    with pytest.raises(RuntimeError):
        server.ask()
    assert server.during == [1, 0] and [v.uses for v in server.versions.values()] == [0, 0]


def test_the_leader_ends_with_the_server():
    server = Server(("policy@1",))
    assert server.ask("lifespan") == {b"a": b"b"} and server.stopped == 1
    assert server.ask("websocket") == {b"a": b"b"} and server.stopped == 1


# -- a rank --------------------------------------------------------------------------------------------------

@dataclass
class Places:
    capacity: int
    pinned_items: set = field(default_factory=set)


class Manager:
    """vLLM's, of one rank: notes what it is asked for."""

    def __init__(self, *modules):
        self._adapter_manager = self
        self.modules = {str(n): module for n, module in enumerate(modules)}
        self.merged, self.wrong, self.loras = [], None, {}
        self._active_adapters, self._registered_adapters = Places(2), Places(3)

    def load(self, request):
        if self.wrong:
            raise self.wrong
        return types.SimpleNamespace(id=request.lora_int_id, loras=self.loras)

    def _get_lora_layer_weights(self, model, name):
        return model.loras.get(name)

    def _create_merged_loras_inplace(self, model):
        self.merged.append(model.id)


class FusedMoEWithLoRA:
    pass


def shaped(*shape):
    return types.SimpleNamespace(shape=shape)


def weights(a, b):
    """Of one module, or of several that vLLM has in one: lists, with None for a module without LoRA."""
    halves = ([None if one is None else shaped(*one) for one in half] if isinstance(half, list)
              else half and shaped(*half) for half in (a, b))
    return types.SimpleNamespace(**dict(zip(("lora_a", "lora_b"), halves, strict=True)))


class Linear:
    """vLLM's layer with LoRA, in the last of so many ranks: takes rank 64 at most.  `ids`: which part of each
    of its modules is this rank's."""

    def __init__(self, columns, *rows, ranks=1, cuts="", ids=None):
        self.tp_size, self.tp_rank, self.n_slices, self._cuts = ranks, ranks - 1, len(rows), cuts
        self.lora_a_stacked = tuple(shaped(2, 1, 64, columns) for _ in rows)
        self.lora_b_stacked = tuple(shaped(2, 1, n, 64) for n in rows)
        if len(rows) > 1:
            self.output_ids = ids or (ranks - 1,) * len(rows)

    def slice_lora_a(self, a):
        size = self.lora_a_stacked[0].shape[3]
        return shaped(a.shape[0], max(0, a.shape[1] - size)) if self._cuts == "a" else a

    def slice_lora_b(self, b):
        if isinstance(b, list):
            return [one and shaped(place.shape[2], one.shape[1])
                    for one, place in zip(b, self.lora_b_stacked, strict=True)]
        size = self.lora_b_stacked[0].shape[2]
        return shaped(max(0, b.shape[0] - size), b.shape[1]) if self._cuts == "b" else b

    def expand_packed_lora(self, a, b):
        return [a[0], a[0], a[1]], [shaped(128, b[0].shape[1]), shaped(64, b[0].shape[1]), b[1]]


class QKVInOne(Linear):
    q_proj_total_size, kv_proj_total_size = 128, 32


EMBEDDINGS = types.SimpleNamespace(lora_a_stacked=shaped(2, 512, 64), lora_b_stacked=shaped(2, 1, 128, 64))
HEAD = types.SimpleNamespace(lora_a_stacked=shaped(2, 1, 64, 128), lora_b_stacked=shaped(2, 1, 512, 64))
QKV = Linear(128, 128, 64, 64)
SHARED = Linear(128, 64, 32, 32, ranks=2, ids=(1, 0, 0))    # both ranks have the one head of k and v
FITS = [(Linear(128, 256), (8, 128), (256, 8)), (Linear(128, 256), (64, 128), (256, 64)),
        (QKV, [(8, 128), (4, 128), None], [(128, 8), (64, 4), None]),
        (QKV, [(8, 128), (8, 128)], [(192, 8), (64, 8)]),
        (Linear(64, 128, ranks=2, cuts="a"), (8, 128), (128, 8)),
        (Linear(128, 64, ranks=2, cuts="b"), (8, 128), (128, 8)),
        (Linear(128, 64, ranks=2), (8, 128), (64, 8)),
        (SHARED, [(8, 128)] * 3, [(128, 8), (32, 8), (32, 8)]),
        (QKVInOne(128, 128, ranks=2, cuts="b"), (8, 128), (192, 8)),
        (EMBEDDINGS, (8, 512), (128, 8)), (HEAD, (8, 128), (512, 8))]


@pytest.mark.parametrize("module, a, b", FITS)
def test_what_has_the_sizes_of_the_model_fits(module, a, b):
    fit.check("m", module, weights(a, b))


@pytest.mark.parametrize("module, a, b, words", [
    (Linear(128, 256), (8, 64), (256, 8), "m, lora_A: it is of 64, and this model takes 128$"),
    (Linear(128, 256), (8, 256), (256, 8), "m, lora_A: it is of 256, and"),
    (Linear(128, 256), (8, 128), (128, 8), "m, lora_B: it is of 128, and this model takes 256$"),
    (Linear(128, 256), (8, 128), (512, 8), "m, lora_B: it is of 512, and"),
    (Linear(128, 256), (65, 128), (256, 65), "m is of rank 65, and this server takes 64 at most"),
    (QKV, [(8, 128), (65, 128), None], [(128, 8), (64, 65), None], "m is of rank 65"),
    (HEAD, (65, 128), (512, 65), "m is of rank 65"), (EMBEDDINGS, (65, 512), (128, 65), "m is of rank 65"),
    (QKV, [(8, 128), None, None], [(64, 8), None, None], "m, lora_B: it is of 64"),
    (QKV, [(8, 128), (8, 128), (8, 64)], [(128, 8), (64, 8), (64, 8)], "m, lora_A: it is of 64"),
    (Linear(64, 128, ranks=2, cuts="a"), (8, 64), (128, 8), "m, lora_A: it is of 64, and .* takes 128"),
    (Linear(64, 128, ranks=2, cuts="a"), (8, 256), (128, 8), "m, lora_A: it is of 256, and .* takes 128"),
    (SHARED, [(8, 128)] * 3, [(128, 8), (64, 8), (64, 8)], "m, lora_B: it is of 64, and this model takes 32"),
    (SHARED, [(8, 128)] * 3, [(64, 8), (32, 8), (32, 8)], "m, lora_B: it is of 64, and this model takes 128"),
    (QKVInOne(128, 128, ranks=2, cuts="b"), (8, 128), (256, 8), "m, lora_B: it is of 256, and .* takes 192"),
    (Linear(128, 64, ranks=2, cuts="b"), (8, 128), (256, 8), "m, lora_B: it is of 256"),
    (Linear(128, 64, ranks=2), (8, 128), (192, 8), "m, lora_B: it is of 192"),
    (EMBEDDINGS, (8, 256), (128, 8), "m, lora_A: it is of 256"),
    (EMBEDDINGS, (8, 512), (64, 8), "m, lora_B: it is of 64"),
    (HEAD, (8, 64), (512, 8), "m, lora_A: it is of 64"),
    (HEAD, (8, 128), (256, 8), "m, lora_B: it is of 256")])
def test_what_has_other_sizes_than_the_model_is_refused(module, a, b, words):
    with pytest.raises(fit.Unfit, match=words):
        fit.check("m", module, weights(a, b))


def test_a_rank_that_is_not_the_last_leaves_it_to_that_one():
    first = Linear(128, 64, 32, 32, ranks=2, ids=(0, 0, 0))
    first.tp_rank = 0
    fit.check("m", first, weights([(8, 128)] * 3, [(64, 8), (32, 8), (32, 8)]))


@pytest.mark.parametrize("of", ["{}.lora_{}.weight", "{}.lora_embedding_{}", "base_model.{}.lora_{}"])
def test_a_module_has_both_halves_of_one_rank(of):
    a, b, name = of.format("m", "A"), of.format("m", "B"), of.format("m", "X").rpartition(".lora_")[0]
    other = {"lm_head.base_layer.weight": (512, 128), "n.lora_A.weight": (4, 8), "n.lora_B.weight": (8, 4)}
    fit.check_halves({a: (8, 128), **other, b: (256, 8)})
    for shapes, words in (({a: (8, 128)}, "lora_A alone"), ({b: (256, 8)}, "lora_B alone"),
                          ({a: (4, 128), b: (256, 8)}, r"\(4, 128\) in lora_A and \(256, 8\) in lora_B: not"),
                          ({a: (8, 128), b: (256, 8, 1)}, "not two matrices"),
                          ({a: (8,), b: (256, 8)}, "not two matrices"), ({a: (8, 128), b: ()}, "not two")):
        with pytest.raises(fit.Unfit, match=f"^{name} has .*{words}"):
            fit.check_halves({**other, **shapes})


def test_a_version_with_half_of_a_module_is_refused_before_it_is_loaded():
    manager, shelf, builder = rank_of(Linear(128, 256))
    manager.wrong = TypeError("vLLM's own words")
    slot = types.SimpleNamespace(close=lambda: None, table=[
        types.SimpleNamespace(name="m.lora_A.weight", shape=(8, 128))])
    with pytest.raises(fit.Unfit, match="m has lora_A alone"):
        builder.stage("policy@1:abc", slot, {"name": "policy@1", "id": 4})
    with pytest.raises(FileNotFoundError):
        shelf.open("heddle://policy@1/adapter_config.json")


def test_a_version_of_other_sizes_is_not_kept():
    manager, shelf, builder = rank_of(Linear(128, 256))
    manager.loras = {"0": weights((8, 64), (256, 8))}
    with pytest.raises(ValueError, match="0, lora_A: it is of 64"):
        builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1", "id": 4})
    assert builder.finished(request_of(1, 4)) is None
    with pytest.raises(FileNotFoundError):
        shelf.open("heddle://policy@1/adapter_config.json")


def rank_of(*modules):
    manager, shelf = Manager(*modules), loading.Shelf()
    return manager, shelf, loading.Builder(manager, shelf, Manager.load)


def request_of(version, number):
    return LoRARequest(f"policy@{version}", number, f"heddle://policy@{version}")


def test_a_model_that_was_built_ahead_is_given_once():
    manager, shelf, builder = rank_of(object())
    builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1", "id": 4})
    assert manager.merged == [4]
    assert builder.finished(request_of(1, 5)) is None, "of another number"
    assert builder.finished(request_of(2, 4)) is None, "of another path"
    assert builder.finished(request_of(1, 4)).id == 4
    assert builder.finished(request_of(1, 4)) is None, "it was scaled in place: the next one is loaded anew"
    assert shelf.open("heddle://policy@1/adapter_config.json").read() == '{"r": 8}'
    builder.commit("policy@1:abc")
    with pytest.raises(LookupError):
        builder.commit("policy@2:abc")


@pytest.mark.parametrize("places, option", [("_active_adapters", "2 places of --max-loras"),
                                            ("_registered_adapters", "3 places of --max-cpu-loras")])
def test_a_version_that_would_have_no_place_is_refused(places, option):
    manager, _, builder = rank_of()
    builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1", "id": 4})
    of = getattr(manager, places)
    of.pinned_items.update(range(of.capacity - 1))
    builder.commit("policy@1:abc")
    of.pinned_items.add("another")
    with pytest.raises(RuntimeError, match=f"all {option} are pinned"):
        builder.commit("policy@1:abc")


def test_a_model_with_experts_is_refused():
    slot = slot_of("policy@1:abc")
    manager, _, builder = rank_of(object(), FusedMoEWithLoRA())
    with pytest.raises(NotImplementedError, match="experts"):
        builder.stage("policy@1:abc", slot, {"name": "policy@1", "id": 4})
    assert slot.fd == -1 and manager.merged == []


@pytest.mark.parametrize("has, words", [
    ("0", None), ("", None), ("1", "the LoRA of 1: these have none"),
    ("04321", "the LoRA of 1, 2, 3 and 1 more: these")])
def test_what_would_be_read_over_is_refused(has, words):
    manager, shelf, builder = rank_of(Linear(128, 256))
    manager.loras = {name: weights((8, 128), (256, 8)) for name in has}
    if words is None:
        builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1", "id": 4})
        assert builder.finished(request_of(1, 4)).id == 4
        return
    with pytest.raises(ValueError, match=words):
        builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1", "id": 4})
    assert builder.finished(request_of(1, 4)) is None
    with pytest.raises(FileNotFoundError):
        shelf.open("heddle://policy@1/adapter_config.json")


def test_a_rank_keeps_nothing_of_what_it_refused_or_dropped():
    manager, shelf, builder = rank_of()
    refused, dropped = slot_of("policy@1:abc"), slot_of("policy@2:abc")
    manager.wrong = ValueError("LoRA rank 64")
    with pytest.raises(ValueError, match="LoRA rank 64"):
        builder.stage("policy@1:abc", refused, {"name": "policy@1", "id": 1})
    manager.wrong = None
    builder.stage("policy@2:abc", dropped, {"name": "policy@2", "id": 2})
    builder.drop("policy@2:abc")
    builder.drop("policy@2:abc")
    assert refused.fd == dropped.fd == -1 and builder.finished(request_of(2, 2)) is None
    for version in (1, 2):
        for look in (shelf.open, shelf.is_file, shelf.tensors):
            with pytest.raises(FileNotFoundError, match=f"heddle://policy@{version} is not a version that"):
                look(f"heddle://policy@{version}/adapter_config.json")


def test_a_folder_of_heddle_has_two_files():
    shelf = loading.Shelf()
    shelf.put("heddle://policy@1", slot_of("policy@1:abc"))
    found = [name for name in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin",
                               "new_embeddings.safetensors") if shelf.is_file(f"heddle://policy@1/{name}")]
    assert found == ["adapter_config.json", "adapter_model.safetensors"]
    with pytest.raises(FileNotFoundError):
        shelf.open("heddle://policy@1/adapter_model.safetensors")
    with pytest.raises(FileNotFoundError):
        shelf.tensors("heddle://policy@1/adapter_config.json")
    shelf.take("heddle://policy@1")


def test_other_paths_are_vllms_own():
    both = loading._chosen(lambda path: f"ours {path}", lambda *args, **named: (args, named))
    assert both("heddle://policy@1") == "ours heddle://policy@1"
    assert both("/a/heddle://b", 1, framework="pt") == (("/a/heddle://b", 1), {"framework": "pt"})
    assert both(7) == ((7,), {})
    instead = loading.Instead(sys, maxsize=1)
    assert instead.maxsize == 1 and instead.version is sys.version


# -- on or off -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("release, is_proven", [("0.32.0", True), ("0.32.1", True), ("0.32.0+cpu", True),
                                                ("0.26.0", True), ("0.31.0", True), ("0.30.0", False),
                                                ("0.32.0rc1", False), ("0.33.0", False), ("0.3.2", False),
                                                ("10.32.0", False), ("", False)])
def test_a_release_is_in_the_list_or_not(release, is_proven):
    assert seams.is_proven(release) is is_proven


@pytest.mark.parametrize("text, names", [("policy", ["policy"]), ("a,b", ["a", "b"]), (" a, b ,", ["a", "b"]),
                                         ("", []), (",", [])])
def test_adapters_are_named_in_the_environment(monkeypatch, text, names):
    monkeypatch.setenv("HEDDLE_ADAPTERS", text)
    assert plugin.adapters() == names


def engine_of(**changes):
    """What vLLM hands to init_state, with changes: (engine, state, args)."""
    parallel = types.SimpleNamespace(world_size=1, data_parallel_size=1)
    config = types.SimpleNamespace(instance_id="abc", parallel_config=parallel,
                                   lora_config=types.SimpleNamespace(max_loras=1, max_cpu_loras=None))
    models = types.SimpleNamespace(lora_requests={}, lora_id_counter=1,
                                   is_base_model=lambda name: name == "base")
    engine = types.SimpleNamespace(vllm_config=config, add_lora=None, remove_lora=None,
                                   output_processor=types.SimpleNamespace(request_states={}))
    state = types.SimpleNamespace(openai_serving_models=models)
    args = types.SimpleNamespace(api_server_count=1)
    for path, value in changes.items():
        *owners, name = path.split("__")
        of = {"engine": engine, "config": config, "parallel": parallel, "models": models, "state": state,
              "args": args}[owners[0]]
        if value is None and name != "lora_config":
            delattr(of, name)
        else:
            setattr(of, name, value)
    return engine, state, args


@pytest.mark.parametrize("changes, adapters, words", [
    ({"config__lora_config": None}, "policy", "no --enable-lora"),
    ({"parallel__nnodes": 2}, "policy", "on the host of"),
    ({"parallel__data_parallel_size": 2}, "policy", "on the host of"),
    ({"parallel__data_parallel_external_lb": True}, "policy", "on the host of"),
    ({"parallel__data_parallel_hybrid_lb": True}, "policy", "on the host of"),
    ({"parallel__pipeline_parallel_size": 2}, "policy", "not proven with --pipeline"),
    ({"parallel__world_size": 2, "parallel__data_parallel_size": 2, "parallel__data_parallel_size_local": 2},
     "policy", "0 of 4 ranks"),
    ({"args__api_server_count": 2}, "policy", "more than one API process"),
    ({"models__lora_requests": {"policy": 1}}, "a,policy", "of the same name: policy"),
    ({}, "base", "of the same name: base"),
    ({"models__lora_id_counter": None}, "policy", "has no lora_id_counter"),
    ({"state__openai_serving_models": None}, "policy", "has no openai_serving_models"),
    ({"engine__output_processor": None}, "policy", "has no output_processor"),
    ({}, "policy", "0 of 1 ranks")])
def test_it_is_off_with_an_engine_that_it_does_not_serve(monkeypatch, caplog, changes, adapters, words):
    monkeypatch.setenv("HEDDLE_ADAPTERS", adapters)
    monkeypatch.setattr(plugin, "_listener", _ranks.listen())
    monkeypatch.setattr(plugin, "_is_off", False)
    monkeypatch.setattr(plugin, "_RANKS_S", 0.1)
    monkeypatch.setattr(plugin, "release", lambda: "0.32.0")
    engine, state, args = engine_of(**changes)
    endpoint, threads = plugin.Endpoint(), threading.active_count()
    asyncio.run(endpoint.init_state(engine, state, args))
    assert [words in line for line in caplog.messages] == [True] and "the plug" in caplog.text
    assert plugin._listener._socket.fileno() == -1 and threading.active_count() == threads
    assert endpoint._leader is None
    if words != "has no openai_serving_models":
        assert type(state.openai_serving_models.lora_requests) is dict
    asyncio.run(endpoint.stop())


@pytest.fixture
def child(monkeypatch):
    """Of the first process of vLLM, which has the rank link."""
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setenv("HEDDLE_BROKER", "tcp://127.0.0.1:7700")
    monkeypatch.setenv("VLLM_PLUGINS", "heddle")
    monkeypatch.setenv("HEDDLE_RANKS", "heddle-ranks-0")
    for name, value in (("_listener", None), ("_is_off", False), ("why_off", "vLLM did not load it"),
                        ("release", lambda: "0.32.0")):
        monkeypatch.setattr(plugin, name, value)
    monkeypatch.setattr(plugin.switch, "is_first_process", lambda: False)
    monkeypatch.setattr(seams, "missing", lambda which=(): [])
    monkeypatch.setattr(loading, "is_under_the_loader", False)
    monkeypatch.setattr(loading, "put_under_the_loader", lambda name: None)


@pytest.mark.parametrize("rank, count, words", [
    (0, 2, "2 API processes, and it needs one: --api-server-count 1"), (1, 2, None), (-1, 2, None),
    (None, None, "multiprocessing started this process")])
def test_one_of_the_api_servers_that_another_process_started_says_that_it_is_off(child, caplog, rank, count,
                                                                                 words):
    plugin.register()
    assert caplog.messages == []
    its = {} if rank is None else {"parallel___api_process_rank": rank, "parallel___api_process_count": count}
    endpoint = plugin.Endpoint()
    endpoint.attach_router(None)
    for _ in range(2):
        asyncio.run(endpoint.init_state(*engine_of(**its)))
    assert [words in line and "the plug" in line for line in caplog.messages] == [True] * (words is not None)


def test_a_child_of_a_program_that_has_no_plugin_has_the_rank_link(child, caplog, monkeypatch):
    monkeypatch.delenv("HEDDLE_RANKS")
    names = []
    monkeypatch.setattr(loading, "put_under_the_loader", names.append)
    plugin.register()
    assert names == [plugin._listener.name] == [os.environ["HEDDLE_RANKS"]]
    engine, state, args = engine_of(config__lora_config=None)
    asyncio.run(plugin.Endpoint().init_state(engine, state, args))
    assert ["no --enable-lora" in line for line in caplog.messages] == [True]


def test_an_api_server_says_nothing_where_the_first_process_said_that_it_is_off(child, caplog, monkeypatch):
    monkeypatch.delenv("HEDDLE_BROKER")
    plugin.register()
    asyncio.run(plugin.Endpoint().init_state(*engine_of(parallel___api_process_count=2)))
    assert caplog.messages == []


def test_an_engine_that_a_child_process_makes_cannot_have_versions(child):
    plugin.register()
    with pytest.raises(heddle.Unavailable, match="multiprocessing started this process"):
        heddle.vllm.attach(LLM([]))


def test_it_is_on_with_one_rank(monkeypatch, caplog):
    caplog.set_level("INFO", "vllm.heddle")
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setenv("HEDDLE_BROKER", "tcp://127.0.0.1:7700")
    listener = _ranks.listen()
    monkeypatch.setattr(plugin, "_listener", listener)

    async def updates():
        await asyncio.Event().wait()
        yield
    worker = types.SimpleNamespace(updates=updates, close=lambda: None, stats=lambda: {"joined": None})
    monkeypatch.setattr(plugin, "open_worker", lambda: worker)
    rank = _ranks.connect(listener.name, {"instance": "abc", "rank": 0, "pid": 5})
    engine, state, args = engine_of()
    endpoint = plugin.Endpoint()

    async def run():
        await endpoint.init_state(engine, state, args)
        told = endpoint._leader.status()
        await endpoint.stop()
        return told
    told = asyncio.run(run())
    assert (told["ready"], told["joined"], told["ranks"]) == (False, False, [{"rank": 0, "pid": 5}])
    assert "--max-loras 1 has no place" in caplog.messages[0] and "heddle: on" in caplog.messages[1]
    assert rank.receive() is None, "it is closed with the server"
    rank.close()
    listener.close()


# -- an engine without a server ------------------------------------------------------------------------------

class Feed:
    """A worker: what it tells is put into it."""

    def __init__(self):
        self.there, self.log, self.is_wanted, self.lora_requests, self.is_over = [], [], True, {}, False
        self.left = False

    async def updates(self, timeout):
        while self.there:
            yield self.there.pop(0)

    def stats(self):
        return {"joined": None}

    def close(self):
        self.is_over = True


class Rank:
    """At the other end of the link."""

    def __init__(self, name, number, log):
        self._number, self._log = number, log
        self._link = _ranks.connect(name, {"instance": "abc", "rank": number, "pid": number})
        threading.Thread(target=_ranks.serve, args=(self._link, self), daemon=True).start()

    def stage(self, tag, slot, fields):
        slot.close()
        self._log.append((self._number, "STAGE", tag, fields["id"]))

    def commit(self, tag):
        self._log.append((self._number, "COMMIT", tag))

    def drop(self, tag):
        self._log.append((self._number, "DROP", tag))


@pytest.fixture
def feed(monkeypatch):
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setenv("HEDDLE_BROKER", "tcp://127.0.0.1:7700")
    monkeypatch.setattr(seams, "missing", lambda which=(): [])
    monkeypatch.setattr(plugin, "release", lambda: "0.32.0")
    listener, made = _ranks.listen(), Feed()
    monkeypatch.setattr(plugin, "_listener", listener)
    monkeypatch.setattr(plugin, "open_worker", lambda: made)
    made.name = listener.name
    yield made
    listener.close()


def one(feed, phase, version):
    update = Update(feed, phase, version)
    update.share = lambda: slot_of(update.tag)
    feed.there.append(update)


class LLM:
    """vLLM's, whose calls wait."""

    def __init__(self, log, **changes):
        engine, _, _ = engine_of(**changes)
        engine.add_lora = lambda request: log.append(("add_lora", request.lora_name))
        engine.remove_lora = lambda number: log.append(("remove_lora", number))
        self.llm_engine = engine


def test_an_engine_without_a_server_takes_versions_between_calls(feed):
    log = []
    llm = LLM(log, parallel__world_size=2)
    ranks = [Rank(feed.name, number, log) for number in (1, 0)]
    with heddle.vllm.attach(llm) as versions:
        with pytest.raises(heddle.NotFound, match="no version of policy is active"):
            versions.current("policy")
        with pytest.raises(heddle.Deadline):
            versions.wait_current(0)
        one(feed, "arrived", 1)
        one(feed, "commit", 1)
        assert not feed.log, "nothing happens between the calls"
        versions.wait_current(PATIENCE)
        request = versions.current("policy")
        assert (request.lora_name, versions.tag("policy")) == ("policy@1", "policy@1:abc")
        assert request.lora_int_id >= 1 << 20
        assert sorted(log[:2]) == [(n, "STAGE", "policy@1:abc", request.lora_int_id) for n in (0, 1)]
        assert sorted(log[2:4]) == [(n, "COMMIT", "policy@1:abc") for n in (0, 1)]
        assert log[4:] == [("add_lora", "policy@1")]
        one(feed, "arrived", 2)
        one(feed, "commit", 2)
        one(feed, "retired", 1)
        state = types.SimpleNamespace(lora_request=request)
        llm.llm_engine.output_processor.request_states[1] = state       # an LLM that is stepped by hand
        versions.poll()
        assert versions.current("policy").lora_name == "policy@2"
        assert versions.status()["adapters"][0]["leaving"] == ["policy@1:abc"]
        llm.llm_engine.output_processor.request_states.clear()
        versions.poll()
        assert ("remove_lora", request.lora_int_id) in log and (1, "DROP", "policy@1:abc") in log
        assert versions.status()["adapters"][0]["leaving"] == []
    assert feed.is_over and len(ranks) == 2
    versions.close()
    for call in (versions.poll, versions.wait_current):
        with pytest.raises(heddle.Closed, match="with heddle.vllm.attach"):
            call(0)
    with pytest.raises(heddle.Unavailable, match="they connect once"):
        heddle.vllm.attach(llm)


def test_an_engine_without_a_server_says_that_its_worker_was_drained(feed):
    rank = Rank(feed.name, 0, [])
    with heddle.vllm.attach(LLM([])) as versions:
        one(feed, "arrived", 1)
        one(feed, "commit", 1)
        feed.left = True                        # after what it told
        with pytest.raises(heddle.Closed, match="was drained"):
            versions.poll()
        assert versions.current("policy").lora_name == "policy@1" and rank, "what is loaded stays"
        for call in (versions.poll, versions.wait_current):
            with pytest.raises(heddle.Closed, match="was drained"):
                call(0)
    assert feed.is_over


def test_an_asynchronous_engine_without_a_server(feed):
    engine, log = engine_of()[0], []

    class AsyncLLM:
        vllm_config, output_processor = engine.vllm_config, engine.output_processor

        async def add_lora(self, request):
            log.append(("add_lora", request.lora_name))

        async def remove_lora(self, number):
            log.append(("remove_lora", number))

    async def story():
        rank = Rank(feed.name, 0, [])
        one(feed, "arrived", 1)
        one(feed, "commit", 1)
        versions = heddle.vllm.attach(AsyncLLM())
        for call in (versions.poll, versions.wait_current):
            with pytest.raises(heddle.Closed, match="async with"):
                await call(0)
        async with versions:
            await versions.wait_current(PATIENCE)
            assert versions.current("policy").lora_name == "policy@1" and rank
            one(feed, "arrived", 2)
            one(feed, "commit", 2)
            one(feed, "retired", 1)
            await versions.poll()
            assert versions.tag("policy") == "policy@2:abc"
        assert feed.is_over
        await versions.close()
        with pytest.raises(heddle.Closed):
            await versions.poll()
    asyncio.run(story())
    assert log == [("add_lora", "policy@1"), ("add_lora", "policy@2"), ("remove_lora", 1 << 20)]


@pytest.mark.parametrize("changes, words", [
    ({"config__lora_config": None}, "no --enable-lora"), ({}, "of 1 ranks"),
    ({"engine__output_processor": None}, "has no output_processor")])
def test_an_engine_that_cannot_have_versions_says_why(feed, monkeypatch, changes, words):
    monkeypatch.setattr(plugin, "_RANKS_S", 0.1)
    with pytest.raises((heddle.Unavailable, heddle.Deadline), match=words):
        heddle.vllm.attach(types.SimpleNamespace(llm_engine=engine_of(**changes)[0]))


def test_attach_says_why_the_plugin_is_off(feed, monkeypatch):
    monkeypatch.setattr(plugin, "_listener", None)
    monkeypatch.setattr(plugin, "why_off", "HEDDLE_BROKER does not say where the broker is")
    with pytest.raises(heddle.Unavailable, match="HEDDLE_BROKER does not say"):
        heddle.vllm.attach(LLM([]))
    with pytest.raises(heddle.UsageError, match="an engine of vLLM"):
        heddle.vllm.attach(object())
    monkeypatch.setattr(seams, "missing", lambda which=(): ["vllm.v1.engine.llm_engine has no LLMEngine"])
    with pytest.raises(heddle.Unavailable, match="not as expected: vllm.v1"):
        heddle.vllm.attach(LLM([]))
