# SPDX-License-Identifier: Apache-2.0
"""python -m heddle.engine as a process, between a real broker and publisher and servers that stand in for
vLLM and SGLang."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections import deque

import pytest

import heddle
from conftest import BIN, FIXTURES, ROOT, Process, until
from engine_double import LOADS, UNLOADS, Double, metrics
from heddle.engine.exports import Exports
from heddle.engine.plan import Kind, Load, Unload
from heddle.engine.plug import Hand, Results, Times
from heddle.engine.servers import Sglang

FAST = ("--probe", "100ms")


class Plug(Process):
    """The program; its lines of JSON are read as they are waited for, and kept."""

    def __init__(self, folder, *args):
        log = (folder / f"engine-{len(list(folder.glob('engine-*')))}.log").open("wb")
        super().__init__([sys.executable, "-m", "heddle.engine", "-o", "json", *map(str, args)], stderr=log)
        self.log, self.lines = pathlib.Path(log.name), []

    def wait(self, type, **fields):
        """The next line of that type whose fields, or data, are these."""
        while True:
            self.lines.append(self.json())
            if is_it(self.lines[-1], type, fields):
                return self.lines[-1]

    def told(self, type, **fields):
        """A line of that type, read before or still to come: the order of a version's end and of the next
        one's beginning is not promised."""
        read = [line for line in self.lines if is_it(line, type, fields)]
        return read[0] if read else self.wait(type, **fields)


def is_it(line, type, fields):
    return line.get("type", line["kind"]) == type and all(
        line.get(k, line.get("data", {}).get(k)) == v for k, v in fields.items())


@pytest.fixture
def plugs(tmp_path, broker, adapter):
    """plugs(double..., "--option"...): a plug of the test's adapter for these servers, exporting into
    tmp_path/x; ready."""
    started = []

    def start(*args, ready=True, options=FAST, export=tmp_path / "x"):
        servers = [word for a in args if isinstance(a, Double) for word in (f"--{a.kind}", a.url)]
        it = Plug(tmp_path, *servers, "--export", export, "--adapter", adapter, "--name", worker_of(adapter),
                  *options,
                  *(a for a in args if not isinstance(a, Double)))
        started.append(it)
        if ready:
            it.ready = it.wait("ready")
        return it
    yield start
    for it in started:
        if it.process.poll() is None:
            assert it.end() == 0, it.log.read_text()
        assert "Traceback" not in it.log.read_text()


@pytest.fixture
def doubles():
    started = []

    def start(*kinds, **how):
        made = [Double(kind, **how) for kind in kinds]
        started.extend(made)
        return made if len(made) > 1 else made[0]
    yield start
    for it in started:
        it.gate.set()
        it.stop()


@pytest.fixture
def publisher(adapter, broker):
    with heddle.Publisher(adapter=adapter) as it:
        yield it


@pytest.fixture
def made(tmp_path):
    """made(seed): the directory of an adapter with bytes of its own."""
    def make(seed, rank=4):
        place = tmp_path / f"adapter-{seed}-{rank}"
        if not place.exists():
            subprocess.run([BIN / "mkadapter", "--shape", "tiny", "--rank", str(rank), "--seed", str(seed),
                            place], check=True, stdout=subprocess.DEVNULL)
        return place
    return make


def test_a_plug_whose_worker_was_drained_ends(plugs, doubles, publisher, adapter, made):
    plug = plugs(doubles("vllm"))
    with heddle.Worker(adapters=[adapter], apply="auto") as w, heddle.Admin() as adm:
        until(lambda: w.stats()["joined"], "it is there when the version is announced")
        publisher.publish_dir(made(1)).wait(min=2)
        adm.drain(worker_of(adapter))
        assert plug.process.wait(60) == 0
        assert adm.workers(worker_of(adapter))[0].state == "left"
    assert "was drained" in plug.log.read_text()


def worker_of(adapter):
    return "w" + adapter[-24:]


def same(one, other):
    return all((pathlib.Path(one) / f).read_bytes() == (pathlib.Path(other) / f).read_bytes()
               for f in ("adapter_config.json", "adapter_model.safetensors"))


def test_three_versions_through_both_kinds_behind_one_plug(plugs, doubles, publisher, adapter, made,
                                                           tmp_path):
    vllm, sglang = doubles("vllm", "sglang")
    plug = plugs(vllm, sglang)
    assert plug.ready["role"] == "engine" and plug.ready["adapters"] == [adapter]
    assert [s["kind"] for s in plug.ready["servers"]] == ["vllm", "sglang"]
    for n in (1, 2, 3):
        ver = publisher.publish_dir(made(n), step=n)
        got = ver.wait(min=1)
        assert got.active_count == 1 and got.missing == ()
        for double in (vllm, sglang):
            at = double.names[f"{adapter}@{n}"]
            assert same(at, made(n)) and ver.digest[3:15] in at
            assert heddle.safetensors.check(at).digest == ver.digest
        done = plug.wait("activate.done")
        assert (done["version"], done["data"]["name"]) == (n, f"{adapter}@{n}")
        link = tmp_path / "x" / adapter
        until(lambda: same(link, made(n)), "the link names the active version")
    plug.told("version.retired", version=1)
    # the one before is kept for a way back, the first is gone with its directory
    for double in (vllm, sglang):
        until(lambda: set(double.names) == {f"{adapter}@2", f"{adapter}@3"}, "the first is unloaded")
    until(lambda: not list((tmp_path / "x").glob(f"{adapter}@1-*")), "its directory is gone")
    assert all(d.posts(LOADS) == [f"{adapter}@{n}" for n in (1, 2, 3)] for d in (vllm, sglang))


