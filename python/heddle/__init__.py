# SPDX-License-Identifier: Apache-2.0
"""Heddle: LoRA adapters from an RL trainer to every rollout worker, by version, verified, switched when
all have them.

    pub = heddle.Publisher(adapter="policy")                  # trainer, once
    ver = pub.publish(model, step=step)                       # trainer, each version: returns when durable

    w = heddle.Worker(adapters=["policy"], apply="auto")      # engine, once
    w.wait_current()
    with w.acquire("policy") as a:                            # engine, each batch: read-only views, the tag
        use(a.torch(), a.tag)

Times are seconds (float), sizes bytes, shapes tuples, types safetensors' names ("BF16").  Every failure is a
HeddleError.  Every wait releases the GIL and ends at once on Ctrl-C.  torch, numpy and peft are imported only
by what needs them.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle import engine, peft, records, safetensors, slot, trl, vllm
    from heddle._doctor import Diagnosis, doctor
    from heddle.admin import Admin, AsyncAdmin
    from heddle.errors import (BadAdapter, Closed, Conflict, Deadline, Denied, Fenced, ForkError, HeddleError,
                               Held, NotFound, RolloutFailed, Unavailable, UsageError)
    from heddle.publisher import Publisher
    from heddle.tensors import Tensor, Tensors
    from heddle.updates import Snapshot, Update, Updates
    from heddle.versions import Missing, Progress, Rollout, Version
    from heddle.worker import Current, Worker

__version__: str

__all__ = ["Admin", "AsyncAdmin", "BadAdapter", "Closed", "Conflict", "Current", "Deadline", "Denied",
           "Diagnosis", "Fenced", "ForkError", "HeddleError", "Held", "Missing", "NotFound", "Progress",
           "Publisher", "Rollout", "RolloutFailed", "Snapshot", "Tensor", "Tensors", "Unavailable", "Update",
           "Updates", "UsageError", "Version", "Worker", "__version__", "doctor", "peft", "records",
           "safetensors", "slot"]

# Imported with the first use of a name: a process that has only heddle.slot does not load cffi.
_MODULES = ("admin", "engine", "errors", "peft", "publisher", "records", "safetensors", "slot", "tensors",
            "trl", "updates", "versions", "vllm", "worker")
_PLACES = {"_doctor": ("Diagnosis", "doctor"), "admin": ("Admin", "AsyncAdmin"),
           "errors": ("BadAdapter", "Closed", "Conflict", "Deadline", "Denied", "Fenced", "ForkError",
                      "HeddleError", "Held", "NotFound", "RolloutFailed", "Unavailable", "UsageError"),
           "publisher": ("Publisher",), "tensors": ("Tensor", "Tensors"),
           "updates": ("Snapshot", "Update", "Updates"),
           "versions": ("Missing", "Progress", "Rollout", "Version"), "worker": ("Current", "Worker")}
_PLACE = {name: module for module, names in _PLACES.items() for name in names}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


if not TYPE_CHECKING:                   # a type checker refuses a name that is not there
    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return importlib.import_module("heddle._native").release()
        if name in _MODULES:
            return importlib.import_module(f"heddle.{name}")
        if name not in _PLACE:
            raise AttributeError(f"module 'heddle' has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"heddle.{_PLACE[name]}"), name)
        return found
