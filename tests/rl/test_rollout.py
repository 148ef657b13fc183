# SPDX-License-Identifier: Apache-2.0
"""What the worker of examples/rl_tiny loads where; the model is none."""
import pathlib
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "rl_tiny"))

import rollout


@pytest.fixture
def model(monkeypatch):
    """adapter -> the tag that was loaded into it, and under "serves" the adapter that does."""
    held = {}
    made = types.SimpleNamespace(eval=lambda: made, set_adapter=lambda name: held.update(serves=name))
    monkeypatch.setattr(rollout.task, "policy", lambda names: made)
    monkeypatch.setattr(rollout.heddle.peft, "load_into",
                        lambda _, update, adapter: held.update({adapter: update.tag}))
    return held


def test_two_versions_that_nobody_has_decided_for_and_the_one_that_serves_have_places_of_their_own(model):
    engine = rollout.Engine()

    def load(tag):
        engine.load(types.SimpleNamespace(tag=tag))
        return {tag for name, tag in model.items() if name != "serves"}
    load("v1")
    engine.switch("v1")
    load("v2")
    assert load("v3") == {"v1", "v2", "v3"}
    for tag in ("v2", "v3", "v1"):
        engine.switch(tag)
        assert model[model["serves"]] == tag
    load("v4")
    assert load("v5") == {"v1", "v2", "v3", "v4", "v5"}
    assert load("v6") == {"v1", "v3", "v4", "v5", "v6"} and model[model["serves"]] == "v1", "v2 waits the longest"


@pytest.mark.parametrize("before", [None, "v1"])
def test_a_switch_that_was_overtaken_leaves_what_served_before(model, before):
    engine = rollout.Engine()
    for tag in ("v1", "v2"):
        engine.load(types.SimpleNamespace(tag=tag))
    engine.switch(before)

    def commit(tag, answer):
        update = types.SimpleNamespace(phase="commit", tag=tag, activate=lambda: answer)
        rollout.follow(types.SimpleNamespace(updates=lambda timeout: [update]), engine)
        return engine.tag, model.get(model.get("serves"))
    tag, serves = commit("v2", False)
    assert tag == before and (before is None or serves == before)
    assert commit("v1", True) == ("v1", "v1"), "also where it serves already"


def test_who_lags_generates_once_with_a_version_that_is_two_behind(model, monkeypatch):
    engine = rollout.Engine()
    monkeypatch.setattr(rollout.Engine, "generate", lambda self, group: [self.tag])
    for version in (1, 2, 3, 4):
        engine.load(types.SimpleNamespace(tag=f"policy@{version}:00"))
        engine.switch(f"policy@{version}:00")
        assert rollout.lag(engine, None) == ([] if version < 3 else [f"policy@{version - 2}:00"])
        assert engine.tag == f"policy@{version}:00" and model[model["serves"]] == engine.tag


def test_a_worker_has_a_slot_for_every_adapter_of_the_model(model, monkeypatch):
    asked = {}

    class Worker:
        def __init__(self, *_, **how):
            asked.update(how)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass
    monkeypatch.setattr(rollout.heddle, "Worker", Worker)
    monkeypatch.setattr(rollout, "Desk", lambda _: None)
    monkeypatch.setattr(rollout, "serve", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["rollout", "--broker", "b", "--name", "n", "--board", "d"])
    rollout.main()
    assert asked["slots"] == len(rollout.Engine().adapters) == 5
