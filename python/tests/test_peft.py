# SPDX-License-Identifier: Apache-2.0
"""Live PeftModels: what is published is what PEFT would save, and what is loaded computes the same, bit for
bit.
"""
import json
import pathlib
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import heddle
import models
from conftest import Process, until

LOADER = """
    sys.path.insert(0, sys.argv[1])
    import heddle, torch, models
    for line in sys.stdin:
        adapter, kind, dtype, path = line.split()
        model = models.lora(kind, dtype)
        models.stir(model, 99)                       # whatever is in it, the version replaces
        with heddle.Worker(adapters=[adapter], name="loader", apply="auto") as w:
            print(json.dumps({"ready": adapter}), flush=True)
            for u in w.updates():
                if u.phase != "active":
                    continue
                with w.acquire(adapter) as a:
                    heddle.peft.load_into(model, a)
                    torch.save(models.logits(model), path)
                    print(json.dumps({"tag": a.tag}), flush=True)
                if u.version == 2:
                    sys.stdin.readline()             # the publisher has heard of it
                    break
"""


@pytest.fixture(scope="module")
def loader(broker, tmp_path_factory):
    """A process that loads what it receives into fresh models of its own."""
    folder = tmp_path_factory.mktemp("loader")
    path = folder / "loader.py"
    path.write_text("import json, sys\n" + textwrap.dedent(LOADER))
    it = Process([sys.executable, str(path), str(pathlib.Path(models.__file__).parent)],
                 stderr=(folder / "log").open("wb"))
    yield it
    it.end()


def saved(model, folder, **how):
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **how)
    return folder


@pytest.mark.parametrize("kind,dtype",
                         [(k, "f32") for k in models.KINDS] + [("plain", "bf16"), ("plain", "f16"),
                                                               ("dora", "bf16")])
def test_every_kind_round_trips_bit_for_bit(broker, loader, adapter, tmp_path, kind, dtype):
    model = models.lora(kind, dtype)
    loader.say(f"{adapter} {kind} {dtype} {tmp_path / 'logits'}")
    assert loader.json()["ready"] == adapter
    with heddle.Publisher(adapter=adapter) as pub:
        folder = saved(model, tmp_path / "saved")
        config = (folder / "adapter_config.json").read_bytes()
        ver = pub.publish(model, step=1, config=config)
        assert ver.digest == heddle.safetensors.check(folder).digest
        assert ver.wait(min=1, timeout=60).active_count == 1
        assert loader.json()["tag"] == ver.tag
        assert torch.equal(torch.load(tmp_path / "logits"), models.logits(model))
        again = pub.publish(models.stir(model, 2), step=2, config=config)
        assert again.version == 2 and again.digest != ver.digest
        assert again.digest == heddle.safetensors.check(saved(model, tmp_path / "again")).digest
        again.wait(min=1, timeout=60)
        loader.say("go on")
        assert loader.json()["tag"] == again.tag
        assert torch.equal(torch.load(tmp_path / "logits"), models.logits(model))


class Packed(torch.Tensor):
    """Quantised weights: bytes, and a list of all that was done with them."""
    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_quantised_base_is_never_touched(broker, adapter, tmp_path):
    """Not read, not copied, not so much as asked for its type: by publish and load_into, of a plan that is
    made and of one that is known.
    """
    model = models.lora()
    packed = []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and not layer.weight.requires_grad:
            values = torch.randint(-128, 128, layer.weight.shape, dtype=torch.int8).as_subclass(Packed)
            layer.weight = torch.nn.Parameter(values, requires_grad=False)
            packed.append((layer.weight, values.as_subclass(torch.Tensor).clone()))
    assert len(packed) == 2 * 7 + 1 and all(type(w) is Packed and w.dtype is torch.int8 for w, _ in packed)
    folder = saved(model, tmp_path / "saved")
    Packed.seen.clear()
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto") as w:
        first = pub.publish(model, config=(folder / "adapter_config.json").read_bytes())
        assert Packed.seen == [] and first.digest == heddle.safetensors.check(folder).digest
        first.wait(min=1, timeout=60)
        with w.acquire(adapter) as a:
            assert len(a.tensors) == 16 and all(".lora_" in name for name in a.tensors)
            models.stir(model, 2)
            Packed.seen.clear()
            assert pub.publish(model).created
            heddle.peft.load_into(model, a)
    assert Packed.seen == []
    assert all(torch.equal(w.as_subclass(torch.Tensor), was) for w, was in packed)


def test_the_config_is_what_peft_writes_with_sets_sorted(tmp_path):
    from heddle import _model
    for kind in models.KINDS:
        for how in ({}, {"task_type": None}):
            model = models.lora(kind, **how)
            ours = json.loads(_model.config_of(model, "default"))
            theirs = json.loads((saved(model,
                                       tmp_path / f"{kind}{len(how)}") / "adapter_config.json").read_bytes())
            assert ({k: sorted(v) if isinstance(v, list) else v
                     for k, v in theirs.items()} == {k: sorted(v) if isinstance(v, list) else v
                                                     for k, v in ours.items()})
            assert not isinstance(ours["target_modules"],
                                  list) or ours["target_modules"] == sorted(ours["target_modules"])