def test_staged_means_that_every_server_answers(plugs, doubles, publisher, adapter, made):
    quick, slow = doubles("vllm", "sglang")
    plugs(quick, slow)
    slow.gate.clear()
    ver = publisher.publish_dir(made(1))
    until(lambda: quick.names, "one has it")
    until(lambda: slow.posts(LOADS), "the other is asked")
    with pytest.raises(heddle.Deadline):
        ver.wait(phase="staged", min=1, timeout=0.5)
    slow.gate.set()
    assert ver.wait(min=1).active_count == 1


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_refusal_reaches_the_publisher_in_the_servers_words(plugs, doubles, publisher, adapter, made, kind,
                                                              tmp_path):
    good, small = doubles("vllm", max_rank=64), doubles(kind, max_rank=8)
    plug = plugs(good, small)
    assert publisher.publish_dir(made(1)).wait(min=1).active_count == 1
    ver = publisher.publish_dir(made(2, rank=64))
    with pytest.raises(heddle.RolloutFailed) as e:
        ver.wait(min=1)
    words = f"{e.value} {heddle.Admin().versions(f'{adapter}@2')[0].reason}"
    assert "64" in words and small.url in words and ("greater than" in words or "incompatible" in words)
    until(lambda: set(good.names) == {f"{adapter}@1"}, "the server that had loaded it unloads it")
    until(lambda: not list((tmp_path / "x").glob(f"{adapter}@2-*")), "its directory is gone")
    assert good.names.keys() == small.names.keys() == {f"{adapter}@1"}
    assert publisher.publish_dir(made(3)).wait(min=1).active_count == 1      # and the next one goes through
    plug.wait("activate.done", version=3)


@pytest.mark.parametrize("said, heard", [("bad \0 rank", "bad rank"), ("bad \ud800 rank", r"bad \? rank")])
def test_words_that_no_line_takes_fail_the_version_at_once_and_once(plugs, doubles, publisher, adapter, made,
                                                                    said, heard):
    good, double = doubles("vllm", "vllm")
    plug = plugs(good, double)
    double.faults[LOADS["vllm"]].append((400, said))
    good.busy = {f"{adapter}@1"}         # so that it is still there when its end is heard of
    with pytest.raises(heddle.RolloutFailed, match=heard):
        publisher.publish_dir(made(1)).wait(min=1)
    assert publisher.publish_dir(made(2)).wait(min=1).active_count == 1
    plug.wait("activate.done", version=2)
    failed = [line for line in plug.lines if line.get("type") == "stage.failed"]
    assert [line["version"] for line in failed] == [1] and re.search(heard, failed[0]["message"])


