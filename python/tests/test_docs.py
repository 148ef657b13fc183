# SPDX-License-Identifier: Apache-2.0
"""docs/python.md names everything that the package shows, with the keywords that it has; the code of all
pages compiles, and whole programs in it run.
"""
import inspect
import pathlib
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import heddle
from conftest import FIXTURES, PATIENCE, ROOT, Broker

PAGE = (ROOT / "docs" / "python.md").read_text()


def code_of(page):
    """The blocks of Python in it."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


def test_every_name_is_told():
    lacking = [name for name in heddle.__all__ if name not in ("__version__",)
               and not re.search(rf"\b{name}\b", PAGE)]
    assert not lacking
    for kind in (heddle.Publisher, heddle.Worker, heddle.Admin, heddle.AsyncAdmin, heddle.Snapshot,
                 heddle.Update, heddle.Version, heddle.Tensor):
        public = [name for name, value in vars(kind).items() if not name.startswith("_") and callable(value)]
        lacking = [name for name in public if not re.search(rf"\b{name}\b", PAGE)]
        assert not lacking, kind


def test_every_keyword_is_told():
    for kind in (heddle.Publisher, heddle.Worker, heddle.Admin):
        line = re.search(rf"`{kind.__name__}\(([^`]*)\)`", PAGE).group(1)
        told = [re.sub(r"\s", "", part.split("=")[0])
                for part in line.replace("\n", " ").split(", ") if part != "*"]
        assert [t.strip() for t in told if t != "*"] == [p for p in inspect.signature(kind).parameters], kind


def test_every_exception_is_told_with_what_it_is():
    from heddle import errors
    for name in errors.__all__:
        kind = getattr(errors, name)
        if not isinstance(kind, type):
            continue
        assert f"`{name}`" in PAGE, name
        for base in kind.__bases__:
            if base not in (heddle.HeddleError, Exception):
                assert re.search(rf"^\| `{name}` \| {base.__name__} ", PAGE,
                                 re.M), f"{name} is also a {base.__name__}"


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/trl.md", "docs/engines.md",
                                  "python/README.md"])
def test_code_compiles(page):
    blocks = code_of(page)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")


@pytest.fixture
def model(own_keys, tmp_path, monkeypatch):
    """A live one, and a broker of the test's own: on every page the adapter is "policy"."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    import models
    it = Broker(tmp_path)
    monkeypatch.setenv("HEDDLE_BROKER", it.endpoint)
    yield models.lora()
    assert it.end() == 0


def run_beside(*programs):
    """Code, and the names that it finds: each on a thread of its own, to its end."""
    with ThreadPoolExecutor(len(programs)) as pool:
        for done in [pool.submit(exec, code, names) for code, names in programs]:
            done.result()


def are_of(tensors, model):
    from peft import get_peft_model_state_dict
    want = get_peft_model_state_dict(model)
    return tensors.keys() == want.keys() and all(bool((t == want[name]).all()) for name, t in tensors.items())


@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_the_trainer_and_the_engine_of_a_readme_run(model, page):
    head, trainer, engine = code_of(page)[0].split("\n\n")
    training, serving = {"model": model, "step": 7}, {}
    run_beside((f"{head}\n{trainer}", training), (f"{head}\n{engine}", serving))
    assert serving["tag"] == training["ver"].tag and training["ver"].step == 7
    assert are_of(serving.pop("tensors"), model)
    serving["w"].close()
    training["pub"].close()


def test_the_trainer_and_the_engine_of_the_page_run(model):
    import models
    trainer, engine = (next(block for block in code_of("docs/python.md") if word in block)
                       for word in ("train(model)", "while serving"))
    seen, end = [], time.monotonic() + PATIENCE

    def label(answers, tag):
        seen.append((answers, tag))
        assert time.monotonic() < end, seen
        last = training.get("ver")
        serving["serving"] = not last or last.step != 2 or tag != last.tag

    training = {"first": 0, "steps": 3, "model": model, "train": lambda m: models.stir(m, training["step"])}
    serving = {"serving": True, "prompts": "prompts", "label": label,
               "engine": lambda prompts, tensors, config: (prompts, config["r"], are_of(tensors, model))}
    run_beside((trainer, training), (engine, serving))
    assert seen[-1] == (("prompts", 8, True), training["ver"].tag) and training["ver"].version == 3
    assert training["pub"].closed
    training |= {"first": 1, "steps": 2}        # resumed from the checkpoint of step 1
    exec(trainer, training)
    assert training["ver"].version == 4 and training["ver"].step == 1
    serving["w"].close()


