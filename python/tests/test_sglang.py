# SPDX-License-Identifier: Apache-2.0
"""heddle.sglang without SGLang: an adapter as SGLang reads it, the leader and its names, what a rank keeps,
and when the plugin is off.  tests/engines/inside_sglang.py runs them in a real server.
"""
from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import types
from dataclasses import dataclass, field

import pytest

import heddle
from conftest import PATIENCE
from heddle import _inside, _ranks
from heddle.sglang import leader, loading, plugin, scale, seams
from test_rank_link import slot_of
from update_double import Cluster, Update

# -- an adapter as SGLang reads it ---------------------------------------------------------------------------


def tensors_of(**ranks):
    """Ones, for modules given as layers__0__q_proj=8."""
    torch = pytest.importorskip("torch")
    found = {}
    for name, rank in ranks.items():
        path = "base_model.model.model." + name.replace("__", ".")
        found[f"{path}.lora_A.weight"] = torch.ones(rank, 6)
        found[f"{path}.lora_B.weight"] = torch.ones(4, rank)
    return found


def test_one_scale_is_told_and_nothing_is_written():
    tensors = tensors_of(layers__0__q_proj=8, layers__1__v_proj=8)
    config, found = scale.fitted({"r": 8, "lora_alpha": 16, "use_rslora": True}, tensors)
    assert config["r"] == 8 and config["lora_alpha"] / 8 == pytest.approx(16 / 8 ** 0.5, rel=1e-15)
    assert config["target_modules"] == ["q_proj", "v_proj"] and config["peft_type"] == "LORA"
    assert all(found[name] is tensors[name] and bool((found[name] == 1).all()) for name in tensors)


def test_scales_that_differ_are_in_the_tensors_and_ranks_are_filled_up():
    tensors = tensors_of(layers__0__q_proj=2, layers__1__q_proj=8, layers__1__v_proj=8)
    config, found = scale.fitted({"r": 8, "lora_alpha": 16, "rank_pattern": {"layers.0.q_proj": 2},
                                  "alpha_pattern": {"v_proj": 4}}, tensors)
    assert (config["r"], config["lora_alpha"]) == (8, 8.0)
    root = "base_model.model.model.layers."
    assert {name: float(found[f"{root}{name}.lora_B.weight"][0, 0])
            for name in ("0.q_proj", "1.q_proj", "1.v_proj")} == {"0.q_proj": 8, "1.q_proj": 2,
                                                                  "1.v_proj": 0.5}
    for half, shape in (("A", (8, 6)), ("B", (4, 8))):
        filled = found[f"{root}0.q_proj.lora_{half}.weight"]
        assert tuple(filled.shape) == shape
    product = found[f"{root}0.q_proj.lora_B.weight"] @ found[f"{root}0.q_proj.lora_A.weight"]
    assert bool((product == 16).all()), "alpha / r = 8, of a product of 2"


@pytest.mark.parametrize("key, applies", [("q_proj", True), ("layers.0.q_proj", True), ("0.q_proj", True),
                                          ("model.layers.0.q_proj", True), ("layers\\.[01]\\.q_proj", True),
                                          ("proj", False), ("layers.0", False), ("layers.1.q_proj", False)])
def test_a_pattern_is_meant_as_peft_means_it(key, applies):
    found = scale._of_pattern({key: 3}, "model.layers.0.q_proj", 7)
    assert found == (3 if applies else 7)


@pytest.mark.parametrize("given, added", [
    ("q_proj", {"k_proj": 5, "v_proj": 5}), ("v_proj", {"q_proj": 7, "k_proj": 5}),
    ("up_proj", {"gate_proj": 4}), ("gate_proj", {"up_proj": 4}), ("o_proj", {}), ("qkv_proj", {})])
def test_zeros_stand_for_what_sglang_wants_beside_a_module(given, added):
    tensors = tensors_of(**{f"layers__0__{given}": 2, "layers__1__o_proj": 2})
    found = scale.completed(tensors, {"qkv_proj", "gate_up_proj", "o_proj"},
                            {"q_proj": 7, "k_proj": 5, "v_proj": 5})
    new = {name: found[name] for name in found.keys() - tensors.keys()}
    root = "base_model.model.model.layers.0."
    assert {name: tuple(zeros.shape) for name, zeros in new.items()} \
        == {f"{root}{module}.lora_{half}.weight": (2, 6) if half == "A" else (size, 2)
            for module, size in added.items() for half in "AB"}
    assert not any(bool(zeros.any()) for zeros in new.values())
    assert all(found[name] is tensors[name] for name in tensors)
    assert scale.completed(tensors, {"o_proj"}, {}) == tensors, "a model that has them apart"


