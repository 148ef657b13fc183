# SPDX-License-Identifier: Apache-2.0
"""The main path: a broker, a publisher, and a worker in another process, on a real adapter."""
import hashlib

import pytest

import heddle
from conftest import FIXTURES

WORKER = """
    import hashlib, heddle
    w = heddle.Worker(adapters=[sys.argv[1]], name=sys.argv[2], apply=sys.argv[3])
    for u in w.updates():
        if u.phase == "arrived":
            loaded = {name: hashlib.sha256(t.data).hexdigest() for name, t in u.tensors.items()}
            u.staged()
        if u.phase == "commit":
            u.activate()
        if u.phase in ("commit", "active"):
            with w.acquire(sys.argv[1]) as a:
                tensors = {name: hashlib.sha256(t.data).hexdigest() for name, t in a.tensors.items()}
                print(json.dumps({"tag": a.tag, "digest": a.digest, "again": a.rehash(), "step": a.step,
                                  "config": a.config, "tensors": tensors}), flush=True)
"""


@pytest.mark.parametrize("apply", ["app", "auto"])
def test_a_directory_reaches_a_worker_of_another_process(broker, adapter, program, apply):
    other = program(WORKER, adapter, "w-" + apply, apply)
    with heddle.Publisher(adapter=adapter) as pub, heddle.Admin() as adm:
        ver = pub.publish_dir(FIXTURES / "plain", step=7)
        assert ver.created and ver.tag.startswith(f"{adapter}@1:") and ver.tensor_count > 0
        got = ver.wait(min=1)
        assert (got.workers == ("w-" + apply,) and got.active_count == 1 and got.state == "active"
                and got.missing == ())
        seen = other.json()
        assert (seen["tag"], seen["digest"], seen["again"], seen["step"]) == (ver.tag, ver.digest, ver.digest,
                                                                              7)
        assert seen["config"]["peft_type"] == "LORA" and len(seen["tensors"]) == ver.tensor_count
        found = adm.workers("w-" + apply)[0]
        assert found.current and found.adapters[0].tag == ver.tag
        assert adm.versions(f"{adapter}@1")[0].config == seen["config"]
        again = pub.publish_dir(FIXTURES / "plain", step=8)
        assert (again.created, again.reason, again.digest) == (False, "unchanged", ver.digest)


def test_tensors_have_the_digest_of_the_directory(broker, adapter):
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = safetensors.load_file(FIXTURES / "plain" / "adapter_model.safetensors")
    assert all(isinstance(t, numpy.ndarray) for t in tensors.values())
    config = (FIXTURES / "plain" / "adapter_config.json").read_bytes()
    with heddle.Worker(adapters=[adapter], apply="auto",
                       name=adapter[:60]) as w, heddle.Publisher(adapter=adapter) as pub:
        ver = pub.publish_tensors(tensors, config)
        assert ver.digest == heddle.safetensors.check(FIXTURES / "plain").digest
        assert ver.wait(timeout=30).active_count == 1
        assert w.wait_current()[adapter].digest == ver.digest
        with w.acquire(adapter) as a:
            for name, t in a.tensors.items():
                assert numpy.array_equal(t.numpy(), tensors[name]) and not t.numpy().flags.writeable
            del t
            assert a.config_bytes == config


def test_each_version_has_the_tensors_that_it_has(broker, adapter):
    """What was worked out for a table serves the next version with the same one, and no other."""
    numpy = pytest.importorskip("numpy")
    try:
        import torch
    except ImportError:
        torch = None
    config = (FIXTURES / "plain" / "adapter_config.json").read_bytes()
    key = "base_model.model.q.lora_{}.weight"
    first = {key.format("A"): numpy.ones((2, 8), "float32"), key.format("B"): numpy.ones((8, 2), "float32")}
    turned = {name: t.reshape(4, 4) * 3 for name, t in first.items()}
    typed = {name: t.view("int32") for name, t in first.items()}
    named = {name.replace(".q.", ".v."): t * 4 for name, t in first.items()}
    more = {**named, key.format("A"): numpy.arange(5000, dtype="float32").reshape(2, 2500),
            key.format("B"): first[key.format("B")]}
    empty = {key.format("A"): numpy.ones((0, 8), "float32"), key.format("B"): first[key.format("B")]}
    same = {name: t * 2 for name, t in first.items()}
    versions = [first, same, turned, first, typed, first, named, first, more, empty, same]
    with heddle.Worker(adapters=[adapter], apply="auto", name=adapter[:60]) as w, \
         heddle.Publisher(adapter=adapter) as pub:
        layouts = []
        for tensors in versions:
            pub.publish_tensors(tensors, config).wait(min=1, timeout=60)
            with w.acquire(adapter) as a:
                found = {name: t.copy() for name, t in a.numpy().items()}
                again = {name: t.clone() for name, t in a.torch().items()} if torch else {}
                assert list(a.tensors) == sorted(tensors) and len(a.tensors) == len(tensors)
                assert {name: t.nbytes for name, t in a.tensors.items()} == {
                    name: t.nbytes for name, t in tensors.items()}
                layouts.append(a.tensors._layout)
            assert found.keys() == tensors.keys()
            for name, t in tensors.items():
                assert found[name].dtype == t.dtype and numpy.array_equal(found[name], t), name
                assert not torch or numpy.array_equal(again[name].numpy(), t), name
                assert not torch or again[name].numpy().dtype == t.dtype, name
        assert layouts[0] is layouts[1]
        assert all(one is not other for one, other in zip(layouts[1:], layouts[2:], strict=False))