def test_a_change_of_structure_is_noticed(broker, adapter, tmp_path):
    from peft import LoraConfig
    model = models.lora()
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        first = pub.publish(model)
        from heddle import _model
        plan, is_new = _model.plan_of(model, "default")
        assert not is_new and plan.table.rows

        def same_as_saved(what):
            folder = saved(model, tmp_path / what)
            ver = pub.publish(model, config=(folder / "adapter_config.json").read_bytes())
            assert ver.digest == heddle.safetensors.check(folder).digest, what
            return ver
        layer = model.base_model.model.model.layers[0].self_attn.q_proj
        layer.lora_A["default"].weight = torch.nn.Parameter(torch.randn_like(layer.lora_A["default"].weight))
        assert same_as_saved("a parameter was replaced").digest != first.digest
        layer.lora_A["default"].weight.data = torch.randn_like(layer.lora_A["default"].weight)
        same_as_saved("its data were replaced")
        layer.lora_A["default"].weight.data = layer.lora_A["default"].weight.data.to(torch.float16)
        same_as_saved("a type changed")
        model.delete_adapter("default")
        model.add_adapter("default",
                          LoraConfig(r=4, lora_alpha=4, target_modules=["k_proj"], task_type="CAUSAL_LM"))
        assert same_as_saved("another adapter has the name").tensor_count == 4


def test_a_hint_names_the_call_that_was_made(broker, adapter):
    from peft import get_peft_model_state_dict
    model = models.lora()
    tensors = get_peft_model_state_dict(model)
    with heddle.Publisher(adapter=adapter) as pub:
        for call, named in (
                (lambda: pub.publish(model, peft_adapter="other"), "publish(model, peft_adapter="),
                (lambda: heddle.peft.load_into(model, tensors, adapter="other"),
                 "load_into(model, a, adapter=")):
            with pytest.raises(heddle.NotFound) as e:
                call()
            assert named in e.value.hint and (e.value.expected, e.value.found) == ("default", "other")
        with pytest.raises(heddle.UsageError) as e:
            pub.publish(model.base_model.model)
        assert "publish_tensors" in e.value.hint
    with pytest.raises(heddle.UsageError) as e:
        heddle.peft.load_into(model.base_model.model, tensors)
    assert "publish" not in e.value.hint and "get_peft_model" in e.value.hint


def test_a_parameter_without_memory_is_refused_by_name(broker, adapter):
    """Offloaded, its storage freed: its place in the region holds an older version's bytes, which are
    nobody's wish.
    """
    model = models.lora()
    with heddle.Publisher(adapter=adapter) as pub:
        for step in range(3):
            pub.publish(models.stir(model, step), step=step)
        models.stir(model, 3)
        weight = model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["default"].weight
        kept = weight.data.clone()
        weight.data.untyped_storage().resize_(0)
        with pytest.raises(heddle.UsageError,
                           match=r"layers\.0\.self_attn\.q_proj\.lora_B\.weight has no memory") as e:
            pub.publish(model, step=3)
        assert e.value.code == "usage" and e.value.hint
        weight.data.untyped_storage().resize_(kept.nbytes)
        weight.data.copy_(kept)
        assert pub.publish(model, step=3).version == 4


@pytest.mark.parametrize("is_known", [False, True])
def test_what_torch_copies_is_written_too(broker, adapter, tmp_path, is_known):
    """Parameters with strides of their own go another way than the rest; in a region that is known again as
    well.
    """
    model = models.lora()
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    shape = reversed(layer.lora_A["default"].weight.shape)
    layer.lora_A["default"].weight = torch.nn.Parameter(torch.randn(*shape).t())
    with heddle.Publisher(adapter=adapter) as pub:
        for step in range(6 if is_known else 1):
            models.stir(model, step)
            folder = saved(model, tmp_path / str(step))
            ver = pub.publish(model, step=step, config=(folder / "adapter_config.json").read_bytes())
            assert not layer.lora_A["default"].weight.is_contiguous()
            assert ver.digest == heddle.safetensors.check(folder).digest


def test_another_adapter_of_the_model(broker, adapter, tmp_path):
    from peft import LoraConfig
    model = models.lora()
    model.add_adapter("other",
                      LoraConfig(r=2, lora_alpha=4, target_modules=["k_proj"], task_type="CAUSAL_LM"))
    folder = saved(model, tmp_path / "two") / "other"
    with heddle.Publisher(adapter=adapter) as pub:
        ver = pub.publish(model, peft_adapter="other", config=(folder / "adapter_config.json").read_bytes())
        assert ver.digest == heddle.safetensors.check(folder).digest
        with pytest.raises(heddle.NotFound, match="no adapter 'third'") as e:
            pub.publish(model, peft_adapter="third")
        assert "default other" in e.value.expected