@pytest.mark.parametrize("config, sizes", [
    ({"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}, (128, 64)),
    ({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 128}, (256, 128)),
    ({"num_attention_heads": 4, "head_dim": None, "hidden_size": 128}, (128, 128)), ({}, (0, 0))])
def test_the_sizes_of_attention_are_the_models(config, sizes):
    found = loading.sizes_of(types.SimpleNamespace(**config))
    assert (found["q_proj"], found["k_proj"], found["v_proj"]) == (sizes[0], sizes[1], sizes[1])


@pytest.mark.parametrize("change, words", [
    (lambda t: t.pop("base_model.model.model.q_proj.lora_A.weight"), "q_proj has lora_B alone"),
    (lambda t: t.pop("base_model.model.model.q_proj.lora_B.weight"), "q_proj has lora_A alone"),
    (lambda t: t.update({"base_model.model.lm_head.weight": 1}), "does not apply the tensor .*head.weight"),
    (lambda t: t.update(tensors_of(lm_head=8)), "gives LoRA of .*lm_head to other requests"),
    (lambda t: t.update(tensors_of(embed_tokens=8)), "gives LoRA of .*embed_tokens to other"),
    (lambda t: t.clear(), "no LoRA tensor"),
    (lambda t: t.update({k: v[None] for k, v in t.items()}), "has 3 dimensions"),
    (lambda t: t.update({k: v[:3] for k, v in t.items()}), r"has \(3, 6\) in A and \(3, 8\) in B")])
def test_what_sglang_would_read_over_is_refused(change, words):
    tensors = tensors_of(q_proj=8)
    change(tensors)
    with pytest.raises(scale.Unfit, match=words):
        scale.fitted({"r": 8, "lora_alpha": 8}, tensors)


@pytest.mark.parametrize("path, fits", [
    ("model.layers.1.self_attn.q_proj", True), ("model.layers.1.mlp.up_proj", True),
    ("model.layers.1.mlp.down_proj", True), ("model.layers.2.mlp.down_proj", False),
    ("model.layers.1.mlp.o_proj", False), ("visual.blocks.1.mlp.down_proj", False),
    ("vision.encoder.layers.1.self_attn.q_proj", False), ("layers.1.self_attn.q_proj", False)])
def test_what_the_model_has_no_place_for_is_refused(path, fits):
    has = ["model.layers.1.self_attn.qkv_proj", "model.layers.1.mlp.gate_up_proj",
           "model.layers.1.mlp.down_proj"]
    tensors = {f"base_model.model.{path}.lora_{half}.weight": None for half in "AB"}
    if fits:
        scale.placed(tensors, has)
        scale.placed(tensors, [path])           # a model that has them apart
    else:
        with pytest.raises(scale.Unfit, match=f"SGLang has no LoRA of {path} in this model"):
            scale.placed(tensors, has)


# -- the leader ----------------------------------------------------------------------------------------------

@dataclass
class Request:
    """SGLang's, for a load or an unload."""

    lora_name: str
    config_dict: dict = field(default_factory=dict)
    load_format: str | None = None
    serialized_named_tensors: list = field(default_factory=list)


@dataclass
class LoRAUpdateOutput:
    success: bool
    error_message: str = ""


@dataclass
class Ref:
    lora_id: str
    lora_name: str
    pinned: bool = False


class Counter:
    def __init__(self):
        self.count = 0

    def value(self):
        return self.count


class Registry:
    """SGLang's: names in the order of their last use."""

    def __init__(self):
        self.refs, self._counters, self._last = {}, {}, 0

    def get_all_adapters(self):
        return dict(self.refs)

    @property
    def num_registered_loras(self):
        return len(self.refs)

    def put(self, name, pinned=False):
        self._last += 1
        self.refs[name] = Ref(f"id{self._last}", name, pinned)
        self._counters[f"id{self._last}"] = Counter()
        return f"id{self._last}"

    def acquire(self, name):
        ref = self.refs[name] = self.refs.pop(name)
        self._counters[ref.lora_id].count += 1
        return ref.lora_id


class Manager:
    """SGLang's tokenizer manager, hooked as the plugin hooks it."""

    def __init__(self, log):
        self.log, self.wrong = log, {}
        self.lora_registry, self.lora_ref_cache, self.pending_lora_unloads = Registry(), {}, {}
        self.gate = None                        # an Event: the ranks answer no load before it is set
        self.server_args = types.SimpleNamespace(max_loaded_loras=None)
        self.leader = None

    def _do(self, *what):
        self.log.append(what)
        return self.wrong.get(what[0])

    async def load_lora_adapter_from_tensors(self, request):
        return await self.leader.change(Manager._load, self, request)

    async def unload_lora_adapter(self, request):
        return await self.leader.change(Manager._unload, self, request)

    async def _load(self, request):
        words = self._do("load", request.lora_name)
        if words:
            return LoRAUpdateOutput(False, words)
        assert request.load_format == "heddle" and request.serialized_named_tensors == [b""]
        if request.lora_name in self.pending_lora_unloads:
            return LoRAUpdateOutput(False, "an incomplete unload")
        if self.gate is not None:
            await self.gate.wait()
            self.log.append(("loaded", request.lora_name))
        self.lora_registry.put(request.lora_name)
        self.lora_ref_cache[request.lora_name] = "__tensor__"
        return LoRAUpdateOutput(True)

    async def _unload(self, request):
        self._do("unload", request.lora_name)
        if self.pending_lora_unloads.pop(request.lora_name, None):
            return LoRAUpdateOutput(True)
        ref = self.lora_registry.refs.pop(request.lora_name)
        count = self.lora_registry._counters.pop(ref.lora_id).count
        assert count == 0, "SGLang would wait for it, with its lock held"
        return LoRAUpdateOutput(True)

    async def _resolve(self, obj):
        names = obj.lora_path if isinstance(obj.lora_path, list) else [obj.lora_path]
        if any(name is not None and name not in self.lora_registry.refs for name in names):
            raise ValueError(f"never been loaded: {names}")
        ids = [None if name is None else self.lora_registry.acquire(name) for name in names]
        obj.lora_id = ids if isinstance(obj.lora_path, list) else ids[0]


class Play:
    """The ranks and Heddle's worker, and SGLang's manager: each notes what it is asked for."""

    def __init__(self):
        self.log, self.wrong, self.is_wanted, self.is_over, self.left = [], {}, True, False, False
        self.hellos, self.lost = [{"rank": 0, "pid": 1}], None
        self.manager = Manager(self.log)
        self.queue, self.cluster = asyncio.Queue(), Cluster()

    def _why_foreign(self, found):
        return None

    def stage(self, tag, slot, *, name):
        self._do("STAGE", tag, slot, name)

    def commit(self, tag):
        self._do("COMMIT", tag)

    def drop(self, tag):
        self._do("DROP", tag)

    def _do(self, *what):
        self.log.append(what)
        if what[0] in self.wrong:
            raise self.wrong[what[0]]

    async def updates(self):
        while (update := await self.queue.get()) is not None:
            yield update

    def stats(self):
        return {"joined": {"token": 1}}

    def close(self):
        self.is_over = True


@dataclass
class Obj:
    """A request to generate."""

    lora_path: object
    lora_id: object = None


class Story:
    """play(), say("arrived", 1) is an update of policy@1, answered when it returns."""

    def __init__(self, play, made):
        self.play, self.made, self.manager = play, made, play.manager
        self.registry, self.log = play.manager.lora_registry, play.log

    async def say(self, phase, version):
        update = Update(self.play, phase, version)
        self.play.queue.put_nowait(update)
        await until(lambda: update.answered and self.play.queue.empty())

    async def active(self, *versions):
        for version in versions:
            await self.say("arrived", version)
            await self.say("commit", version)

    async def ask(self, name):
        obj = Obj(name)
        await self.made.resolve(Manager._resolve, self.manager, obj)
        return obj

    def end(self, obj):
        for lora_id in obj.lora_id if isinstance(obj.lora_id, list) else [obj.lora_id]:
            if lora_id is not None:
                self.registry._counters[lora_id].count -= 1


@pytest.fixture(autouse=True)
def sglang(monkeypatch):
    """The modules of SGLang that the leader imports, of which the package is not here."""
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.io_struct"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    structs = sys.modules["sglang.srt.managers.io_struct"]
    structs.LoadLoRAAdapterFromTensorsReqInput = structs.UnloadLoRAAdapterReqInput = Request
    structs.LoRAUpdateOutput = LoRAUpdateOutput
    monkeypatch.setattr(_inside.leader, "LOOK_S", 0.001)


def play(story):
    async def run():
        playing, faults = Play(), []
        made = leader.Leader(playing.manager, playing, {"policy": ("policy", "miles_lora")}, lambda: playing,
                             places=3, open_admin=lambda: playing.cluster)
        playing.manager.leader = made
        await made.start(lambda: None)
        asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what))
        await story(Story(playing, made))
        await made.stop()
        assert playing.is_over and not made._tasks and not faults
    asyncio.run(asyncio.wait_for(run(), PATIENCE))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_a_version_is_served_when_sglang_has_it():
    async def story(s):
        await s.active(1)
        assert s.log == [("STAGE", "policy@1:abc", "memory of 1", "policy@1"), ("staged", 1),
                         ("COMMIT", "policy@1:abc"), ("load", "policy@1"), ("activate", 1)]
        assert not s.manager.lora_ref_cache, "by it SGLang would fetch an evicted one from the hub"
        for name in ("policy", "miles_lora", "policy@1"):
            obj = await s.ask(name)
            assert obj.lora_path == "policy@1" and s.made.told_of(obj.lora_id) == "policy@1:abc"
        await s.say("arrived", 2)
        assert (await s.ask("policy")).lora_path == "policy@1"
        assert list(s.registry.refs) == ["policy@1"], "what is staged is not in SGLang"
        await s.say("commit", 2)
        assert (await s.ask("policy")).lora_path == "policy@2"
        (told,) = s.made.status()["adapters"]
        assert told == {"name": "policy", "active": "policy@2:abc",
                        "served": ["policy@1:abc", "policy@2:abc"], "staged": [], "leaving": [],
                        "fetched": []}
    play(story)


