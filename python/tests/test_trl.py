# SPDX-License-Identifier: Apache-2.0
"""heddle.trl on TRL's own GRPOTrainer, on the CPU: what the workers serve when generation begins, and what is
refused."""
import hashlib
import os
import pathlib
import sys
import types

import pytest

trl = pytest.importorskip("trl")
os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "rl_tiny"))

import task
import torch
from datasets import Dataset
from peft import get_peft_model_state_dict
from trl import GRPOConfig, GRPOTrainer

import heddle
import heddle.trl
from conftest import ROOT, until
from heddle.engine.names import Template

# serves by itself; says what it serves when asked
WORKER = """
    import hashlib, heddle
    with heddle.Worker(adapters=[sys.argv[1]], name=sys.argv[2], apply="auto") as w:
        print(json.dumps("ready"), flush=True)
        for _ in sys.stdin:
            with w.acquire(sys.argv[1]) as a:
                told = {"version": a.version, "digest": a.digest, "step": a.step,
                        "tensors": {k: hashlib.sha256(t.data).hexdigest() for k, t in a.tensors.items()}}
            print(json.dumps(told), flush=True)
"""
# loads nothing from the version named on, and says why
CHOOSY = """
    import heddle
    with heddle.Worker(adapters=[sys.argv[1]], name=sys.argv[2], apply="app") as w:
        print(json.dumps("ready"), flush=True)
        for u in w.updates():
            if u.phase == "arrived":
                u.reject("it does not fit") if u.version >= int(sys.argv[3]) else u.staged()
            elif u.phase == "commit":
                u.activate()
"""


def make(rollout_func, folder, steps=3, use_peft=True, **how):
    """A trainer of two prompts a step, four samples each."""
    def right(prompts, completions, **_):
        return [task.reward(prompt, completion) + len(completion) / 100
                for prompt, completion in zip(prompts, completions, strict=True)]
    config = GRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, max_steps=steps, num_generations=4,
                        per_device_train_batch_size=8,
                        per_device_eval_batch_size=8, max_completion_length=task.LENGTH, learning_rate=1e-2,
                        beta=0.0, gradient_checkpointing=False,
                        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, **how)
    model, rows = task.policy(), Dataset.from_dict({"prompt": task.prompts(4 * steps, 1)})
    return GRPOTrainer(model=model if use_peft else model.unload(), reward_funcs=right, args=config,
                       train_dataset=rows, eval_dataset=rows.select([0, 1]),
                       processing_class=task.tokenizer(), rollout_func=rollout_func)


def samples(prompts, trainer):
    words = task.tokenizer()
    ids = [words(prompt)["input_ids"] for prompt in prompts]
    made = [task.sample(trainer.model, tokens, 1, seed=i)[0] for i, tokens in enumerate(ids)]
    return {"prompt_ids": ids, "completion_ids": [m[0] for m in made], "logprobs": [m[1] for m in made]}