def test_the_engine_in_a_process_of_the_page_runs(own_keys, tmp_path, monkeypatch):
    """With what stands for vLLM: it reads the directory when a request names it first."""
    it = Broker(tmp_path)
    monkeypatch.setenv("HEDDLE_BROKER", it.endpoint)
    asked, answers = [], []

    class LLM:
        def __init__(self, model, **how):
            assert how["enable_lora"]

        def generate(self, prompts, params, lora_request):
            if lora_request is not None:
                assert (pathlib.Path(lora_request[2]) / "adapter_config.json").exists()
            asked.append(lora_request and lora_request[:2])
            return [lora_request and lora_request[0]]

    vllm = SimpleNamespace(LLM=LLM, SamplingParams=lambda **how: how)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.lora", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.lora.request", SimpleNamespace(LoRARequest=lambda *of: of))
    block = next(b for b in code_of("docs/engines.md") if "LoRARequest" in b)
    end = time.monotonic() + PATIENCE

    def label(found, tag):
        assert found == [tag] and time.monotonic() < end
        answers.append(tag)
        if tag == tags[-1]:
            serving["serving"] = len(tags) < 2
            if serving["serving"]:
                tags.append(pub.publish_dir(FIXTURES / "dora").tag)

    serving = {"serving": True, "MODEL": "m", "prompts": ["p"], "sampling": {}, "label": label}
    with heddle.Publisher(adapter="policy") as pub:
        tags = [pub.publish_dir(FIXTURES / "plain").tag]
        exec(block, serving)
        assert tags[0] in answers and answers[-1] == tags[1] and len(tags) == 2
        assert (tags[1], 2) in asked
        serving["worker"].close()
    assert it.end() == 0
    shutil.rmtree(serving["folder"])


def test_the_client_of_the_engines_page_names_the_active_version(own_keys, tmp_path, monkeypatch):
    it = Broker(tmp_path)
    monkeypatch.setenv("HEDDLE_BROKER", it.endpoint)
    names = {"heddle": heddle, "URL": "http://engine", "post": lambda url, body: (url, body)}
    exec(next(b for b in code_of("docs/engines.md") if "def ask" in b), names)
    with heddle.Publisher(adapter="policy") as pub, heddle.Worker(adapters=["policy"], apply="auto"):
        ver = pub.publish_dir(FIXTURES / "plain")
        ver.wait(min=1, timeout=60)
        assert names["ask"]("Once") == (ver.tag, ("http://engine/v1/completions",
                                                  {"model": "policy@1", "prompt": "Once"}))
    names["admin"].close()
    assert it.end() == 0


class Engine:
    """Runs the code of the page that drives an engine; `seen`: what it did, call by call."""

    def __init__(self, before=None):
        self.seen, self._before = [], before and SimpleNamespace(tag=before)

    def said(self, what, answer=True):
        return lambda *args: (self.seen.append((what, *map(str, args[:1]))), answer)[1]

    def update(self, phase, **answers):
        return SimpleNamespace(phase=phase, adapter="p", tag="p@2", tensors={}, config={},
                               **{what: self.said(what, answer) for what, answer in answers.items()})

    def run(self, *updates, load=None):
        block = next(b for b in code_of("docs/python.md") if "engine_switch" in b)
        worker = SimpleNamespace(updates=lambda: updates, current=lambda adapter: self._before)
        exec(block, {"heddle": SimpleNamespace(Worker=lambda **how: worker), "EngineError": ValueError,
                     "engine_load": load or self.said("load"), "engine_switch": self.said("switch"),
                     "engine_drop": self.said("drop")})
        return self.seen


@pytest.mark.parametrize("before,is_heard", [(None, True), (None, False), ("p@1", True), ("p@1", False)])
def test_the_engine_of_the_page_serves_what_heddle_says(before, is_heard):
    """Also where a switch is overtaken, before anything was active."""
    engine = Engine(before)
    seen = engine.run(engine.update("arrived", staged=True), engine.update("commit", activate=is_heard),
                      engine.update("retired"))
    back = [] if is_heard else [("switch", str(before))]
    assert seen == [("load", "p@2"), ("staged",), ("switch", "p@2"), ("activate",), *back, ("drop", "p@2")]


def test_the_engine_of_the_page_keeps_no_version_that_failed():
    engine = Engine()
    assert engine.run(engine.update("arrived", staged=True), engine.update("failed")) == [
        ("load", "p@2"), ("staged",), ("drop", "p@2")], "it failed elsewhere"
    engine = Engine()
    assert engine.run(engine.update("arrived", staged=False)) == [
        ("load", "p@2"), ("staged",), ("drop", "p@2")], "it is not wanted any more"

    def load(*args):
        raise ValueError("rank 64")
    engine = Engine()
    assert engine.run(engine.update("arrived", reject=True), engine.update("failed"), load=load) == [
        ("reject", "rank 64"), ("drop", "p@2")]


def test_everything_public_is_documented():
    for name in heddle.__all__:
        value = getattr(heddle, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
            for method, it in vars(value).items() if inspect.isclass(value) else ():
                if not method.startswith("_") and inspect.isfunction(it):
                    assert inspect.getdoc(it), f"{name}.{method}"


def test_the_exceptions_have_the_codes_that_the_page_gives_them():
    from heddle import _native
    for row in re.finditer(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", PAGE, re.M):
        kind = getattr(heddle, row.group(1), None)
        if kind is None or not issubclass(kind, heddle.HeddleError):
            continue
        for code in re.findall(r"`(\w+)`", row.group(2)):
            assert type(_native.error(code, "m")) is kind, (
                f"{code} is {type(_native.error(code, 'm')).__name__}, not {row.group(1)}")
