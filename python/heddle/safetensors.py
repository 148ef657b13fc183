# SPDX-License-Identifier: Apache-2.0
"""Directories in, directories out: adapters as PEFT saves them (adapter_config.json +
adapter_model.safetensors), without torch.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle import _native
from heddle._native import ffi, lib
from heddle.publisher import Publisher
from heddle.versions import Version
from heddle.updates import Snapshot, Update

__all__ = ["AdapterDir", "check", "check_files", "publish", "export"]


@dataclass(frozen=True)
class AdapterDir:
    """What `check` found in a directory."""
    digest: str
    kind: str                       # "lora", "tensors"
    features: tuple[str, ...]
    base_model: str | None
    data_bytes: int
    tensor_count: int
    chunk_count: int
    chunk_bytes: int


def check(path: str | os.PathLike[str]) -> AdapterDir:
    """Reads a directory as publish_dir would, digests it, and tells what it found.  Needs no broker; the
    tensors are never in memory as a whole.

    NotFound: no such directory; BadAdapter: anything wrong inside, with the file, what was expected and
    found.
    """
    info = _new_info()
    _native.check(lib.heddle_adapter_check(_native.c_text(path), info))
    return _found(info)


def check_files(paths: Iterable[str | os.PathLike[str]]) -> AdapterDir:
    """The same of safetensors files that publish_files would publish as one version."""
    info = _new_info()
    files, kept = _native.c_list([os.fspath(path) for path in paths], "paths")
    _native.check(lib.heddle_adapter_check_files(files, info))
    del kept
    return _found(info)


def _new_info() -> Any:
    return ffi.new("heddle_adapter_info_t *", {"size": ffi.sizeof("heddle_adapter_info_t")})


def _found(info: Any) -> AdapterDir:
    words = _native.text(info.features) or ""
    return AdapterDir(digest=_native.text(info.digest) or "", kind=_native.text(info.kind) or "",
                      features=tuple(words.split(",")) if words else (),
                      base_model=_native.text(info.base_model) or None, data_bytes=info.data_bytes,
                      tensor_count=info.tensor_count, chunk_count=info.chunk_count,
                      chunk_bytes=info.chunk_bytes)


def publish(publisher: Publisher, path: str | os.PathLike[str], *, step: int | None = None,
            request_id: str | None = None, meta: Mapping[str, str] | None = None,
            deadline: float | None = 60.0, allow_step_back: bool = False) -> Version:
    """publisher.publish_dir(path, ...): a directory in."""
    return publisher.publish_dir(path, step=step, request_id=request_id, meta=meta, deadline=deadline,
                                 allow_step_back=allow_step_back)


def export(held: Snapshot | Update, path: str | os.PathLike[str]) -> None:
    """A directory out, of a Snapshot or an Update: complete, synced, then renamed to `path`, which must not
    exist.

    A file that PEFT saved comes out identical byte for byte.  HeddleError (no_space, internal) leaves nothing
    behind.
    """
    held.export(path)