@pytest.mark.parametrize("name, words", [("policy", "no version of policy is active"),
                                         ("miles_lora", "no version of policy is active"),
                                         ("policy@7", "policy@7 is not served here"),
                                         (["policy@1", None], "policy@1 is not served here")])
def test_a_name_without_a_version_is_not_the_base_model(name, words):
    async def story(s):
        await s.say("arrived", 1)
        obj, part = Obj(name), Obj("policy@1")
        obj.__dict__["_sub_obj_cache"] = {0: part}
        with pytest.raises(ValueError, match=words):
            await s.made.resolve(Manager._resolve, s.manager, obj)
        assert obj.lora_path is part.lora_path is None, "SGLang has nothing to count back"
    play(story)


def test_other_names_are_sglangs_own():
    async def story(s):
        await s.active(1)
        s.registry.put("mine")
        obj = await s.ask("mine")
        assert (obj.lora_path, s.made.told_of(obj.lora_id)) == ("mine", None)
        with pytest.raises(ValueError, match="never been loaded"):
            await s.ask("yours")
        assert (await s.ask(None)).lora_path is None
        assert s.made.model(lambda _, model, path: [model, path], None, "base", None) == ["base", None]
        assert [s.made.model(None, None, name) for name in ("policy", "policy@7", "miles_lora")] \
            == ["policy", "policy@7", "miles_lora"]
    play(story)


def test_a_batch_names_several():
    async def story(s):
        await s.active(1, 2)
        part = Obj("policy")
        obj = Obj(["policy", "policy@1", None, "miles_lora"])
        obj.__dict__["_sub_obj_cache"] = {0: part}
        use = _inside.answers.Use()
        token = _inside.answers._use.set(use)
        await s.made.resolve(Manager._resolve, s.manager, obj)
        _inside.answers._use.reset(token)
        assert obj.lora_path == ["policy@2", "policy@1", None, "policy@2"] and part.lora_path == "policy@2"
        assert use.tags == ["policy@2:abc", "policy@1:abc"]
        assert s.made.status()["requests"] == {"policy@1:abc": 1, "policy@2:abc": 1}
        use.end()
        assert s.made.status()["requests"] == {"policy@1:abc": 0, "policy@2:abc": 0}
    play(story)