def test_types_that_are_no_lora_are_named(broker, adapter):
    from peft import IA3Config, get_peft_model
    model = get_peft_model(models.base(), IA3Config(target_modules=["k_proj", "down_proj"],
                                                    feedforward_modules=["down_proj"]))
    with heddle.Publisher(adapter=adapter) as pub:
        with pytest.raises(heddle.BadAdapter, match="IA3") as e:
            pub.publish(model)
        assert (e.value.code, e.value.found) == ("unsupported_peft_type", "IA3")
        with pytest.raises(heddle.UsageError, match="not a PeftModel"):
            pub.publish(models.base())
        assert heddle.Admin().versions(adapter) == ()


def test_the_loop_may_step_at_once(broker, adapter):
    """What is published is what the model was when publish was called, whatever follows."""
    model = models.lora()
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto",
                                                                 name="step-at-once") as w:
        seen = {}
        for step in range(20):
            before = {k: v.clone() for k, v in __import__("peft").get_peft_model_state_dict(model).items()}
            ver = pub.publish(model, step=step)
            models.stir(model, 100 + step)
            ver.wait(min=1, timeout=60)
            with w.acquire(adapter) as a:
                assert a.step == step
                for name, t in a.tensors.items():
                    assert torch.equal(t.torch(), before[name])
                del t
            seen[ver.digest] = step
        assert len(seen) == 20


def test_nothing_of_the_model_is_changed(broker, adapter):
    model = models.lora("dora")
    before = {k: (v.data_ptr(), v.clone()) for k, v in model.state_dict().items()}
    config = dict(model.peft_config["default"].__dict__)
    with heddle.Publisher(adapter=adapter) as pub:
        pub.publish(model)
    after = model.state_dict()
    assert list(after) == list(before) and all(after[k].data_ptr() == at and torch.equal(after[k], v)
                                               for k, (at, v) in before.items())
    assert model.peft_config["default"].__dict__ == config and all(p.requires_grad == ("lora" in n)
                                                                   for n, p in model.named_parameters())


def test_wrapped_models(broker, adapter):
    model = models.lora()
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        digest = pub.publish(model).digest
        assert pub.publish(torch.compile(model)).digest == digest

        class Wrapped(torch.nn.Module):          # as DistributedDataParallel does
            def __init__(self, module):
                super().__init__()
                self.module = module

        class Forwarding(Wrapped):               # as DeepSpeed's engine does
            def __getattr__(self, name):
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    return getattr(super().__getattr__("module"), name)
        for wrapped in (Wrapped(model), Forwarding(model), torch.compile(Wrapped(model))):
            assert pub.publish(wrapped).digest == digest


# -- load_into -----------------------------------------------------------------------------------------------

def changed(model, call, error, match):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(error, match=match) as e:
        call()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "something was loaded"
    return e.value


def test_load_into_is_all_or_nothing():
    from peft import get_peft_model_state_dict
    model = models.lora()
    tensors = {k: v + 1 for k, v in get_peft_model_state_dict(model).items()}
    last = list(tensors)[-1]
    changed(model, lambda: heddle.peft.load_into(model, {**tensors, last: tensors[last].T.contiguous()}),
            heddle.BadAdapter, "another shape")
    changed(model, lambda: heddle.peft.load_into(model, {k: v for k, v in tensors.items() if k != last}),
            heddle.BadAdapter, "not those")
    changed(model, lambda: heddle.peft.load_into(model, {**tensors, "more": tensors[last]}),
            heddle.BadAdapter, "not those")
    changed(model, lambda: heddle.peft.load_into(model, {**tensors, last: tensors[last].double()}),
            heddle.UsageError, "cannot hold")
    changed(model, lambda: heddle.peft.load_into(model, tensors, adapter="none"), heddle.NotFound,
            "no adapter")
    objects = [id(p) for p in model.parameters()]
    heddle.peft.load_into(model, tensors)
    assert (all(torch.equal(v, tensors[k]) for k, v in get_peft_model_state_dict(model).items())
            and objects == [id(p) for p in model.parameters()])
    heddle.peft.load_into(model, {k: (v - 1).to(torch.bfloat16) for k, v in tensors.items()})
    assert all(torch.equal(v, (tensors[k] - 1).to(torch.bfloat16).float())
               for k, v in get_peft_model_state_dict(model).items())
    heddle.peft.load_into(model, {k: v.numpy() for k, v in tensors.items()})
    assert all(torch.equal(v, tensors[k]) for k, v in get_peft_model_state_dict(model).items())
    model.merge_adapter()
    changed(model, lambda: heddle.peft.load_into(model, tensors), heddle.UsageError, "merged")


def test_load_into_refuses_another_meaning(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto",
                                                                 name="meaning") as w:
        pub.publish(models.lora(lora_alpha=32)).wait(min=1, timeout=60)
        model = models.lora()
        with w.acquire(adapter) as a:
            e = changed(model, lambda: heddle.peft.load_into(model, a), heddle.BadAdapter,
                        "another lora_alpha")
        assert (e.expected, e.found) == ("lora_alpha = 16", "lora_alpha = 32")
        until(lambda: not w.stats()["held"], "the hold is released")
