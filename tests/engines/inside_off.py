# SPDX-License-Identifier: Apache-2.0
"""inside_off.py vllm|sglang: in an engine's environment, without a server: its plugin where it must stay off.
Prints, as JSON, what is wrong."""
import importlib
import json
import logging
import os
import sys
import threading

from heddle._inside.seams import Attribute, Function

KIND = sys.argv[1]
NAME = {"vllm": "vLLM", "sglang": "SGLang"}[KIND]
LOG = {"vllm": "vllm.heddle", "sglang": "sglang.srt.heddle"}[KIND]
ON = {"HEDDLE_BROKER": "tcp://127.0.0.1:7700", "HEDDLE_ADAPTERS": "policy",
      **({"VLLM_PLUGINS": "heddle"} if KIND == "vllm" else {})}
OTHERS = {"vllm": ("0.25.1", "0.30.0", "0.33.0", "0.32.0rc1", "1.32.0", ""),
          "sglang": ("0.5.10.post1", "0.5.12", "0.5.22", "0.5.24", "0.5.23rc1", "10.5.23", "")}[KIND]
if KIND == "vllm":
    import vllm.logger  # noqa: F401 - vLLM sets its logging up before it loads a plugin
plugin = importlib.import_module(f"heddle.{KIND}.plugin")
seams = importlib.import_module(f"heddle.{KIND}.seams")


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def sockets():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            pass
    return found


class State:
    """What the plugin would change."""

    def __init__(self):
        if KIND == "vllm":
            from vllm.lora import lora_model, peft_helper, worker_manager
            self._of = (lora_model, peft_helper, worker_manager, worker_manager.WorkerLoRAManager,
                        worker_manager.LRUCacheWorkerLoRAManager)
        else:
            from sglang.srt.entrypoints import http_server
            from sglang.srt.lora.lora_manager import LoRAManager
            from sglang.srt.managers.tokenizer_manager import TokenizerManager
            from sglang.srt.managers.tp_worker import BaseTpWorker
            from sglang.srt.plugins.hook_registry import HookRegistry
            self._of = (http_server, LoRAManager, TokenizerManager, BaseTpWorker, HookRegistry)
            self._hooks = HookRegistry._hooks

    def now(self):
        names = [dict(vars(of)) for of in self._of]
        if KIND == "sglang":
            names.append(dict(self._hooks))
        return threading.active_count(), sockets(), os.environ.get("HEDDLE_RANKS"), names


class Without:
    """A name of vLLM taken away, or a parameter of it renamed."""

    def __init__(self, seam, is_renamed=False):
        self._seam, self._is_renamed = seam, is_renamed

    def __enter__(self):
        module = __import__(self._seam.module, fromlist=["_"])
        name = self._seam.owner if isinstance(self._seam, Attribute) else self._seam.name
        *owners, self._name = name.split(".")
        self._owner = module
        for owner in owners:
            self._owner = getattr(self._owner, owner)
        self._was = vars(self._owner)[self._name]
        self._all = [(owner, vars(owner)[self._name]) for owner in getattr(self._owner, "__mro__", [module])
                     if self._name in vars(owner)]
        for owner, _ in self._all:
            delattr(owner, self._name)
        if self._is_renamed:
            function = getattr(self._was, "__func__", self._was)
            names = list(function.__code__.co_varnames)
            names[len(self._seam.parameters) - 1] = "renamed"
            other = type(function)(function.__code__.replace(co_varnames=tuple(names)), function.__globals__)
            setattr(self._owner, self._name,
                    classmethod(other) if isinstance(self._was, classmethod) else other)

    def __exit__(self, *_):
        for owner, was in self._all:
            setattr(owner, self._name, was)


def wrong_of(what, words, lines, state):
    """Of register() where it must not turn on."""
    before = state.now()
    plugin._is_off, lines.said = False, []
    plugin.register()
    plugin.register()
    if state.now() != before:
        yield f"{what}: something is changed"
    if len(lines.said) != 1 or not all(word in lines.said[0] for word in (words, "python -m heddle.engine")):
        yield f"{what}: it says {lines.said}"


def main():
    lines, wrong = Lines(), []
    log = logging.getLogger(LOG)
    log.addHandler(lines)
    log.propagate = False
    state = State()                             # what it imports changes the counts
    for name in ON:
        os.environ.update(ON)
        del os.environ[name]
        wrong += wrong_of(f"without {name}", name, lines, state)
    os.environ.update(ON)
    real = plugin.release()
    for other in OTHERS:
        plugin.release = lambda other=other: other
        wrong += wrong_of(f"release {other}", f"{NAME} {other} is not a release", lines, state)
    plugin.release = lambda: real
    for seam in seams.SEAMS:
        with Without(seam):
            wrong += wrong_of(f"without {seam}", f"{NAME} {real} is not as expected", lines, state)
        if isinstance(seam, Function):
            with Without(seam, is_renamed=True):
                wrong += wrong_of(f"renamed {seam}", "renamed", lines, state)
    plugin._is_off, lines.said = False, []
    plugin.register()                           # and with all of it: on
    if lines.said or plugin._listener is None or "HEDDLE_RANKS" not in os.environ:
        wrong.append(f"it does not turn on: {lines.said}")
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
