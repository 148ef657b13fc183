# SPDX-License-Identifier: Apache-2.0
"""Full weights in Python: published from files, from tensors and one by one; taken by workers that say so."""
from __future__ import annotations

import json
import struct

import pytest
from conftest import until

import heddle

np = pytest.importorskip("numpy")
LEAVES = {"model.embed.weight": np.arange(64, dtype="<f4").reshape(8, 8),
          "model.layers.0.q.weight": np.arange(5000, dtype="<f2").reshape(50, 100),
          "model.layers.0.scale": np.array(3.5, dtype="<f8"), "model.norm.weight": np.arange(7, dtype="u1")}
TYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "uint8": "U8"}


def write(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        header[name] = {"dtype": TYPES[value.dtype.name], "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def halves(folder, tensors):
    rows = list(tensors.items())
    return [write(folder / "model-1.safetensors", dict(rows[:2])),
            write(folder / "model-2.safetensors", dict(rows[2:]))]


def table(tensors):
    return [(name, TYPES[value.dtype.name], value.shape) for name, value in tensors.items()]


def check_equal(found, tensors):
    assert sorted(found) == sorted(tensors)
    for name, value in tensors.items():
        assert found[name].shape == value.shape and (found[name] == value).all(), name


def test_files_tensors_and_one_by_one_are_one_content(broker, adapter, tmp_path):
    other = {name: np.asarray(value + value.dtype.type(1)) for name, value in LEAVES.items()}
    files = halves(tmp_path, LEAVES)
    checked = heddle.safetensors.check_files(files)
    assert (checked.kind, checked.tensor_count, checked.features) == ("tensors", 4, ())
    with (heddle.Worker(adapters=[adapter], kinds=["tensors"], apply="auto") as worker,
          heddle.Publisher(adapter=adapter, kind="tensors") as publisher):
        until(lambda: worker.stats()["joined"], "the worker is in")
        first = publisher.publish_files(files)
        assert first.digest == checked.digest and first.wait().state == "active"
        with worker.acquire(adapter) as held:
            assert (held.kind, held.config, held.features) == ("tensors", {}, ())
            check_equal(held.numpy(), LEAVES)
        second = publisher.publish_tensors(other)
        second.wait()
        again = publisher.publish_each(table(LEAVES), LEAVES.items())
        assert again.digest == first.digest and again.version > second.version
        again.wait()
        with worker.acquire(adapter) as held, held.share() as slot:
            assert slot.config == {} and [row.name for row in slot.table] == sorted(LEAVES)
        with heddle.Admin() as admin:
            assert {v.kind for v in admin.versions(adapter)} == {"tensors"}
            assert admin.rollback(adapter).to == second.version
        until(lambda: worker.current(adapter).version == second.version, "the way back")
        with worker.acquire(adapter) as held:
            check_equal(held.numpy(), other)
            heddle.safetensors.export(held, tmp_path / "out")
    found = heddle.safetensors.check(tmp_path / "out")
    assert (found.kind, found.digest) == ("tensors", second.digest)


def test_a_name_has_one_kind(broker, adapter):
    with heddle.Publisher(adapter=adapter, kind="tensors") as publisher:
        publisher.publish_tensors(LEAVES)
    with pytest.raises(heddle.BadAdapter) as e:
        heddle.Publisher(adapter=adapter)
    assert (e.value.code, e.value.expected, e.value.found) == ("unsupported_feature", "tensors", "lora")
    assert 'kind="tensors"' in e.value.hint
    with heddle.Admin() as admin:
        admin.forget(adapter)
    heddle.Publisher(adapter=adapter).close()


def test_a_worker_takes_what_it_says(broker, adapter):
    with (heddle.Worker(adapters=[adapter], name="lora-alone") as worker,
          heddle.Publisher(adapter=adapter, kind="tensors") as publisher):
        until(lambda: worker.stats()["joined"], "the worker is in")
        version = publisher.publish_tensors(LEAVES)
        with pytest.raises(heddle.RolloutFailed) as e:
            version.wait()
        missing, = publisher.report(version).missing
        assert (missing.worker, missing.code) == ("lora-alone", "unsupported_feature")
        assert "kind tensors" in str(e.value)


@pytest.mark.parametrize("call", [
    lambda p: p.publish_dir("/nowhere"), lambda p: p.publish(object()),
    lambda p: p.publish_tensors(LEAVES, {"peft_type": "LORA"}), lambda p: p.publish_files([]),
    lambda p: p.publish_files(["/nowhere/model.safetensors"]),
    lambda p: p.publish_each(table(LEAVES), []),
    lambda p: p.publish_each(table(LEAVES)[:-1], LEAVES.items()),
    lambda p: p.publish_each(table(LEAVES), reversed(LEAVES.items()))])
def test_what_is_not_weights_is_refused(broker, adapter, call):
    with heddle.Publisher(adapter=adapter, kind="tensors") as publisher:
        with pytest.raises(heddle.HeddleError) as e:
            call(publisher)
        assert e.value.code in ("usage", "bad_adapter", "not_found") and e.value.hint
        assert publisher.publish_tensors(LEAVES).version == 1      # nothing is left of it


def test_words_that_are_no_kinds(broker, adapter):
    with pytest.raises(heddle.UsageError):
        heddle.Publisher(adapter=adapter, kind="weights")
    for kinds in (["weights"], [], [""], "tensors"):
        with pytest.raises(heddle.UsageError):
            heddle.Worker(adapters=[adapter], kinds=kinds)
    with heddle.Publisher(adapter=adapter) as publisher, pytest.raises(heddle.UsageError):
        publisher.publish_files(["x"])