def test_a_path_of_a_server_is_shown_without_what_no_line_takes(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    double.names[f"{adapter}@1"] = "/else\0where"
    plugs(double)
    with pytest.raises(heddle.RolloutFailed, match="loaded from /elsewhere"):
        publisher.publish_dir(made(1)).wait(min=1)
    assert publisher.publish_dir(made(2)).wait(min=1).active_count == 1


def test_a_name_that_does_not_answer_is_not_staged(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    # A publisher whose lease ends before a worker has the version publishes it again, under the next number.
    double.deaf = {f"{adapter}@{n}" for n in range(1, 10)}
    plugs(double)
    with pytest.raises(heddle.RolloutFailed, match="does not exist"):
        publisher.publish_dir(made(1)).wait(min=1)
    until(lambda: not double.names, "what was loaded is unloaded")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("fault", [(500, "CUDA out of memory"), (503, "loading"), "reset"])
def test_faults_that_pass(plugs, doubles, publisher, adapter, made, kind, fault):
    double = doubles(kind)
    plugs(double)
    double.faults[LOADS[kind]].extend([fault, fault])
    assert publisher.publish_dir(made(1)).wait(min=1).active_count == 1
    assert double.posts(LOADS) == [f"{adapter}@1"] * 3


def test_a_server_that_hangs_is_named_at_the_deadline(plugs, doubles, publisher, adapter, made):
    good, hanging = doubles("vllm", "sglang")
    plugs(good, hanging, "--load-timeout", "1500ms")
    hanging.faults["/load_lora_adapter"].append("hang")
    with pytest.raises(heddle.RolloutFailed, match=re.escape(hanging.url)):
        publisher.publish_dir(made(1)).wait(min=1)
    until(lambda: not good.names, "unloaded where it was")
    assert publisher.publish_dir(made(2)).wait(min=1).active_count == 1


def test_a_server_that_is_gone_rejects_and_serves_again_when_it_is_back(plugs, doubles, publisher, adapter,
                                                                        made):
    double = doubles("vllm")
    plug = plugs(double, "--load-timeout", "1s")
    assert publisher.publish_dir(made(1)).wait(min=1).active_count == 1
    double.stop()
    with pytest.raises(heddle.RolloutFailed, match="refused"):
        publisher.publish_dir(made(2)).wait(min=1)
    plug.wait("engine.away")
    double.start()
    plug.wait("engine.loaded", name=f"{adapter}@1")              # what it had is loaded again, unasked
    assert publisher.publish_dir(made(3)).wait(min=1).active_count == 1


def test_a_restart_in_the_middle_of_a_load(plugs, doubles, publisher, adapter, made):
    double = doubles("sglang")
    plugs(double)
    assert publisher.publish_dir(made(1)).wait(min=1).active_count == 1
    double.gate.clear()
    ver = publisher.publish_dir(made(2))
    until(lambda: double.posts(LOADS)[-1] == f"{adapter}@2", "the load is under way")
    double.stop()
    double.gate.set()
    double.start()
    assert ver.wait(min=1).active_count == 1
    until(lambda: set(double.names) == {f"{adapter}@1", f"{adapter}@2"}, "both are there again")


def test_a_way_back_and_forth_loads_nothing(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    plug = plugs(double)
    for n in (1, 2):
        publisher.publish_dir(made(n)).wait(min=1)
    plug.wait("activate.done", version=2)
    before = double.posts(LOADS)
    with heddle.Admin() as admin:
        admin.activate(f"{adapter}@1")
        plug.wait("activate.done", version=1)
        admin.activate(f"{adapter}@2")
        plug.wait("activate.done", version=2)
    assert double.posts(LOADS) == before


def test_killed_and_started_again_it_takes_over_what_the_servers_have(plugs, doubles, publisher, adapter,
                                                                      made, tmp_path):
    double = doubles("sglang")
    plug = plugs(double)
    for n in (1, 2):
        publisher.publish_dir(made(n)).wait(min=1)
    os.kill(plug.pid, signal.SIGKILL)
    plug.end(None)
    assert set(double.names) == {f"{adapter}@1", f"{adapter}@2"}
    (tmp_path / "x" / f".{adapter}@2-0123456789ab.new").mkdir()   # as one that was being written
    again = plugs(double)
    again.wait("activate.done", version=2)
    until(lambda: set(double.names) == {f"{adapter}@2"}, "what nobody wants any more is unloaded")
    assert double.posts(LOADS) == [f"{adapter}@1", f"{adapter}@2"]
    last = pathlib.Path(double.names[f"{adapter}@2"]).name
    until(lambda: [p.name for p in (tmp_path / "x").glob(f"{adapter}@*")] == [last], "one directory is left")
    assert not list((tmp_path / "x").glob(".*.new"))
    assert publisher.publish_dir(made(3)).wait(min=1).active_count == 1


def test_a_worker_whose_server_stays_away_leaves_and_comes_back(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    plug = plugs(double, "--away", "500ms")
    publisher.publish_dir(made(1)).wait(min=1)
    double.stop()
    plug.wait("worker.left")
    with heddle.Admin() as admin:
        until(lambda: admin.workers(worker_of(adapter))[0].state != "ready", "the broker counts it no more")
        double.start()
        plug.wait("ready")
        plug.wait("activate.done", version=1)
        assert admin.workers(worker_of(adapter))[0].state == "ready"
    assert set(double.names) == {f"{adapter}@1"}


def test_it_joins_only_when_every_server_answers(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    double.stop()
    plug = plugs(double, ready=False)
    assert "refused" in plug.wait("engine.away")["message"]
    with heddle.Admin() as admin:
        assert not any(w.name == worker_of(adapter) for w in admin.workers())
    double.start()
    plug.wait("ready")


def test_a_server_that_was_started_wrongly_is_told_what_it_needs(plugs, doubles):
    double = doubles("vllm", runtime_updates=False)
    plug = plugs(double, ready=False)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in plug.wait("engine.away")["message"]


def test_features_that_a_server_would_read_over_are_refused(plugs, doubles, publisher, adapter, made):
    vllm, sglang = doubles("vllm", "sglang")
    plugs(vllm, sglang)
    with pytest.raises(heddle.RolloutFailed, match="rslora"):
        publisher.publish_dir(FIXTURES / "rslora").wait(min=1)
    assert not vllm.posts(LOADS) and not sglang.posts(LOADS)


@pytest.mark.parametrize("kind, options, features",
                         [("vllm", (), ["embeddings", "rank_pattern", "rslora"]), ("sglang", (), []),
                                                     ("sglang", ("--accept", "rslora"), ["rslora"])])
def test_which_features_are_taken(plugs, doubles, publisher, kind, options, features):
    plug = plugs(doubles(kind), *options)
    assert plug.ready["accepts"] == features
    if "rslora" in features:
        assert publisher.publish_dir(FIXTURES / "rslora").wait(min=1).active_count == 1


@pytest.fixture
def altered(tmp_path):
    """altered(fixture, field=value...): a copy whose config has these."""
    def alter(fixture="plain", **fields):
        place = tmp_path / f"altered-{len(list(tmp_path.glob('altered-*')))}"
        shutil.copytree(FIXTURES / fixture, place)
        config = place / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
        return place
    return alter


def refusal(version):
    with pytest.raises(heddle.RolloutFailed):
        version.wait(min=1)
    return heddle.Admin().versions(f"{version.adapter}@{version.version}")[0].reason


@pytest.mark.parametrize("release, is_taken, warning", [
    ("0.26.0+cpu", False, None), ("0.31.0", False, None), ("0.32.0+cpu", True, None),
    ("0.33.1.post1", True, None),
    ("0.25.1", False, "runs vLLM 0.25.1; known are vLLM 0.26 to 0.33"),
    ("0.34.0", False, "runs vLLM 0.34.0; known are vLLM 0.26 to 0.33"),
    ("0.33.1.dev7+g0a1b2c3", False, "runs vLLM 0.33.1.dev7"), ("1.0.0", False, "runs vLLM 1.0.0"),
    (None, False, "does not tell its release at /version"), ("\n", False, "does not tell its release")])
def test_patterns_go_to_a_vllm_whose_release_applies_them(plugs, doubles, publisher, altered, release,
                                                          is_taken, warning):
    double = doubles("vllm", release=release)
    plug = plugs(double)
    warned = re.findall(r"warn  engine.release .*", plug.log.read_text())
    for patterned in (FIXTURES / "rank_pattern", altered(alpha_pattern={"q_proj": 16})):
        version = publisher.publish_dir(patterned)
        if is_taken:
            assert version.wait(min=1).active_count == 1
            continue
        why = refusal(version)
        assert why.code == "unsupported_feature" and why.phase == "stage"
        told = (release or "").strip() or "of an unknown release"
        assert (f"vLLM {told} at {double.url} does not apply rank_pattern or alpha_pattern; expected: vLLM "
                "0.32 to 0.33; hint: serve it with one of those, or take what it answers: --accept "
                "rank_pattern") in why.message
    assert bool(double.posts(LOADS)) == is_taken
    assert publisher.publish_dir(FIXTURES / "rslora").wait(min=1).active_count == 1    # others go through
    assert len(warned) == (warning is not None)
    assert all(warning in line and double.url in line for line in warned)
    assert ("rank_pattern" in plug.ready["accepts"]) == is_taken
    assert [s["release"] for s in plug.ready["servers"]] == [release if release != "\n" else None]


BEYOND = {"alora": {"alora_invocation_tokens": [5]}, "bdlora": {"use_bdlora": {"nblocks": 2}},
          "bias": {"bias": "lora_only"}, "init_base": {"init_lora_weights": "pissa_niter_4"},
          "layer_replication": {"layer_replication": [[0, 2]]},
          "modules_to_save": {"modules_to_save": ["norm"]}, "qalora": {"use_qalora": True}}


@pytest.mark.parametrize("kind, release", [("vllm", "0.31.0"), ("vllm", "0.32.0"), ("sglang", "0.5.12"),
                                           ("sglang", "0.5.23"), ("sglang", "0.6.0")])
def test_what_servers_read_over_does_not_reach_them(plugs, doubles, publisher, altered, kind, release):
    double = doubles(kind, release=release)
    plug = plugs(double, "--accept", "alora")
    assert ("engine.release" in plug.log.read_text()) == (release == "0.6.0")
    for feature, fields in BEYOND.items():
        if feature == "alora":
            continue
        why = refusal(publisher.publish_dir(altered(**fields)))
        assert why.code == "unsupported_feature"
        assert f"{release} at {double.url} does not apply {feature}; expected: plain LoRA" in why.message
        assert f"--accept {feature}" in why.message
    assert not double.posts(LOADS)
    assert publisher.publish_dir(altered(**BEYOND["alora"])).wait(min=1).active_count == 1


@pytest.mark.parametrize("kind, targets, tensor, is_taken", [
    ("sglang", ["q_proj"], "lm_head.lora_A.weight", False),
    ("sglang", ["q_proj"], "unembed_tokens.lora_A.weight", False),
    ("sglang", None, "lm_head.lora_A.weight", False),
    ("sglang", ["q_proj"], "model.embed_tokens.lora_embedding_A", False),
    ("sglang", ["q_proj", "model.lm_head"], "lm_head.lora_A.weight", True),
    ("sglang", ["unembed_tokens"], "lm_head.lora_A.weight", True),
    ("sglang", ["word_embeddings"], "model.embed_tokens.lora_embedding_A", True),
    ("sglang", "all-linear", "lm_head.lora_A.weight", True),
    ("sglang", ["q_proj"], "model.layers.1.lm_head.lora_A.weight", True),
    ("vllm", ["q_proj"], "lm_head.lora_A.weight", True)])
def test_tensors_that_sglang_would_skip(plugs, doubles, publisher, kind, targets, tensor, is_taken):
    numpy = pytest.importorskip("numpy")
    double = doubles(kind)
    plugs(double, "--accept", "embeddings")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": targets}
    tensors = {f"base_model.model.{name}": numpy.ones((2, 2), dtype="float32")
               for lora in (tensor, "model.layers.0.q_proj.lora_A.weight")
               for name in (lora, lora.replace("_A", "_B"))}
    version = publisher.publish_tensors(tensors, config)
    if is_taken:
        assert version.wait(min=1).active_count == 1
        return
    why, module = refusal(version), "embed_tokens" if "embedding" in tensor else "lm_head"
    assert why.code == "unsupported_feature"
    assert (f"SGLang 0.5.23 at {double.url} skips the tensors of {module}; expected: {module} in "
            "target_modules; hint: ") in why.message
    assert not double.posts(LOADS)


def test_a_server_that_comes_back_in_an_older_release_does_not_get_what_it_ignores(plugs, doubles, publisher,
                                                                                   adapter, made):
    double = doubles("vllm")
    plug = plugs(double)
    publisher.publish_dir(FIXTURES / "rank_pattern").wait(min=1)
    double.stop()
    plug.wait("engine.away")
    double.release = "0.31.0"
    double.start()
    plug.wait("engine.up")
    until(lambda: re.search(rf"engine.refused .*{adapter}@1: vLLM 0.31.0 .*does not apply rank_pattern",
                            plug.log.read_text()), "it says why the active version is not there")
    assert not double.names
    publisher.publish_dir(made(2)).wait(min=1)
    assert set(double.names) == {f"{adapter}@2"}
    assert double.posts(LOADS) == [f"{adapter}@1", f"{adapter}@2"]


def test_names_by_step(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    plug = plugs(double, "--served-name", "{adapter}-v{step}")
    assert publisher.publish_dir(made(1), step=7).wait(min=1).active_count == 1
    assert plug.wait("activate.done")["data"]["name"] == f"{adapter}-v7"
    why = refusal(publisher.publish_dir(made(2)))
    assert "it has no step, and --served-name is {adapter}-v{step}" in why.message
    assert "expected: a version that was published with a step; hint: publish with --step" in why.message
    why = refusal(publisher.publish_dir(made(3), step=7))
    assert f"{adapter}-v7 was the name of {adapter}@1 already" in why.message
    assert "put {version} or {digest} into --served-name" in why.message
    assert publisher.publish_dir(made(4), step=8).wait(min=1).active_count == 1
    assert set(double.names) == {f"{adapter}-v7", f"{adapter}-v8"}


def test_other_names_and_another_view_of_the_directory(plugs, doubles, publisher, adapter, made, tmp_path):
    double = doubles("vllm")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "x")
    plugs(double, "--served-name", "rl/{version}-{digest}", "--server-dir", tmp_path / "elsewhere")
    ver = publisher.publish_dir(made(1))
    ver.wait(min=1)
    (name, path), = double.names.items()
    assert name == f"rl/1-{ver.digest[3:15]}" and path.startswith(str(tmp_path / "elsewhere"))
    assert same(path, made(1))


def test_an_export_that_fails_rejects_the_version_with_the_reason(plugs, doubles, publisher, adapter, made,
                                                                  tmp_path):
    double = doubles("vllm")
    plugs(double)
    shutil.rmtree(tmp_path / "x")
    (tmp_path / "x").write_text("in the way")
    with pytest.raises(heddle.RolloutFailed, match="export to"):
        publisher.publish_dir(made(1)).wait(min=1)
    assert not double.posts(LOADS)
    (tmp_path / "x").unlink()
    (tmp_path / "x").mkdir()
    assert publisher.publish_dir(made(2)).wait(min=1).active_count == 1


def test_what_cannot_be_removed_is_said_and_ends_nothing(plugs, doubles, publisher, adapter, made, tmp_path):
    """Directories of versions that are gone, in a folder that cannot be read, and for a moment is not
    there."""
    double = doubles("vllm")
    plug = plugs(double, "--slots", "6")
    real = tmp_path / "x"
    for n in (1, 2):
        publisher.publish_dir(made(n)).wait(min=1)
    plug.wait("activate.done", version=2)
    real.rename(tmp_path / "y")
    (tmp_path / "x").write_text("no directory")
    with heddle.Admin() as admin:
        admin.activate(f"{adapter}@1")   # a sweep follows
    plug.wait("activate.done", version=1)
    until(lambda: "export.discard" in plug.log.read_text(), "it says so")
    (tmp_path / "x").unlink()
    (tmp_path / "y").rename(tmp_path / "x")
    assert publisher.publish_dir(made(3)).wait(phase="staged", min=1).staged_count == 1


def test_a_directory_that_somebody_else_removes_too_is_removed(tmp_path, monkeypatch):
    with contextlib.closing(Exports(str(tmp_path), ["policy"])) as exports:
        gone = tmp_path / "policy@1-0123456789ab"
        gone.mkdir()
        (gone / "adapter_config.json").write_text("{}")
        real = shutil.rmtree
        stumbles = iter([FileNotFoundError(2, "No such file")])

        def rmtree(path):
            for e in stumbles:
                raise e
            real(path)
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        exports.discard(str(gone))
        assert not gone.exists()
        exports.discard(str(gone))       # and it may be gone


@pytest.mark.parametrize("what", ["listing", "check", "load", "unload", "is_busy"])
def test_whatever_a_hand_stumbles_over_is_put_as_a_result(what):
    server, results = Sglang("http://127.0.0.1:9"), Results()
    for name in ("check", "listing", "load", "ask", "unload", "is_busy"):
        setattr(server, name, lambda *_: None)

    def stumble(*_):
        raise KeyError("no such thing")
    setattr(server, what, stumble)
    hand = Hand(0, server, results, Times(probe_s=3600))
    job = Load(0, "policy@1", "/x", float("inf")) if what == "load" else Unload(0, "policy@1",
                                                                                force=what != "is_busy")
    hand.do(job)
    hand.do(None)
    hand.start()
    hand.join(30)
    said = results.take()
    words = "unexpected KeyError: 'no such thing'"
    if what in ("listing", "check"):
        assert ("away", 0, words) in said and any(s[0] == "done" for s in said)
    else:
        assert ("refused", 0, job, words, Kind.DOUBTFUL) in said


@pytest.mark.parametrize("key, goes",
                         [("secret\n", True), (" secret ", True), ("", True), ("\n", True),
                          ("sec\nret", False), ("secr\u00e9t", False), ("a b", False)])
def test_keys(doubles, broker, tmp_path, key, goes):
    double = doubles("vllm", key=key.strip() or None)
    with (tmp_path / "log").open("wb") as log:
        plug = Process([sys.executable, "-m", "heddle.engine", "--vllm", double.url, "--export",
                        str(tmp_path / "x"), "-o", "json"], stderr=log,
                       env={**os.environ, "HEDDLE_ENGINE_KEY": key})
    line = plug.json()
    if goes:
        assert line["type"] == "engine.up" and plug.end() == 0
    else:
        error = line["error"]
        assert (error["code"], plug.end(None)) == ("usage", 2)
        assert "key" in error["message"] and "HEDDLE_ENGINE_KEY" in error["hint"]
    said = json.dumps(line, ensure_ascii=False) + (tmp_path / "log").read_text()
    assert "Traceback" not in said and "sec" not in said.replace("_seconds", "")


def test_a_fault_of_its_own_is_one_line_and_an_exit_status(tmp_path):
    code = "import heddle.engine.__main__ as m; m.Exports = lambda *_: 1 / 0; raise SystemExit(m.main(%r))"
    args = ["--vllm", "http://127.0.0.1:9", "--export", str(tmp_path / "x")]
    done = subprocess.run([sys.executable, "-c", code % args], capture_output=True, text=True, timeout=60)
    first, hint = done.stderr.splitlines()
    assert done.returncode == 9 and first.startswith("heddle.engine: internal: unexpected ZeroDivisionError: "
                                                     "division by zero at ") and "hint: " in hint
    done = subprocess.run([sys.executable, "-c", code % ["-o", "json", *args]], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 9 == json.loads(done.stdout)["error"]["exit"] and not done.stderr


def test_it_unloads_a_busy_name_only_when_its_requests_are_over(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    plug = plugs(double)
    double.busy = {f"{adapter}@1"}
    for n in (1, 2, 3, 4):
        publisher.publish_dir(made(n)).wait(min=1)
    plug.wait("engine.unloaded", name=f"{adapter}@2")
    assert f"{adapter}@1" in double.names and double.posts(UNLOADS) == [f"{adapter}@2"]
    double.busy = set()
    plug.wait("engine.unloaded", name=f"{adapter}@1")


def test_a_name_that_nothing_was_heard_of_for_some_looks_is_not_idle_yet(plugs, doubles, publisher, adapter,
                                                                          made):
    """Its next requests may be let in between two steps."""
    double = doubles("vllm")
    plug = plugs(double)
    for n in (1, 2):
        publisher.publish_dir(made(n)).wait(min=1)
    answers = [("text", metrics(step)) for step in range(5)] + [("text", metrics(5, [f"{adapter}@1"]))]
    double.faults["/metrics"] = deque(answers)
    publisher.publish_dir(made(3)).wait(min=1)
    until(lambda: not double.faults["/metrics"] or double.posts(UNLOADS), "six looks")
    assert f"{adapter}@1" in double.names and not double.posts(UNLOADS)
    plug.wait("engine.unloaded", name=f"{adapter}@1")


def test_sglang_is_told_to_unload_when_it_has_no_requests(plugs, doubles, publisher, adapter, made):
    """It says how many requests it has, and not whose; and while it waits for those of a name it loads
    nothing."""
    double = doubles("sglang")
    plugs(double, "--load-timeout", "3s")
    publisher.publish_dir(made(1)).wait(min=1)
    double.busy = {f"{adapter}@1"}       # a long rollout
    for n in (2, 3, 4):
        assert publisher.publish_dir(made(n)).wait(min=1).active_count == 1
    assert set(double.names) == {f"{adapter}@{n}" for n in (1, 2, 3, 4)} and not double.posts(UNLOADS)
    double.busy = set()
    until(lambda: set(double.names) == {f"{adapter}@{n}" for n in (3, 4)}, "the retired ones are unloaded")


@pytest.mark.parametrize("how, options", [({}, ("--drain", "100ms")), ({"room": 2}, ())])
def test_a_rollout_that_sglang_waits_for_delays_versions_and_fails_none(plugs, doubles, publisher, adapter,
                                                                        made, how, options):
    double = doubles("sglang", **how)
    plug = plugs(double, "--load-timeout", "1s", *options)
    publisher.publish_dir(made(1)).wait(min=1)
    double.busy = {f"{adapter}@1"}
    for n in (2, 3):
        ver = publisher.publish_dir(made(n))
        if n == 2 or not how:
            assert ver.wait(min=1).active_count == 1
    until(lambda: double.posts(UNLOADS) == [f"{adapter}@1"],
          "it has to go: the time is over, or the place is needed")
    ver = ver if how else publisher.publish_dir(made(4))
    with pytest.raises(heddle.Deadline):
        ver.wait(min=1, timeout=3)       # three times the time to load it
    double.busy = set()
    assert ver.wait(min=1).active_count == 1
    plug.wait("activate.done", version=ver.version)


def test_a_server_with_little_room_gives_up_what_is_kept(plugs, doubles, publisher, adapter, made):
    double = doubles("sglang", room=2)
    plugs(double)
    for n in (1, 2, 3):
        assert publisher.publish_dir(made(n)).wait(min=1).active_count == 1
    assert set(double.names) == {f"{adapter}@2", f"{adapter}@3"}
    assert double.posts(UNLOADS) == [f"{adapter}@1"]             # by us, in time; not by the server, unasked


def test_counters(plugs, doubles, publisher, adapter, made):
    double = doubles("vllm")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plug = plugs(double, "--metrics", port)
    publisher.publish_dir(made(1)).wait(min=1)
    plug.wait("activate.done")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values[f'heddle_engine_loads_total{{server="{double.url}"}}'] == "1"
    assert values[f'heddle_engine_up{{server="{double.url}"}}'] == "1"
    assert values[f'heddle_engine_active_version{{adapter="{adapter}"}}'] == "1"
    assert 0 < float(values[f'heddle_engine_load_seconds_total{{server="{double.url}"}}']) < 60


def test_a_real_prometheus_reads_the_counters(plugs, doubles, publisher, adapter, made, tmp_path):
    """Debian's, where tools/setup test has put it."""
    ours = f"{ROOT / 'build/prometheus/usr/bin'}:{os.environ['PATH']}"
    programs = {name: shutil.which(name, path=ours) for name in ("prometheus", "promtool")}
    if None in programs.values():
        pytest.skip("there is no prometheus; tools/setup test gets it")
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        port, own = a.getsockname()[1], b.getsockname()[1]
    double = doubles("vllm")
    plug = plugs(double, "--metrics", port)
    publisher.publish_dir(made(1)).wait(min=1)
    plug.wait("activate.done")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
    checked = subprocess.run([programs["promtool"], "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    (tmp_path / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [{"job_name": "engine", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}))

    def values(expression):
        query = urllib.parse.urlencode({"query": expression})
        with contextlib.suppress(OSError):
            answer = urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/query?{query}", timeout=10)
            return {tuple(sorted(r["metric"].items())): r["value"][1]
                    for r in json.load(answer)["data"]["result"]}
        return {}

    with open(tmp_path / "prometheus.log", "w") as log:
        server = subprocess.Popen([programs["prometheus"], f"--config.file={tmp_path / 'prometheus.yml'}",
                                   f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                                   f"--web.listen-address=127.0.0.1:{own}"],
                                  stdout=log, stderr=log)
    try:
        until(lambda: list(values("up").values()) == ["1"], "Prometheus has scraped the plug")
        assert values(f'heddle_engine_loads_total{{server="{double.url}"}}').popitem()[1] == "1"
        assert values(f'heddle_engine_active_version{{adapter="{adapter}"}}').popitem()[1] == "1"
        publisher.publish_dir(made(2)).wait(min=1)
        until(lambda: list(values("heddle_engine_active_version").values()) == ["2"], "and the next version")
        named = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
        seen = {dict(series)["__name__"] for series in values('{__name__=~"heddle_engine_.+"}')}
        assert seen <= named and "heddle_engine_up" in seen
    finally:
        server.terminate()
        server.wait()


def test_one_process_exports_an_adapter_into_a_directory(plugs, doubles, tmp_path):
    double = doubles("vllm")
    plug = plugs(double)
    second = plugs(double, "--name", "second", ready=False)
    failure = second.json()
    assert (failure["ok"], failure["error"]["code"], second.end(None)) == (False, "data_locked", 4)
    assert str(plug.pid) in failure["error"]["message"]


@pytest.mark.parametrize("args, what", [
    ([], "--export"), (["--export", "X"], "no server is named"),
    (["--export", "X", "--vllm", "ftp://x"], "not an address"),
    (["--export", "X", "--vllm", "http://h:1", "--vllm", "http://h:1"], "named twice"),
    (["--export", "X", "--vllm", "http://h:1", "--served-name", "policy"], "has no {version}"),
    (["--export", "X", "--vllm", "http://h:1", "--adapter", "a", "--adapter", "a"], "named twice"),
    (["--export", "X", "--vllm", "http://h:1", "--load-timeout", "soon"], "not a time"),
    (["--export", "X", "--vllm", "http://h:1", "--bogus"], "--bogus"),
    (["--export", "X", "--vllm", "http://h:1", "--metrics", "x"], "HOST:PORT"),
    (["--export", "X", "--vllm", "http://h:1", "--label", "x"], "KEY=VALUE"),
    (["--export", "X", "--vllm", "http://h:1", "--max-rate", "x"], "not a size"),
    (["--export", "X", "--vllm", "http://a..b:1"], "not an address"),
    (["--export", "X", "--vllm", f"http://{'a' * 64}.com:80"], "not an address"),
    (["--export", "\udcff", "--vllm", "http://127.0.0.1:9"], "not UTF-8"),
    (["--exp", "X", "--vllm", "http://h:1"], "--export"),
    (["--export", "X", "--vllm", "http://h:1", "--adapter", "../x"], "not a name"),
    (["--export", "X", "--vllm", "http://h:1/v1"], "without /v1"),
    *((["--export", "X", "--vllm", "http://127.0.0.1:9", *args], what) for args, what in [
        (["--slots", "0"], "no 0 slots"), (["--slots", "-1"], "no -1 slots"),
        (["--slots", "65"], "no 65 slots"), (["--broker", "nonsense"], "nonsense"),
        (["--broker", "tcp://127.0.0.1"], "tcp://127.0.0.1"), (["--broker-key", "zz"], "zz"),
        (["--data-device", "nosuch0"], "nosuch0"),
        (["--name", "a/b"], "a/b"), (["--label", "=x"], "label")])])
def test_usage(args, what, tmp_path):
    args = [a.replace("X", str(tmp_path)) if a == "X" else a for a in args]
    done = subprocess.run([sys.executable, "-m", "heddle.engine", "-o", "json", *args], capture_output=True,
                          text=True, timeout=10, cwd=tmp_path)
    failure = json.loads(done.stdout)    # one line, before a server is waited for
    code = 3 if "zz" in args else 9 if "nosuch0" in args else 2
    assert done.returncode == failure["error"]["exit"] == code and not failure["ok"], done.stderr
    assert what in failure["error"]["message"] and failure["error"]["hint"], failure
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args, code", [
    (["--nosuch"], "usage"), (["--export", "X"], "usage"),
    (["--export", "X", "--vllm", "http://127.0.0.1:9", "--data-device", "nosuch0"], "internal")])
def test_a_failure_is_a_line_of_the_log_in_its_format(args, code, tmp_path):
    plug = [sys.executable, "-m", "heddle.engine",
            *(a.replace("X", str(tmp_path)) if a == "X" else a for a in args)]
    done = subprocess.run([*plug, "--log-format", "json"], capture_output=True, text=True, timeout=30,
                          cwd=tmp_path)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode in (2, 9) and not done.stdout
    assert [set(line) for line in lines] == [{"at", "level", "event", "text"}], done.stderr
    assert lines[0]["level"] == "error" and lines[0]["event"] == "process.failed"
    assert f"heddle.engine: {code}: " in lines[0]["text"] and "; hint: " in lines[0]["text"]
    done = subprocess.run([*plug, "--log-format=journal"], capture_output=True, text=True, timeout=30,
                          cwd=tmp_path)
    assert done.stderr.startswith(f"<3>process.failed: heddle.engine: {code}: "), done.stderr


def test_a_warning_of_python_is_a_line_of_the_log_in_its_format():
    code = ("import sys, warnings; from heddle.engine import __main__ as plug\n"
            "class Program:\n"
            "    def __init__(self, options): warnings.warn('two\\nlines', RuntimeWarning)\n"
            "    def run(self): pass\n"
            "plug.Program = Program\n"
            "sys.exit(plug.main(['--export', 'x', '--log-format', sys.argv[1]]))")
    said = {}
    for how in ("text", "json", "journal"):
        done = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 and len(done.stderr.splitlines()) == 1, done.stderr
        said[how] = done.stderr
    line = json.loads(said["json"])
    assert (line["level"], line["event"]) == ("warn", "python.warning"), line
    assert line["text"].startswith("RuntimeWarning: two lines ("), line
    assert " warn  python.warning RuntimeWarning: two" in said["text"], said
    assert said["journal"].startswith("<4>python.warning: RuntimeWarning: two lines ("), said


def test_a_broker_that_does_not_answer_is_named(doubles, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        plug = Process([sys.executable, "-m", "heddle.engine", "--vllm", doubles("vllm").url, "--export",
                        str(tmp_path / "x"), "--broker",
                        "tcp://127.0.0.1:9"], stderr=log)
    words = "worker.waiting no broker answers at tcp://127.0.0.1:9 within 5.0 s"
    until(lambda: words in (tmp_path / "log").read_text(), "it says so")
    assert plug.line().startswith("engine.up") and plug.end() == 0
    assert (tmp_path / "log").read_text().count("no broker answers") == 1


def test_what_the_worker_logs_is_in_the_programs_log(plugs, doubles, publisher, adapter):
    """Here that its name is taken."""
    double = doubles("vllm")
    with heddle.Worker(adapters=[adapter], name=worker_of(adapter), apply="auto") as w:
        until(lambda: w.stats()["joined"] or list(w.updates(timeout=0)), "it has the name")
        plug = plugs(double, "--join-timeout", "60s", ready=False)
        until(lambda: re.search(r"Z warn  worker .*refused this worker for now", plug.log.read_text()),
              "it says so")
    plug.wait("ready")
    assert "no broker answers" not in plug.log.read_text()


def test_a_name_that_another_worker_keeps_ends_it(plugs, doubles, adapter):
    with heddle.Worker(adapters=[adapter], name=worker_of(adapter)) as w:
        until(lambda: w.stats()["joined"], "it has the name")
        plug = plugs(doubles("vllm"), "--join-timeout", "200ms", ready=False)
        error = plug.wait("engine", ok=False)["error"]
        assert error["code"] == "worker_alive" and worker_of(adapter) in error["message"], error
        assert plug.end(sign=None) == 4


def test_for_people(doubles, broker, adapter, made, publisher, tmp_path):
    double = doubles("vllm")
    with (tmp_path / "log").open("wb") as log:
        plug = Process([sys.executable, "-m", "heddle.engine", "--vllm", double.url, "--export",
                        str(tmp_path / "x"), "--adapter", adapter], stderr=log)
    lines = [plug.line() for _ in range(2)]
    assert lines[0].startswith("engine.up") and lines[1] == f"ready: {adapter} for {double.url}"
    publisher.publish_dir(made(1)).wait(min=1)
    while not lines[-1].startswith("activate.done"):
        lines.append(plug.line())
    assert f"name={adapter}@1" in lines[-1]
    assert plug.end(signal.SIGINT) == 0
    assert set(double.names) == {f"{adapter}@1"}                 # the server serves on


def test_help_names_every_option_once():
    done = subprocess.run([sys.executable, "-m", "heddle.engine", "--help"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0 and not done.stderr
    manual = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text()
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", done.stdout.split("environment:")[0]))
    assert len(options) > 20 and all(f"`{option}" in manual for option in options - {"--help", "--version"})