def adapter_of(model):
    """What PEFT would write, as sha256."""
    return {name: hashlib.sha256(t.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
            for name, t in get_peft_model_state_dict(model).items()}


class Witness:
    """A rollout_func that asks a worker, at that moment, what it serves, and looks at what the trainer
    has."""

    def __init__(self, worker):
        self.worker, self.seen = worker, []

    def __call__(self, prompts, trainer):
        self.worker.say("?")
        self.seen.append((self.worker.json(), adapter_of(trainer.model), trainer.heddle_sync.last))
        return samples(prompts, trainer)


def worker_of(program, adapter, code=WORKER, name="w1", *args):
    worker = program(code, adapter, name, *args)
    assert worker.json() == "ready"
    with heddle.Admin() as admin:
        until(lambda: any(w.name == name and w.state == "ready" for w in admin.workers()),
              "the worker has joined")
    return worker


def test_each_generation_is_served_by_the_weights_of_the_trainer(broker, adapter, program, tmp_path):
    witness = Witness(worker_of(program, adapter))
    trainer = make(witness, tmp_path)
    with heddle.Publisher(adapter=adapter) as publisher:
        sync = heddle.trl.attach(trainer, publisher)
        trainer.train()
        assert [told["version"] for told, _, _ in witness.seen] == [1, 2, 3]
        for step, (told, trained, pushed) in enumerate(witness.seen):
            assert told["tensors"] == trained
            assert told["digest"] == pushed.version.digest == pushed.live.digest
            assert told["step"] == pushed.step == step
        assert len({told["digest"] for told, _, _ in witness.seen}) == 3          # it trained
        # the last step's weights, which no generation asked for
        assert sync.last.version.version == 4 and sync.last.step == 3
        witness.worker.say("?")
        assert witness.worker.json()["tensors"] == adapter_of(trainer.model)
        trainer.evaluate()
        told, trained, _ = witness.seen[-1]
        assert told["version"] == 4 and told["tensors"] == trained and sync.last.version.version == 4
        trainer.evaluate()
        # nothing has changed: nothing was published
        assert witness.seen[-1][0]["version"] == 4


def test_versions_are_published_for_generations_not_for_steps(broker, adapter, program, tmp_path):
    """num_iterations=2: TRL uses every batch of samples twice."""
    witness = Witness(worker_of(program, adapter))
    trainer = make(witness, tmp_path, steps=4, num_iterations=2)
    with heddle.Publisher(adapter=adapter) as publisher:
        heddle.trl.attach(trainer, publisher)
        trainer.train()
        assert [(told["version"], told["step"]) for told, _, _ in witness.seen] == [(1, 0), (2, 2)]
        assert all(told["tensors"] == trained for told, trained, _ in witness.seen)


def test_a_refused_version_ends_training_and_changes_nothing(broker, adapter, program, tmp_path):
    worker_of(program, adapter, CHOOSY, "choosy", 2)
    trainer = make(samples, tmp_path)
    with heddle.Publisher(adapter=adapter) as publisher, heddle.Admin() as admin:
        sync = heddle.trl.attach(trainer, publisher)
        with pytest.raises(heddle.RolloutFailed) as failed:
            trainer.train()
        assert failed.value.version == 2 and "it does not fit" in str(failed.value)
        assert trainer.state.global_step == 1 and sync.last.version.version == 1
        assert [row.active.version for row in admin.adapters() if row.name == adapter] == [1]


def test_nobody_to_serve_ends_in_time(broker, adapter, tmp_path):
    trainer = make(samples, tmp_path)
    with heddle.Publisher(adapter=adapter) as publisher:
        heddle.trl.attach(trainer, publisher, timeout=0.5)
        with pytest.raises(heddle.Deadline):
            trainer.train()


def test_another_run_under_the_name_is_noticed(broker, adapter, program, tmp_path):
    """The broker has step 2 of this adapter; a trainer that begins at 0 is another one, or the same one
    again."""
    worker = worker_of(program, adapter)
    with heddle.Publisher(adapter=adapter) as publisher:
        heddle.trl.attach(first := make(samples, tmp_path), publisher)
        first.train()
        again = make(samples, tmp_path)
        sync = heddle.trl.attach(again, publisher)
        with pytest.raises(heddle.Conflict) as e:
            again.train()
        assert e.value.code == "step_back"
        sync.detach()
        heddle.trl.attach(again, publisher, allow_step_back=True)
        again.train()
        worker.say("?")
        # four of each run: three generations, and the last step
        assert worker.json()["version"] == 8


def test_detach_gives_trl_back(broker, adapter, program, tmp_path):
    worker = worker_of(program, adapter)
    trainer = make(samples, tmp_path)
    before = list(trainer.callback_handler.callbacks)
    with heddle.Publisher(adapter=adapter) as publisher:
        heddle.trl.attach(trainer, publisher).detach()
        assert trainer.rollout_func is samples and trainer.callback_handler.callbacks == before
        assert not hasattr(trainer, "heddle_sync")
        trainer.train()
        with heddle.Admin() as admin:
            assert all(row.name != adapter or row.newest is None for row in admin.adapters())
        heddle.trl.attach(trainer, publisher)
        trainer.evaluate()
        worker.say("?")
        assert worker.json()["tensors"] == adapter_of(trainer.model)


# -- the bound on the lag, against a publisher that only writes down what it is asked ------------------------

class Recorder:
    def __init__(self, states=()):
        self.asked, self.count, self.states = [], 0, dict(states)

    def publish(self, model, *, step, deadline, allow_step_back):
        self.count += 1
        number = self.count

        def wait(phase, timeout):
            self.asked.append((self.count, number, phase))
            if number in self.states:
                error = heddle.RolloutFailed("no", code="version_failed", exit=1)
                error.rollout = types.SimpleNamespace(state=self.states[number])
                raise error
        return types.SimpleNamespace(version=number, step=step, wait=wait)


def pushes(recorder, max_lag, count):
    trainer = types.SimpleNamespace(model=None, state=types.SimpleNamespace(global_step=0))
    sync = heddle.trl.Sync(trainer, recorder, max_lag)
    return [sync.push() for _ in range(count)]


@pytest.mark.parametrize("max_lag, waited", [(0, [1, 2, 3, 4]), (1, [1, 1, 2, 3]), (2, [1, 1, 1, 2])])
def test_who_may_be_how_far_behind(max_lag, waited):
    recorder = Recorder()
    live = [pushed.live.version for pushed in pushes(recorder, max_lag, 4)]
    assert live == waited and recorder.asked == [(newest, number, "active")
                                                 for newest, number in zip([1, 2, 3, 4], waited, strict=True)]


def test_without_a_bound_nothing_is_waited_for():
    recorder = Recorder()
    assert [pushed.live for pushed in pushes(recorder, None, 3)] == [None] * 3 and recorder.asked == []


@pytest.mark.parametrize("state", ["superseded", "retired"])
def test_an_overtaken_version_gives_its_place_to_the_next(state):
    recorder = Recorder({2: state})
    assert [pushed.live.version for pushed in pushes(recorder, 2, 5)] == [1, 1, 1, 3, 3]


@pytest.mark.parametrize("states, count", [({1: "superseded"}, 1), ({1: "failed"}, 2)])
def test_what_did_not_reach_the_workers_raises(states, count):
    with pytest.raises(heddle.RolloutFailed):
        pushes(Recorder(states), 1 if count == 2 else 0, count)


def test_all_that_a_sync_tells_of_is_public():
    """What the public functions take and give, of this module, has a public name."""
    kinds = {name for name, of in vars(heddle.trl).items() if isinstance(of, type)
             and of.__module__ == "heddle.trl" and name[0] != "_"}
    assert kinds <= set(heddle.trl.__all__) and all(hasattr(heddle.trl, name) for name in heddle.trl.__all__)


# -- server mode ---------------------------------------------------------------------------------------------

def test_server_mode_asks_by_version_and_sends_no_weights(broker, adapter, program):
    """TRL's own VLLMGeneration and VLLMClient, against an HTTP double; the NCCL group, which wants a GPU, is
    the only thing left out."""
    script = (ROOT / "python" / "tests" / "trl_server_mode.py").read_text()
    told = program(script, adapter,
                   env={**os.environ, "RL_TINY": str(ROOT / "examples" / "rl_tiny"),
                        "HEDDLE_TESTS": str(ROOT / "python" / "tests")}).json(timeout=300)
    assert told["asked"] == [f"{adapter}@{n}" for n in (1, 2, 3)]                  # never the base model
    # what the worker had active when the request came
    assert told["served"] == [1, 2, 3]
    assert told["paths"] == ["/health", "/server_info", "/v1/completions", "/v1/models"]
    assert told["steps"] == 3 and told["given_back"] == ["base", True]
    assert told["last"] == [4, 3, 4]            # of the last step, and active when training has ended


# -- refusals ------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def plain_trainer(tmp_path_factory):
    return make(samples, tmp_path_factory.mktemp("trl"))


def refused(trainer, *args, **how):
    with pytest.raises(heddle.UsageError) as e:
        heddle.trl.attach(trainer, types.SimpleNamespace(adapter="policy"), *args, **how)
    assert e.value.code == "usage" and "cannot attach" in e.value.message
    return e.value


@pytest.mark.parametrize("release", ["1.15.2", "1.17.0", "2.0.0.dev0", "1.1"])
def test_an_untried_release_is_refused_with_the_reason(plain_trainer, monkeypatch, release):
    monkeypatch.setattr(trl, "__version__", release)
    error = refused(plain_trainer)
    assert error.found == f"TRL {release}" and "1.16" in error.expected and error.hint
    assert "was not tried" in error.message
    assert plain_trainer.rollout_func is samples


@pytest.mark.parametrize("release", ["1.16.0", "1.16.3"])
def test_the_tried_releases_are_taken(plain_trainer, monkeypatch, release):
    monkeypatch.setattr(trl, "__version__", release)
    heddle.trl.attach(plain_trainer, types.SimpleNamespace(adapter="policy")).detach()


@pytest.mark.parametrize("max_lag", [-1, 1.5, "1", True])
def test_a_lag_that_is_none_is_refused(plain_trainer, max_lag):
    assert refused(plain_trainer, max_lag).found == repr(max_lag)


def test_what_is_no_grpo_trainer_is_refused():
    assert refused(object()).found == "object"


def test_a_second_attach_is_refused(plain_trainer):
    sync = heddle.trl.attach(plain_trainer, types.SimpleNamespace(adapter="policy"))
    try:
        assert "detach" in refused(plain_trainer).hint
    finally:
        sync.detach()


def test_a_trainer_without_an_adapter_is_refused(tmp_path):
    assert "peft_config" in refused(make(samples, tmp_path, use_peft=False)).hint


def test_a_trainer_that_generates_by_itself_is_refused(tmp_path):
    assert refused(make(None, tmp_path)).found == "neither"


def test_an_engine_inside_the_trainer_is_refused(plain_trainer, monkeypatch):
    monkeypatch.setattr(plain_trainer, "use_vllm", True)
    monkeypatch.setattr(plain_trainer, "vllm_mode", "colocate")
    assert "base model" in refused(plain_trainer).message


def synced_name(plain_trainer, monkeypatch, served, version):
    """What TRL's client asks for after a sync in server mode."""
    client = types.SimpleNamespace(model="base")
    monkeypatch.setattr(plain_trainer, "use_vllm", True)
    monkeypatch.setattr(plain_trainer, "vllm_mode", "server")
    monkeypatch.setattr(plain_trainer, "vllm_generation",
                        types.SimpleNamespace(sync_weights=print, vllm_client=client), raising=False)
    publisher = types.SimpleNamespace(adapter=version.adapter, publish=lambda *_, **__: version)
    sync = heddle.trl.attach(plain_trainer, publisher, max_lag=None, served=served)
    plain_trainer.vllm_generation.sync_weights()
    name = client.model
    sync.detach()
    return name


@pytest.mark.parametrize("served",
                         ["{adapter}@{version}", "{adapter}@{version}-{digest}", "{adapter}-v{step}",
                          "rl/{version}", "{digest}.{version:04}"])
def test_trl_asks_for_the_name_that_the_plug_serves(plain_trainer, monkeypatch, served):
    version = types.SimpleNamespace(adapter="policy", version=3, digest="h1:3f9a1c20d4e1" + "0" * 52,
                                    tag="policy@3:3f9a1c20d4e1", step=400)
    told = Template(served, ["policy"]).name(version.adapter, version.version, version.digest, version.step)
    assert synced_name(plain_trainer, monkeypatch, served, version) == told


@pytest.mark.parametrize("served",
                         ["policy", "{adapter}", "{nobody}@{version}", "{version", "{0}", "{tag}",
                          "{version} x"])
def test_a_name_that_tells_no_versions_apart_is_refused(plain_trainer, monkeypatch, served):
    monkeypatch.setattr(plain_trainer, "use_vllm", True)
    monkeypatch.setattr(plain_trainer, "vllm_mode", "server")
    monkeypatch.setattr(plain_trainer, "vllm_generation", types.SimpleNamespace(sync_weights=print),
                        raising=False)
    assert served in refused(plain_trainer, served=served).found
