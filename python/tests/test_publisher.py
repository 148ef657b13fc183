# SPDX-License-Identifier: Apache-2.0
"""What a Publisher takes, and what its versions and waits tell."""
import copy
import dataclasses
import json
import pickle
import signal
import threading
import time

import pytest

import heddle
import heddle.safetensors
import heddle.tensors
from conftest import FIXTURES, Broker, at_most, until

np = pytest.importorskip("numpy")
CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
PAIR = {KEY.format("A"): np.ones((8, 64), "float32"), KEY.format("B"): np.ones((64, 8), "float32")}


@pytest.fixture
def pub(broker, adapter):
    with heddle.Publisher(adapter=adapter) as it:
        yield it


# -- arguments -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("how,named", [
    ({"max_rate": -1}, "max_rate"), ({"max_rate": 0}, "max_rate"), ({"max_rate": 1.5e9}, "max_rate"),
    ({"max_rate": 2**70}, "max_rate"),
    ({"max_rate": True}, "max_rate"), ({"adapter": 5}, "text"), ({"activation": ["all"]}, "activation"),
    ({"timeout": "5"}, "timeout"),
    ({"writer": 5}, "text")], ids=str)
def test_a_publisher_of_wrong_arguments(broker, adapter, how, named):
    with pytest.raises(heddle.UsageError, match=named):
        heddle.Publisher(**{"adapter": adapter, **how})


@pytest.mark.parametrize("how,named", [
    ({"step": 2**70}, "step"), ({"step": "1"}, "step"), ({"step": True}, "step"), ({"step": -2}, "step"),
    ({"meta": "a=b"}, "meta"),
    ({"meta": [("a", "b")]}, "meta"), ({"request_id": 5}, "text"), ({"deadline": "5"}, "deadline"),
    ({"tensors": list(PAIR.items())}, "tensors"), ({"tensors": {5: PAIR[KEY.format("A")]}}, "names"),
    ({"config": {(1, 2): 3}}, "adapter_config"),
    ({"config": ["r"]}, "adapter_config")], ids=str)
def test_a_version_of_wrong_arguments(pub, how, named):
    with pytest.raises(heddle.UsageError, match=named):
        pub.publish_tensors(**{"tensors": PAIR, "config": CONFIG, **how})
    assert pub.publish_tensors(PAIR, CONFIG).created, "and the publisher is whole"