def test_a_retired_version_goes_when_sglang_counts_no_request():
    async def story(s):
        await s.active(1)
        obj = await s.ask("policy")
        await s.active(2)
        await s.say("retired", 1)
        with pytest.raises(ValueError, match="policy@1 is not served"):
            await s.ask("policy@1")
        before = list(s.log)
        await asyncio.sleep(0.02)
        assert s.log == before and s.made.status()["adapters"][0]["leaving"] == ["policy@1:abc"]
        s.end(obj)
        await until(lambda: s.log[-2:] == [("unload", "policy@1"), ("DROP", "policy@1:abc")])
        assert list(s.registry.refs) == ["policy@2"] and s.made.told_of(obj.lora_id) is None
    play(story)


def test_what_sglang_has_evicted_is_loaded_again_for_a_request():
    async def story(s):
        await s.active(1, 2)
        first = s.registry.refs["policy@1"].lora_id
        del s.registry.refs["policy@1"]         # by a load of a client's
        obj = await s.ask("policy@1")
        assert s.log[-1] == ("load", "policy@1") and obj.lora_id != first
        assert s.made.told_of(obj.lora_id) == "policy@1:abc"
        s.end(obj)
        del s.registry.refs["policy@1"]
        await s.say("retired", 1)
        await until(lambda: s.log[-1] == ("DROP", "policy@1:abc"))
        assert ("unload", "policy@1") not in s.log, "SGLang has not got it"
    play(story)