def test_what_is_interrupted_when_it_was_begun_is_given_back(pub, monkeypatch):
    """A handler's exception finds the library done, and its publication in nobody's hands."""
    call, is_first = pub._call, [True]

    def interrupted(of):
        value = call(of)
        if is_first and is_first.pop():         # the first to end: begin's
            raise KeyboardInterrupt
        return value
    with monkeypatch.context() as patched:
        patched.setattr(pub, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pub.publish_tensors(PAIR, CONFIG)
    assert pub.publish_tensors(PAIR, CONFIG).created


@pytest.mark.parametrize("how,named", [
    ({"min": "1"}, "min"), ({"min": -1}, "min"), ({"min": 1.5}, "min"), ({"quorum": "none"}, "none"),
    ({"quorum": "\u00b2"}, "quorum"),
    ({"quorum": -1}, "quorum"), ({"quorum": "101%"}, "quorum"), ({"quorum": "9" * 5000}, "quorum"),
    ({"phase": ["active"]}, "phase"),
    ({"timeout": "1"}, "timeout")], ids=lambda v: str(v)[:40])
def test_a_wait_of_wrong_arguments(pub, how, named):
    ver = pub.publish_tensors(PAIR, CONFIG)
    with pytest.raises(heddle.UsageError, match=named):
        ver.wait(**{"timeout": 0.1, **how})
    with pytest.raises(heddle.UsageError):
        pub.report("1")
    with pytest.raises(heddle.UsageError):
        pub.on_progress(5)


# -- names ---------------------------------------------------------------------------------------------------

A, B = KEY.format("A"), KEY.format("B")
HERE = "base_model.model.model.layers.0.self_attn.q_proj."


@pytest.mark.parametrize("names,says", [
    ([HERE + "lora_A.default.weight", HERE + "lora_B.default.weight"], "live model"),
    (["layers.0.q_proj.lora_A", "layers.0.q_proj.lora_B"], r"lora_A does not end in \.weight"),
    ([A], "without its lora_B"), ([B], "without its lora_A"),
    ([A, HERE + "lora_B.bias"], "without its lora_B"), (["lora_A.weight", "lora_B.weight"], "no module"),
    (["q_proj.lora_A.weight", "q_proj.lora_B.weight"], "no module"),
    ([HERE + "lora_embedding_A"], "without its lora_embedding_B"),
    ([HERE + "lora_embedding_A.default", HERE + "lora_embedding_B.default"], "live model"),
    ([A, B, HERE + "lora_magnitude_vector.default.weight"], "live model"),
    ([A, B, "base_model.model.model.norm.modules_to_save.default.weight"], "live model")],
                         ids=lambda v: v[0] if isinstance(v, list) else "")
def test_names_of_a_live_model_are_refused(pub, names, says):
    with pytest.raises(heddle.BadAdapter, match=says) as e:
        pub.publish_tensors({name: np.ones((8, 8), "float32") for name in names}, CONFIG)
    assert e.value.code == "bad_adapter" and e.value.phase == "pack"
    assert "get_peft_model_state_dict" in e.value.hint


@pytest.mark.parametrize("kind", ["plain", "dora", "bias_all", "lora_bias", "modules_to_save", "embeddings",
                                  "target_parameters", "regex"])
def test_what_peft_gives_is_taken(pub, kind):
    peft = pytest.importorskip("peft")
    import models
    model = models.lora(kind)
    given = peft.get_peft_model_state_dict(model)
    config = b'{"peft_type": "LORA"}'
    assert pub.publish_tensors(given, config).digest == pub.publish(model, config=config).digest
    with pytest.raises(heddle.BadAdapter):
        pub.publish_tensors({k: v for k, v in model.state_dict().items() if "lora_" in k}, CONFIG)


# -- the table that is kept ----------------------------------------------------------------------------------

def saved_digest(folder, arrays):
    """What the same tensors have as a file."""
    from safetensors.numpy import save_file
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    save_file({name: np.ascontiguousarray(a, a.dtype.newbyteorder("=")) for name, a in arrays.items()},
              folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return heddle.safetensors.check(folder).digest


def test_tensors_of_the_same_shapes_are_described_once(pub, monkeypatch):
    pub.publish_tensors(PAIR, CONFIG)
    monkeypatch.setattr(heddle.tensors.Table, "__init__", lambda *_: pytest.fail("the table was made again"))
    for n in range(2, 5):
        ver = pub.publish_tensors({name: np.full_like(a, n) for name, a in PAIR.items()}, CONFIG)
        assert ver.created and ver.version == n


def as_torch(given, names):
    """These of them as torch's, transposed in memory where they have two dimensions."""
    torch = pytest.importorskip("torch")
    live = {name: torch.tensor(np.ascontiguousarray(given[name], given[name].dtype.newbyteorder("=")))
            for name in names}
    return {**given, **{name: t.t().contiguous().t() if t.dim() == 2 else t for name, t in live.items()}}


@pytest.mark.parametrize("kind", ["numpy", "torch", "mixed"])
def test_whatever_changes_from_call_to_call_is_seen(pub, tmp_path, kind):
    """One publisher, the same names: each version has the digest that its tensors have as a file."""
    rng = np.random.default_rng(7)
    a, b, wide = (rng.random(shape, "float32") for shape in ((8, 64), (64, 8), (64, 16)))
    read_only = a + 1
    read_only.flags.writeable = False
    calls = {
        "first": {A: a, B: b}, "other values": {A: a + 2, B: b}, "other order": {B: b + 1, A: a},
        "other names": {A.replace("q_proj", "v_proj"): b, B.replace("q_proj", "v_proj"): a},
        "other type": {A: a.astype("float16"), B: b}, "other shape": {A: a[:4], B: wide[:, :4]},
        "strides": {A: np.asfortranarray(a + 3), B: wide[:, ::2]}, "backwards": {A: a[::-1], B: b[:, ::-1]},
        "byte order": {A: (a + 4).astype(">f4"), B: b}, "read-only": {A: read_only, B: b},
        "one more": {A: a, B: b, HERE + "lora_B.bias": b[:, 0]},
        "an empty one": {A: a, B: b, HERE + "lora_B.bias": b[:0, 0]}, "first again": {A: a - 1, B: b}}
    for what, given in calls.items():
        want = saved_digest(tmp_path / what, given)
        live = {"numpy": [], "torch": list(given), "mixed": list(given)[:1]}[kind]
        sent = as_torch(given, live) if live else given
        assert pub.publish_tensors(sent, json.dumps(CONFIG)).digest == want, what


def test_what_is_wrong_with_later_tensors_is_refused(pub):
    torch = pytest.importorskip("torch")
    pair = {name: torch.from_numpy(value.copy()) for name, value in PAIR.items()}
    pub.publish_tensors(pair, CONFIG)
    freed = {name: t.clone() for name, t in pair.items()}
    freed[A].untyped_storage().resize_(0)
    with pytest.raises(heddle.UsageError, match="no memory"):
        pub.publish_tensors(freed, CONFIG)
    with pytest.raises(heddle.UsageError, match="neither torch's nor numpy's"):
        pub.publish_tensors({**pair, A: [[1.0]]}, CONFIG)
    with pytest.raises(heddle.BadAdapter, match="without its lora_B"):
        pub.publish_tensors({A: pair[A]}, CONFIG)
    pair[A] += 1
    assert pub.publish_tensors(pair, CONFIG).created, "and the publisher is whole"


@pytest.mark.parametrize("dtype,told,bits", [("bfloat16", "BF16", "uint16"),
                                             ("float8_e4m3fn", "F8_E4M3", "uint8"),
                                             ("float8_e5m2", "F8_E5M2", "uint8")])
def test_types_that_numpy_lacks_come_as_they_went(broker, adapter, dtype, told, bits):
    """Every pattern of bits, NaNs too, dense and with strides of their own."""
    torch = pytest.importorskip("torch")
    count = 1 << 8 * getattr(np, bits)().itemsize
    each = np.arange(count, dtype=bits)
    patterns = {A: each.reshape(8, -1), B: each.reshape(-1, 8)}
    tensors = {name: torch.from_numpy(p).view(getattr(torch, dtype)) for name, p in patterns.items()}
    tensors[B] = tensors[B].t().contiguous().t()
    with (heddle.Publisher(adapter=adapter) as pub,
          heddle.Worker(adapters=[adapter], apply="auto", name=dtype) as w):
        pub.publish_tensors(tensors, CONFIG).wait(min=1, timeout=60)
        with w.acquire(adapter) as a:
            for name, want in patterns.items():
                row = a.tensors[name]
                live, plain = row.torch(), row.numpy()
                assert row.dtype == told and live.dtype is getattr(torch, dtype)
                assert np.array_equal(live.view(getattr(torch, bits)).numpy(), want)
                assert plain.dtype == bits and np.array_equal(plain, want)
                del live, plain


# -- what a version tells ------------------------------------------------------------------------------------

def test_the_step_is_the_versions_own(pub):
    first = pub.publish_tensors(PAIR, CONFIG, step=1, request_id="one")
    assert first.created and first.step == 1
    again = pub.publish_tensors(PAIR, CONFIG, step=50)
    assert (again.version, again.created, again.reason, again.step) == (1, False, "unchanged", 1)
    again = pub.publish_tensors(PAIR, CONFIG, request_id="one", step=1)
    assert (again.version, again.reason, again.step) == (1, "replayed", 1)
    assert pub.publish_dir(FIXTURES / "plain").step is None


def test_a_held_adapter_is_in_the_result_and_once_in_the_log(broker, adapter, caplog):
    def publish(value):
        return pub.publish_tensors(bulk(value, 4096), CONFIG)
    with heddle.Worker(adapters=[adapter], apply="auto"), heddle.Publisher(adapter=adapter) as pub, \
            heddle.Admin() as adm:
        first = publish(1)
        first.wait(min=1, timeout=60)
        second = publish(2)
        second.wait(min=1, timeout=60)
        assert second.held is None and "adapter.held" not in caplog.text
        adm.activate(first, by="ann")
        held = [publish(value) for value in (3, 4)]
        for ver in held:
            assert ver.held.startswith(f"{adapter} is held at {adapter}@1 by ann since ")
            assert pickle.loads(pickle.dumps(ver)).held == ver.held
        said = [r for r in caplog.records if "adapter.held" in r.getMessage()]
        assert len(said) == 1 and said[0].name == "heddle" and said[0].levelname == "WARNING"
        assert held[0].held in said[0].getMessage() and held[0].tag in said[0].getMessage()
        with pytest.raises(heddle.Held):
            held[1].wait(timeout=60)
        adm.activate(held[1])
        fifth = publish(5)
        assert fifth.held is None
        fifth.wait(min=1, timeout=60)
        adm.activate(held[1], by="bob")
        assert "by bob" in publish(6).held
        assert len([r for r in caplog.records if "adapter.held" in r.getMessage()]) == 2, "another hold"


# -- waits ---------------------------------------------------------------------------------------------------

def test_the_last_callback_alone_hears_of_progress(broker, adapter):
    first, second = [], []
    with heddle.Worker(adapters=[adapter], apply="auto"), heddle.Publisher(adapter=adapter) as pub:
        pub.on_progress(first.append)
        pub.publish_tensors(bulk(1, 4096), CONFIG).wait(min=1, timeout=60)
        heard = len(first)
        assert heard
        pub.on_progress(second.append)
        pub.publish_tensors(bulk(2, 4096), CONFIG).wait(min=1, timeout=60)
        assert len(first) == heard and second
        heard = len(second)
        pub.on_progress(None)
        pub.publish_tensors(bulk(3, 4096), CONFIG).wait(min=1, timeout=60)
        assert len(second) == heard


def test_a_mistyped_adapter_is_near_another(broker):
    with heddle.Worker(adapters=["rollouts"], name="near"), heddle.Publisher(adapter="rolouts") as pub:
        with pytest.raises(heddle.Deadline) as e:
            pub.publish_dir(FIXTURES / "plain").wait(timeout=2)
    assert e.value.code == "no_workers" and e.value.hint.startswith("did you mean rollouts?")


def test_a_wait_where_nobody_is_says_so(pub):
    ver = pub.publish_dir(FIXTURES / "plain")
    with pytest.raises(heddle.Deadline) as e:
        ver.wait(timeout=0.2)
    assert e.value.code == "no_workers" and e.value.rollout.state == "staging"
    assert "heddle worker --adapter" in e.value.hint and e.value.expected == "active on 1 worker"


def test_a_wait_that_lacks_somebody_says_what_he_said(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Admin() as adm, \
            heddle.Worker(adapters=[adapter], name="picky") as picky:
        until(lambda: [w for w in adm.workers() if w.name == "picky"], "the worker joined")
        ver = pub.publish_dir(FIXTURES / "plain")
        u = next(u for u in picky.updates(timeout=30) if u.phase == "arrived")
        with pytest.raises(heddle.Deadline) as e:
            ver.wait("staged", quorum=2, timeout=0.2)
        assert e.value.code == "deadline" and e.value.worker == "picky" and "picky: " in str(e.value)
        u.reject("rank 64 is more than max_lora_rank 16")
        with pytest.raises(heddle.HeddleError, match="picky.*rank 64 is more than max_lora_rank 16"):
            ver.wait("staged", quorum=2, timeout=5)


def test_a_wait_asks_the_broker_nothing(tmp_path, adapter):
    """Names are asked for when they are looked at: a wait that is over is over, wherever the broker is."""
    it = Broker(tmp_path, "--lease", "60s")
    with heddle.Worker(it.endpoint, [adapter], apply="auto", name="one"), \
            heddle.Publisher(it.endpoint, adapter, timeout=4, close_timeout=0.2) as pub:
        ver = pub.publish_tensors(PAIR, CONFIG)
        assert ver.wait(timeout=30).workers == ("one",)
        it.process.send_signal(signal.SIGSTOP)
        with at_most(2, "half of the time that an answer of the broker may take"):
            found = ver.wait(timeout=0.1)
        others = []
        asking = threading.Thread(target=lambda: others.append(found.workers))
        asking.start()
        assert ver.wait(timeout=0.1).active_count == 1, "while somebody asks"
        assert asking.is_alive(), "and has no answer yet"
        asking.join()
        assert others == [()] and found.workers == ()
        it.process.send_signal(signal.SIGCONT)
        assert pickle.loads(pickle.dumps(found)) == found
    assert it.end() == 0


# -- what people log -----------------------------------------------------------------------------------------

def test_versions_and_rollouts_are_data(pub):
    """dataclasses.asdict copies every field, and json writes what it gives: the publisher is none of them."""
    ver = pub.publish_tensors(PAIR, CONFIG, step=np.int64(3))
    logged = json.loads(json.dumps(dataclasses.asdict(ver)))
    assert (logged["tag"], logged["step"], type(ver.step)) == (ver.tag, 3, int)
    assert not any(key.startswith("_") for key in logged)
    rollout = pub.report(ver.version)
    assert json.loads(json.dumps(dataclasses.asdict(rollout)))["state"] == rollout.state
    with pytest.raises(heddle.Deadline):        # a copy of it waits too
        dataclasses.replace(ver, tag="mine").wait(timeout=0.05)
    for copied in (pickle.loads(pickle.dumps(ver)), copy.deepcopy(ver)):
        assert copied == ver
        with pytest.raises(heddle.UsageError, match="not of this process"):
            copied.wait()


def test_a_name_that_is_no_text_is_told(pub):
    with pytest.raises(heddle.UsageError, match="name of tensor") as e:
        pub.publish_tensors({**PAIR, "a\ud800": PAIR[KEY.format("A")]}, CONFIG)
    assert r"\ud800" in str(e.value)


# -- rates and the end ---------------------------------------------------------------------------------------

RATE = 4 << 20              # bytes per second
BULK = 8 << 20


def bulk(value, size=BULK):
    half = np.full((8, size // 64), value, "float32")
    return {A: half, B: np.ascontiguousarray(half.T)}


def staged_ms(adapter, value, publisher=None, worker=None):
    """How long one transfer takes, to a worker that is there already."""
    with heddle.Worker(adapters=[adapter], apply="auto", name="takes", own_memory=True,
                       **(worker or {})), heddle.Admin() as adm, \
            heddle.Publisher(adapter=adapter, **(publisher or {})) as pub:
        until(lambda: [w for w in adm.workers("takes") if w.state == "ready"], "the worker joined")
        return pub.publish_tensors(bulk(value), CONFIG).wait("staged", timeout=60).staged_ms


@pytest.mark.parametrize("who", ["publisher", "worker"])
def test_max_rate_is_bytes_per_second(broker, adapter, who):
    """No machine is too busy for this: at that rate the bytes cannot be there sooner."""
    free = staged_ms(adapter, 1.0)
    held = staged_ms(adapter, 2.0, **{who: {"max_rate": RATE}})
    assert held > BULK / RATE * 1000 / 2, f"{held:.0f} ms at {RATE} bytes/s; {free:.0f} ms without a limit"


@pytest.mark.parametrize("seconds,size,state", [(0.1, BULK, None), (60.0, 5 * BULK // 2, "active")])
def test_close_timeout_is_how_long_close_waits(broker, adapter, seconds, size, state):
    """The worker is at it when the publisher closes: that waits for it, or not."""
    with heddle.Worker(adapters=[adapter], apply="auto", name="slow", own_memory=True) as w, \
            heddle.Admin() as adm:
        with heddle.Publisher(adapter=adapter, max_rate=RATE, close_timeout=seconds) as pub:
            until(lambda: [one for one in adm.workers("slow") if one.state == "ready"], "the worker joined")
            ver = pub.publish_tensors(bulk(3.0, size), CONFIG)
            until(lambda: [a for a in adm.workers("slow")[0].adapters if a.fetching is not None],
                  "it is fetching")
        if state is None:
            until(lambda: adm.versions(ver.tag.split(":")[0])[0].state in ("failed", "lost"), "nobody has it")
            assert w.current(adapter) is None
        else:
            assert w.wait_current(30)[adapter].version == ver.version