def test_a_load_goes_on_without_the_request_that_began_it():
    async def story(s):
        await s.active(1, 2)
        del s.registry.refs["policy@1"]
        s.manager.gate = asyncio.Event()
        first, second = (asyncio.create_task(s.ask("policy@1")) for _ in range(2))
        await until(lambda: s.log[-1] == ("load", "policy@1"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        s.manager.gate.set()
        obj = await second
        assert s.log.count(("load", "policy@1")) == 2, "once, and again once for both"
        assert obj.lora_id == s.registry.refs["policy@1"].lora_id
        assert s.made.told_of(obj.lora_id) == "policy@1:abc" and not s.manager.lora_ref_cache
        s.end(obj)
    play(story)


def test_a_version_that_is_loaded_for_none_does_not_leave_before():
    async def story(s):
        await s.active(1, 2)
        del s.registry.refs["policy@1"]
        s.manager.gate = asyncio.Event()
        asked = asyncio.create_task(s.ask("policy@1"))
        await until(lambda: s.log[-1] == ("load", "policy@1"))
        asked.cancel()
        await s.say("retired", 1)
        await asyncio.sleep(0.02)
        assert s.log[-1] == ("load", "policy@1")
        s.manager.gate.set()
        await until(lambda: s.log[-2:] == [("unload", "policy@1"), ("DROP", "policy@1:abc")])
        assert "policy@1" not in s.registry.refs
    play(story)


def test_a_clients_adapter_is_loaded_to_the_end_too():
    async def story(s):
        ended, gate = [], asyncio.Event()

        async def load(manager, obj):
            await gate.wait()                   # the answer of the ranks, for which SGLang has one place
            ended.append(obj.lora_name)
            return LoRAUpdateOutput(True)
        asked = asyncio.create_task(s.made.change(load, s.manager, Request("mine")))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        gate.set()
        await until(lambda: ended == ["mine"])
    play(story)


def test_what_sglang_has_not_ended_to_unload_is_unloaded_first():
    async def story(s):
        await s.active(1, 2)
        for how in ("load", "retire"):
            s.registry.refs.pop("policy@1", None)
            s.manager.pending_lora_unloads["policy@1"] = "id1"
            if how == "load":
                s.end(await s.ask("policy@1"))
                assert s.log[-2:] == [("unload", "policy@1"), ("load", "policy@1")]
            else:
                await s.say("retired", 1)
                await until(lambda: s.log[-2:] == [("unload", "policy@1"), ("DROP", "policy@1:abc")])
            assert not s.manager.pending_lora_unloads
    play(story)


def test_one_that_is_evicted_between_load_and_count_is_loaded_again():
    async def story(s):
        await s.active(1)
        times = iter([True, True, False])

        async def resolve(manager, obj):
            if next(times):
                s.registry.refs.pop("policy@1", None)
            await Manager._resolve(manager, obj)
        await s.made.resolve(resolve, s.manager, Obj("policy"))
        assert s.log.count(("load", "policy@1")) == 3

        async def never(manager, obj):
            s.registry.refs.pop("policy@1", None)
            await Manager._resolve(manager, obj)
        with pytest.raises(ValueError, match="evicted .* whenever it is loaded"):
            await s.made.resolve(never, s.manager, Obj("policy"))
        assert s.made.status()["requests"] == {"policy@1:abc": 0}
    play(story)


def test_place_is_made_of_what_no_request_uses(monkeypatch):
    async def story(s):
        s.manager.server_args.max_loaded_loras = 3
        s.registry.put("pinned", pinned=True)
        await s.active(1, 2)
        obj = await s.ask("policy@1")           # used last, and in use
        await s.active(3)
        assert ("unload", "policy@2") in s.log and "policy@1" in s.registry.refs
        other = await s.ask("policy@3")
        monkeypatch.setattr(leader, "_PLACE_S", 0.05)
        await s.say("arrived", 4)
        await s.say("commit", 4)
        words = "all 3 places of --max-loaded-loras are in use by requests, for 0.05 s"
        assert s.log[-1] == ("reject", words, 4)
        with pytest.raises(ValueError, match=words):
            await s.ask("policy@2")
        monkeypatch.setattr(leader, "_PLACE_S", PATIENCE)
        waiting = asyncio.create_task(s.ask("policy@2"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        s.end(obj)
        assert (await waiting).lora_path == "policy@2"
        assert sorted(s.registry.refs) == ["pinned", "policy@2", "policy@3"]
        s.end(other)
    play(story)


def test_a_load_that_waits_holds_up_no_request_for_another_version(monkeypatch):
    async def story(s):
        monkeypatch.setattr(leader, "_PLACE_S", PATIENCE)
        s.manager.server_args.max_loaded_loras = 2
        await s.active(1, 2)
        first, second = await s.ask("policy@1"), await s.ask("policy@2")
        await s.say("arrived", 3)
        loading_3 = asyncio.create_task(s.say("commit", 3))
        await until(s.made._loading.locked)
        third = await s.ask("policy@2")         # at once
        s.end(third)
        s.end(second)
        s.end(first)
        await loading_3
        assert (await s.ask("policy")).lora_path == "policy@3"
    play(story)


def test_a_request_for_what_makes_place_is_let_through_when_it_is_loaded_again():
    async def story(s):
        s.manager.server_args.max_loaded_loras = 2
        await s.active(1, 2)
        gate, unload = asyncio.Event(), Manager._unload

        async def slow(manager, request):
            await gate.wait()                   # SGLang's lock is another one's
            return await unload(manager, request)
        s.manager.unload_lora_adapter = lambda request: s.made.change(slow, s.manager, request)
        await s.say("arrived", 3)
        commit = asyncio.create_task(s.say("commit", 3))
        await until(lambda: s.made._going == "policy@1")
        asked = asyncio.create_task(s.ask("policy@1"))
        await asyncio.sleep(0.01)
        assert not asked.done(), "else SGLang would wait for it, with its lock held"
        gate.set()
        await commit
        assert (await asked).lora_path == "policy@1" and s.log.count(("load", "policy@1")) == 2
    play(story)


@pytest.mark.parametrize("what, error, words", [
    ("STAGE", _ranks.Refused("rank 1: too large"), "rank 1: too large"),
    ("COMMIT", _ranks.Refused("not staged here"), "not staged here")])
def test_what_a_rank_refuses_is_rejected_in_its_words(what, error, words):
    async def story(s):
        await s.active(1)
        s.play.wrong = {what: error}
        await s.say("arrived", 2)
        if what == "COMMIT":
            await s.say("commit", 2)
        assert s.log[-1] == ("reject", words, 2)
        assert (await s.ask("policy")).lora_path == "policy@1"
    play(story)


def test_a_load_that_fails_leaves_the_one_before():
    async def story(s):
        await s.active(1)
        s.manager.wrong = {"load": "no room"}
        await s.active(2)
        assert s.log[-1] == ("reject", "no room", 2)
        assert (await s.ask("policy")).lora_path == "policy@1"
    play(story)


def test_a_decision_that_does_not_hold_any_more_changes_no_name():
    async def story(s):
        await s.active(1)
        await s.say("arrived", 2)
        s.play.is_wanted = False
        await s.say("commit", 2)
        assert (await s.ask("policy")).lora_path == "policy@1"
        with pytest.raises(ValueError, match="not served"):
            await s.ask("policy@2")
        s.play.is_wanted = True
        await s.say("commit", 2)                # what was loaded stays for this
        assert (await s.ask("policy")).lora_path == "policy@2" and s.log.count(("load", "policy@2")) == 1
    play(story)


@pytest.mark.parametrize("name, load_format", [("policy", None), ("miles_lora", None), ("policy@1", None),
                                               ("policy@9", None), ("mine", "heddle")])
def test_a_client_cannot_change_what_heddle_names(name, load_format):
    async def story(s):
        await s.active(1)
        before = list(s.log)
        request = Request(name, load_format=load_format)
        calls = [s.manager.load_lora_adapter_from_tensors]
        calls += [s.manager.unload_lora_adapter] if load_format is None else []
        for call in calls:
            answer = await call(request)
            assert not answer.success and "a name that Heddle gives" in answer.error_message
        assert s.log == before
    play(story)


def test_each_answer_says_its_tag():
    async def story(s):
        await s.active(1)
        obj, other = await s.ask("policy"), Obj(None)

        def wait(manager, obj, request):
            looked.append(obj)                  # SGLang looks the request up when it is called

            async def outs():
                yield {"meta_info": {"id": 1}}
                yield {"meta_info": {"id": 1}}
            return outs()
        looked = []
        outs = s.made.wait(wait, s.manager, obj, None)
        assert looked == [obj], "before the first answer is waited for"
        told = [out["meta_info"] async for out in outs]
        assert told == [{"id": 1, "heddle_version": "policy@1:abc"}] * 2
        outs = s.made.wait(wait, s.manager, other, None)
        assert [out["meta_info"] async for out in outs] == [{"id": 1}] * 2
    play(story)


def test_a_kept_version_is_fetched_at_its_first_request():
    async def story(s):
        await s.active(9)
        s.play.cluster.states = {7: "kept"}
        one, two = await asyncio.gather(s.ask("policy@7"), s.ask(["policy@7", None, "policy"]))
        assert s.log[-3:] == [("STAGE", "policy@7:abc", "memory of 7", "policy@7"),
                              ("COMMIT", "policy@7:abc"), ("load", "policy@7")], "once"
        assert one.lora_path == "policy@7" and two.lora_path == ["policy@7", None, "policy@9"]
        assert s.made.told_of(one.lora_id) == "policy@7:abc"
        assert s.made.status()["adapters"][0]["fetched"] == ["policy@7:abc"]
        assert (await s.ask("policy")).lora_path == "policy@9"
    play(story)


@pytest.mark.parametrize("states, words", [({}, "policy@7 was never published"),
                                           ({7: "retired"}, "policy@7 is retired"),
                                           ({7: "staged"}, "policy@7 is staged")])
def test_what_is_not_kept_is_an_error_of_that_request(states, words):
    async def story(s):
        await s.active(9)
        s.play.cluster.states = states
        with pytest.raises(ValueError, match=f"policy@7 is not served here, and cannot be fetched: {words}"):
            await s.ask("policy@7")
        assert list(s.registry.refs) == ["policy@9"]
    play(story)


def test_a_fetched_version_gives_its_place_when_sglang_counts_no_request(monkeypatch):
    """One place beside those of the active version and the one before."""
    monkeypatch.setattr(_inside.leader, "IDLE_S", 0.05)

    async def story(s):
        await s.active(9)
        s.play.cluster.states = {1: "kept", 2: "kept"}
        obj = await s.ask("policy@1")
        await asyncio.sleep(0.06)
        with pytest.raises(ValueError, match="in use by requests"):
            await s.ask("policy@2")
        s.end(obj)
        await asyncio.sleep(0.06)
        assert (await s.ask("policy@2")).lora_path == "policy@2"
        assert ("unload", "policy@1") in s.log and ("DROP", "policy@1:abc") in s.log
        assert sorted(s.registry.refs) == ["policy@2", "policy@9"]
    play(story)


# -- a rank --------------------------------------------------------------------------------------------------

class FusedMoEWithLoRA:
    pass


class Rank:
    """SGLang's LoRA manager, of one rank."""

    def __init__(self, *modules):
        self.lora_modules = [{str(n): module for n, module in enumerate(modules)}]
        self.loras, self.configs, self.lora_refs = {"other": 1}, {"other": 1}, {"other": 1}
        self.model_runner = types.SimpleNamespace(lora_manager=self)
        self.memory_pool, self.base_hf_config = types.SimpleNamespace(target_modules={"all"}), None

    def create_lora_update_result(self, success, error_message=""):
        return LoRAUpdateOutput(success, error_message)

    def load_lora_adapter_from_tensors(self, ref, tensors, config, added):
        if tensors == "too large":
            return LoRAUpdateOutput(False, "rank 64")
        loading.load_weights(Rank.own, self, ref, tensors)
        return LoRAUpdateOutput(True)

    def own(self, ref, tensors):
        self.loras[ref.lora_id] = types.SimpleNamespace(uid=ref.lora_id, of=tensors)


@pytest.fixture
def rank(monkeypatch):
    for name in ("sglang.srt.lora", "sglang.srt.lora.lora_registry"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["sglang.srt.lora.lora_registry"].LoRARef = \
        lambda **how: types.SimpleNamespace(**{"lora_id": "built", **how})
    monkeypatch.setattr(loading, "prove", lambda manager, adapter: None)
    monkeypatch.setattr(loading.scale, "fitted", lambda config, tensors: (config, tensors))
    monkeypatch.setattr(loading.scale, "placed", lambda tensors, has: placed(tensors, has))
    monkeypatch.setattr(loading.scale, "completed", lambda tensors, has, sizes: tensors)
    monkeypatch.setattr(loading.Slot, "torch", lambda slot: f"tensors of {slot.tag}")
    manager = Rank(object())
    monkeypatch.setitem(loading._builders, id(manager), loading.Builder(manager))
    return manager


def placed(tensors, has):
    assert has == ["0"], "of all layers"
    if tensors == "of a tower":
        raise scale.Unfit("no place")


def ask_rank(rank, tag, lora_id, load_format="heddle", original=None):
    request = types.SimpleNamespace(load_format=load_format, config_dict={"tag": tag}, lora_name="policy@1",
                                    lora_id=lora_id, pinned=False)
    return loading.load_from_tensors(original, rank, request)


def test_a_rank_hands_over_what_it_has_built(rank):
    builder, slot = loading._builders[id(rank)], slot_of("policy@1:abc")
    builder.stage("policy@1:abc", slot, {"name": "policy@1"})
    assert slot.fd == -1, "what holds the memory are the tensors"
    assert list(rank.loras) == ["other"], "generation does not see it"
    builder.commit("policy@1:abc")
    assert ask_rank(rank, "policy@1:abc", "id1").success
    adapter = rank.loras["id1"]
    assert (adapter.uid, adapter.of) == ("id1", "tensors of policy@1:abc")
    del rank.loras["id1"]                       # evicted, and asked for again
    assert ask_rank(rank, "policy@1:abc", "id2").success
    assert rank.loras["id2"] is adapter and adapter.uid == "id2"
    builder.drop("policy@1:abc")
    builder.drop("policy@1:abc")
    answer = ask_rank(rank, "policy@1:abc", "id3")
    assert not answer.success and "policy@1 is not staged here" in answer.error_message
    with pytest.raises(LookupError):
        builder.commit("policy@1:abc")


def test_other_requests_are_sglangs_own(rank):
    assert ask_rank(rank, None, "id", "flattened_bucket", lambda worker, request: request) is not None
    del loading._builders[id(rank)]
    assert not ask_rank(rank, "policy@1:abc", "id").success, "a rank that has no leader"


def test_a_rank_keeps_nothing_of_what_it_refused(rank, monkeypatch):
    builder = loading._builders[id(rank)]
    for wrong, words in (("prove", "shape"),):
        slot = slot_of("policy@1:abc")

        def refuse(manager, adapter, words=words):
            raise AssertionError(words)
        monkeypatch.setattr(loading, wrong, refuse)
        with pytest.raises(AssertionError):
            builder.stage("policy@1:abc", slot, {"name": "policy@1"})
        assert slot.fd == -1 and not builder._built and list(rank.loras) == ["other"]
    monkeypatch.setattr(loading.Slot, "torch", lambda slot: "too large")
    with pytest.raises(RuntimeError, match="rank 64"):
        builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1"})
    monkeypatch.setattr(loading.Slot, "torch", lambda slot: "of a tower")
    with pytest.raises(scale.Unfit, match="no place"):
        builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1"})
    builder = loading.Builder(Rank(object(), FusedMoEWithLoRA()))
    with pytest.raises(NotImplementedError, match="experts"):
        builder.stage("policy@1:abc", slot_of("policy@1:abc"), {"name": "policy@1"})


class Pool:
    """SGLang's, of one place, with embeddings and head: notes where and what it is asked to load."""

    def __init__(self, *outer):
        import torch
        self.A_buffer = {"q_proj": [torch.ones(3, 8, 6), None]}
        self.B_buffer = {"q_proj": [torch.ones(3, 4, 8), None]}
        self.embedding_A_buffer = {"embed_tokens": torch.ones(3, 8, 12)} if "embed_tokens" in outer else {}
        self.embedding_B_buffer = {"embed_tokens": torch.ones(3, 6, 8)} if "embed_tokens" in outer else {}
        self.lm_head_A_buffer = {"lm_head": torch.ones(3, 8, 6)} if "lm_head" in outer else {}
        self.lm_head_B_buffer = {"lm_head": torch.ones(3, 12, 8)} if "lm_head" in outer else {}
        self.new_embeddings_buffer, self.strict_loading = {}, False

    def load_lora_weight_to_buffer(self, uid, place, adapter, *modules):
        self.A_buffer["q_proj"][0][place].copy_(adapter.q)
        assert self.strict_loading and self.B_buffer["q_proj"][1] is None and modules == (1, 2, 3)
        return uid


def test_what_would_end_a_rank_in_a_step_is_tried_without_memory():
    torch = pytest.importorskip("torch")
    pool = Pool("lm_head")
    manager = types.SimpleNamespace(memory_pool=pool, lora_modules=1, embed_tokens_module=2, lm_head_module=3)
    loading.prove(manager, types.SimpleNamespace(uid="a", q=torch.zeros(8, 6)))
    assert bool((pool.A_buffer["q_proj"][0] == 1).all()) and not pool.strict_loading, "and nothing is written"
    with pytest.raises(RuntimeError, match="must match"):
        loading.prove(manager, types.SimpleNamespace(uid="a", q=torch.zeros(9, 6)))


# -- on or off -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("release, is_proven", [("0.5.23", True), ("0.5.23+cpu", True), ("0.5.12", False),
                                                ("0.5.23rc1", False), ("0.5.2", False),
                                                ("0.5.23.post1", False), ("", False)])
def test_a_release_is_in_the_list_or_not(release, is_proven):
    assert seams.is_proven(release) is is_proven


@pytest.mark.parametrize("text, names", [
    ("policy", {"policy": ("policy",)}), ("policy=miles_lora", {"policy": ("policy", "miles_lora")}),
    ("a=x, b,a=y", {"a": ("a", "x", "y"), "b": ("b",)}), ("a=a,b=", {"a": ("a",), "b": ("b",)}), ("", {})])
def test_adapters_and_their_other_names_are_in_the_environment(monkeypatch, text, names):
    monkeypatch.setenv("HEDDLE_ADAPTERS", text)
    assert plugin.names() == names and plugin._what_is_wrong_with_names() is None
    monkeypatch.setenv("HEDDLE_ADAPTERS", "a=b,b")
    assert plugin._what_is_wrong_with_names() == "HEDDLE_ADAPTERS gives b to two adapters"


def server_of(**changes):
    args = {"enable_lora": True, "nnodes": 1, "dp_size": 1, "pp_size": 1, "tp_size": 1,
            "tokenizer_worker_num": 1, "enable_dp_attention": False, "speculative_algorithm": None,
            "max_loras_per_batch": 2, "max_loaded_loras": None}
    registry = Registry()
    manager = types.SimpleNamespace(server_args=types.SimpleNamespace(**args), lora_registry=registry,
                                    lora_ref_cache={}, pending_lora_unloads={}, served_model_name="base")
    for name, value in changes.items():
        if name == "loaded":
            registry.put(value)
        elif value is None and hasattr(manager, name):
            delattr(manager, name)
        else:
            setattr(manager.server_args, name, value)
    return manager


@pytest.mark.parametrize("changes, adapters, words", [
    ({"enable_lora": False}, "policy", "no --enable-lora"), ({"nnodes": 2}, "policy", "on the host of"),
    ({"dp_size": 2}, "policy", "one replica"), ({"pp_size": 2}, "policy", "not proven with --pp-size"),
    ({"tokenizer_worker_num": 2, "lora_registry": None, "lora_ref_cache": None, "pending_lora_unloads": None},
     "policy", "not proven with --tokenizer-worker-num"),
    ({"enable_dp_attention": True}, "policy", "not proven with --enable-dp-attention"),
    ({"speculative_algorithm": "EAGLE"}, "policy", "not proven with --speculative-algorithm"),
    ({"loaded": "policy"}, "a,policy", "of the same name: policy"),
    ({"loaded": "miles_lora"}, "policy=miles_lora", "of the same name: miles_lora"),
    ({}, "base", "of the same name: base"), ({"lora_registry": None}, "policy", "has no lora_registry"),
    ({"lora_ref_cache": None}, "policy", "has no lora_ref_cache"),
    ({"pending_lora_unloads": None}, "policy", "has no pending_lora_unloads")])
def test_it_is_off_with_a_server_that_it_does_not_serve(monkeypatch, caplog, changes, adapters, words):
    monkeypatch.setenv("HEDDLE_ADAPTERS", adapters)
    monkeypatch.setattr(plugin, "_listener", _ranks.listen())
    monkeypatch.setattr(plugin, "_is_off", False)
    monkeypatch.setattr(plugin, "release", lambda: "0.5.23")
    monkeypatch.setattr(plugin, "_add_to", lambda manager: pytest.fail("it is on"))
    threads = threading.active_count()
    plugin._server_is_made(None, types.SimpleNamespace(tokenizer_manager=server_of(**changes)))
    assert [words in line for line in caplog.messages] == [True] and "the plug" in caplog.text
    assert plugin._listener._socket.fileno() == -1 and threading.active_count() == threads


@pytest.mark.parametrize("is_first, link, hooked", [
    (True, None, "server"), (True, "heddle-ranks-0", "server"), (False, None, "server"),
    (False, "heddle-ranks-0", "ranks")])
def test_a_process_below_the_one_with_the_rank_link_is_a_rank(monkeypatch, caplog, is_first, link, hooked):
    """A program may start the server by multiprocessing, and load no plugin itself."""
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setenv("HEDDLE_BROKER", "tcp://127.0.0.1:7700")
    monkeypatch.setenv("HEDDLE_RANKS", link or "")
    if link is None:
        monkeypatch.delenv("HEDDLE_RANKS")
    log = []
    for name, value in (("_listener", None), ("_is_off", False), ("_is_registered", False),
                        ("release", lambda: "0.5.23"), ("_hook_server", lambda: log.append("server")),
                        ("_hook_ranks", lambda: log.append("ranks"))):
        monkeypatch.setattr(plugin, name, value)
    monkeypatch.setattr(plugin.switch, "is_first_process", lambda: is_first)
    monkeypatch.setattr(seams, "missing", lambda which=(): [])
    plugin.register()
    assert log == [hooked] and (plugin._listener is not None) is (hooked == "server")
    if hooked == "server":
        assert os.environ["HEDDLE_RANKS"] == plugin._listener.name != link
        plugin._server_is_made(None, types.SimpleNamespace(tokenizer_manager=server_of(enable_lora=False)))
        assert ["no --enable-lora" in line for line in caplog.messages] == [True]


def test_it_begins_with_the_server_and_ends_with_it(monkeypatch, caplog):
    caplog.set_level("INFO", "sglang.srt.heddle")
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setenv("HEDDLE_BROKER", "tcp://127.0.0.1:7700")
    listener = _ranks.listen()
    monkeypatch.setattr(plugin, "_listener", listener)
    monkeypatch.setattr(plugin, "open_worker", Play)
    manager = server_of(max_loaded_loras=1)
    rank = _ranks.connect(listener.name, {"instance": loading.INSTANCE, "rank": 0, "pid": 5})

    async def run():
        hook = plugin._around("model")
        assert hook(lambda *of: of, 1, "policy") == (1, "policy"), "SGLang's own, before there is a leader"
        await plugin._start(manager)
        told = plugin._leader.status()
        assert hook(None, 1, "policy") == "policy"
        await plugin._stop()
        assert plugin._leader is None
        return told
    told = asyncio.run(run())
    assert (told["ready"], told["kind"], told["ranks"]) == (False, "sglang", [{"rank": 0, "pid": 5}])
    assert "--max-loras-per-batch 2" in caplog.messages[0] and "--max-loaded-loras 1" in caplog.messages[1]
    assert "heddle: on, for policy" in caplog.messages[2]
    assert rank.receive() is None, "it is closed with the server"
    rank.close()
    listener.close()


def test_a_server_whose_worker_was_drained_ends_as_a_service_manager_ends_it(monkeypatch):
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setenv("HEDDLE_BROKER", "tcp://127.0.0.1:7700")
    listener, playing, ended = _ranks.listen(), [], []
    monkeypatch.setattr(plugin, "_listener", listener)
    monkeypatch.setattr(plugin, "open_worker", lambda: playing.append(Play()) or playing[0])
    rank = _ranks.connect(listener.name, {"instance": loading.INSTANCE, "rank": 0, "pid": 5})

    async def run():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ended.append, "SIGTERM")    # as SGLang's own
        await plugin._start(server_of())
        playing[0].left = True
        playing[0].queue.put_nowait(None)
        await until(lambda: ended)
        loop.remove_signal_handler(signal.SIGTERM)
        await plugin._stop()
    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert ended == ["SIGTERM"]
    rank.close()
    listener.close()


@pytest.mark.parametrize("wrong", ["ranks", "worker"])
def test_a_server_whose_leader_cannot_begin_serves_without_it(monkeypatch, caplog, wrong):
    monkeypatch.setenv("HEDDLE_ADAPTERS", "policy")
    monkeypatch.setattr(plugin, "_RANKS_S", 0.1)
    monkeypatch.setattr(plugin, "_is_off", False)
    listener = _ranks.listen()
    monkeypatch.setattr(plugin, "_listener", listener)

    def refuse():
        raise heddle.HeddleError("no UCX")
    monkeypatch.setattr(plugin, "open_worker", refuse)
    if wrong == "worker":
        rank = _ranks.connect(listener.name, {"instance": loading.INSTANCE, "rank": 0, "pid": 5})
    threads = threading.active_count()
    asyncio.run(plugin._start(server_of()))
    assert len(caplog.messages) == 1 and ("0 of 1 ranks" if wrong == "ranks" else "no UCX") in caplog.text
    assert plugin._leader is None and threading.active_count() == threads
    assert listener._socket.fileno() == -1
    if wrong == "worker":
        assert rank.receive() is None
        rank.close()
