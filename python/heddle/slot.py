# SPDX-License-Identifier: Apache-2.0
"""A version in the memory of another process of this host: for the ranks of an engine, which get it from the
one process that is a worker.

    slot = update.share()                       # the worker's process: of an Update or a Snapshot
    slot.send(socket)                           # to each rank, over a unix socket
    slot.close()

    slot = heddle.slot.receive(socket)          # a rank: without libheddle, UCX, cffi or a broker
    engine_load(slot.tag, slot.torch(), slot.config)

The descriptor is a hold: the bytes do not change, and are not given back, as long as a process has the
descriptor or a tensor, whatever becomes of the others.  The kernel ends it with the last of them.

Tensors are private: what is written to one is seen through it alone, and costs memory page by page.  So an
engine may scale them in place.  Each call of torch() maps anew, and gives the bytes as they were published.
"""
from __future__ import annotations

import array
import ctypes
import fcntl
import json
import math
import mmap
import os
import re
import socket
import sys
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from heddle._dtypes import TORCH
from heddle.errors import Closed, HeddleError, NotFound, UsageError, error_class

__all__ = ["Slot", "Content", "Row", "receive"]

_LIMIT = 256 << 20              # bytes of a description: a table of a million tensors is smaller
_HEAD = 8                       # its length, before it
_DIMS = 16                      # of a tensor: no adapter with more is published
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW        # no byte of the file can go
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class Row(NamedTuple):
    """One tensor: safetensors' name of its type, and where its bytes lie in the file, dense and row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def _count(value: Any) -> int:
    """A number of the description: what is mapped and read goes by it."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a whole number of 0 or more")
    return value


def _row(name: Any, dtype: Any, shape: Any, offset: Any, nbytes: Any) -> Row:
    if len(shape) > _DIMS:
        raise ValueError(f"{name!r} has {len(shape)} dimensions")
    row = Row(str(name), str(dtype), tuple(map(_count, shape)), _count(offset), _count(nbytes))
    bits = re.search("[0-9]+", row.dtype)       # BOOL has none, and takes a byte
    if math.prod(row.shape) * int(bits[0] if bits else 8) != 8 * row.nbytes:
        raise ValueError(f"{row.dtype} of shape {row.shape} does not take {row.nbytes} bytes")
    return row


@dataclass(frozen=True)
class Content:
    """What is in the file.  `mark`: the bytes at `mark_offset`, as long as this version is in it."""

    tag: str
    config_bytes: bytes
    table: tuple[Row, ...]
    mark_offset: int
    mark: bytes

    def encode(self) -> bytes:
        return json.dumps({"tag": self.tag, "config": self.config_bytes.decode("latin-1"),
                           "table": self.table, "mark_offset": self.mark_offset,
                           "mark": self.mark.hex()}).encode()

    @staticmethod
    def decode(raw: bytes) -> Content:
        try:
            read = json.loads(raw)
            table = tuple(_row(*row) for row in read["table"])
            if len({row.name for row in table}) < len(table):
                raise ValueError("two tensors have one name")
            config = read["config"].encode("latin-1")
            if not isinstance(json.loads(config), dict):
                raise ValueError("its configuration is not a JSON object")
            return Content(str(read["tag"]), config, table, _count(read["mark_offset"]),
                           bytes.fromhex(read["mark"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise _strange("a description of a version cannot be read", found=repr(e)[:80]) from None


def _strange(message: str, **fields: Any) -> HeddleError:
    return error_class("protocol", 8)(message, code="protocol", exit=8, phase="fetch", **fields)


class Slot:
    """A descriptor of a version's memory, and what is in it.  Context manager.

    fd      of the file, which can only be read: this object's own; in a forked child it is closed
    content, tag, table, config_bytes, config       see Content

    Any thread.  `close()` may be called twice; what torch() gave stays.
    """

    def __init__(self, fd: int, content: Content) -> None:
        """Takes the descriptor over, also where the file is not one of Heddle's (BadAdapter)."""
        self.fd, self.content = fd, content
        try:
            self._check()
        except BaseException:
            self.close()
            raise
        _open_slots.add(self)

    def _check(self) -> None:
        """Beyond the end of a file a mapping is a fault (SIGBUS)."""
        try:
            size, seals = os.fstat(self.fd).st_size, fcntl.fcntl(self.fd, fcntl.F_GET_SEALS)
        except OSError as e:
            raise _strange("what was sent for a version is not shared memory", found=str(e)) from None
        need = self.content.mark_offset + len(self.content.mark)
        inside = all(0 <= row.offset and 0 <= row.nbytes
                     and row.offset + row.nbytes <= self.content.mark_offset for row in self.table)
        inside = inside and self.content.mark_offset >= 0
        if seals & _SEALS != _SEALS or size < need or not self.content.mark or not inside:
            raise _strange(f"the memory of {self.tag} is not what its description says",
                           expected=f"{need} bytes or more, seals {_SEALS:#x}",
                           found=f"{size} bytes, seals {seals:#x}")

    @property
    def tag(self) -> str:
        return self.content.tag

    @property
    def table(self) -> tuple[Row, ...]:
        return self.content.table

    @property
    def config_bytes(self) -> bytes:
        """adapter_config.json as published, byte by byte."""
        return self.content.config_bytes

    @property
    def config(self) -> dict[str, Any]:
        """adapter_config.json, decoded."""
        found: dict[str, Any] = json.loads(self.config_bytes)
        return found

    def torch(self) -> dict[str, Any]:
        """name -> torch tensor on the CPU, on memory that was mapped for this call.  They may be written to:
        no other process and no other call sees it.  The mapping goes with the last of them.  A forked child
        does not have it: to touch a tensor there is a fault (SIGSEGV).

        NotFound: the memory has another content now.  HeddleError (no_memory): it cannot be mapped.
        """
        import torch
        self._live()
        pages = self._map()
        found = {}
        for row in self.table:
            dtype = getattr(torch, TORCH.get(row.dtype, ""), None)
            if dtype is None:
                raise UsageError(f"this torch has no type for {row.dtype}", code="usage", exit=2,
                                 found=row.dtype)
            found[row.name] = (torch.frombuffer(pages, dtype=dtype, offset=row.offset,
                                                count=row.nbytes // dtype.itemsize).view(row.shape)
                               if row.nbytes else torch.empty(row.shape, dtype=dtype))
        return found

    def _map(self) -> Any:
        """A writable buffer over private pages of the whole file; they are unmapped with it."""
        size = self.content.mark_offset + len(self.content.mark)
        at = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, self.fd, 0)
        if at == _FAILED:
            why = os.strerror(ctypes.get_errno())
            raise HeddleError(f"{size} bytes of {self.tag} cannot be mapped: {why}", code="no_memory", exit=9,
                              phase="stage")
        pages = (ctypes.c_ubyte * size).from_address(at)
        weakref.finalize(pages, _unmap, at, size, os.getpid()).atexit = False
        _libc.madvise(at, size, mmap.MADV_DONTFORK)
        found = ctypes.string_at(at + self.content.mark_offset, len(self.content.mark))
        if found != self.content.mark:
            raise NotFound(f"the memory of {self.tag} has another content now", code="not_found", exit=3,
                           phase="fetch", hint="ask the process that sent it for the version again")
        return pages

    def send(self, to: socket.socket) -> None:
        """Sends it over a unix socket (SOCK_STREAM, blocking) to a process that calls receive().  It may be
        sent to any number of processes, and stays open here.  Another socket is a UsageError.
        """
        self._live()
        _takes_descriptors(to)
        raw = self.content.encode()
        head = len(raw).to_bytes(_HEAD, sys.byteorder)
        socket.send_fds(to, [head], [self.fd])          # 8 bytes go whole, or not at all
        to.sendall(raw)

    def _live(self) -> None:
        if self.fd < 0:
            raise Closed(f"the slot of {self.tag} is closed", code="closed", exit=2)

    def close(self) -> None:
        """Closes the descriptor.  What torch() gave goes on holding the version."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(f"{self!r} cannot be copied or pickled: send() it")

    def __repr__(self) -> str:
        return f"<heddle.Slot {self.tag}{'' if self.fd >= 0 else ' (closed)'}>"


def receive(of: socket.socket) -> Slot | None:
    """What send() sends; None: the other side has closed its end.  Raises Unavailable where it ends in the
    midst, BadAdapter (protocol) where something else came, HeddleError (no_memory) where this process may
    open no further descriptor: the next version may still come over this socket then.
    """
    fds = array.array("i")
    _takes_descriptors(of)
    # not socket.recv_fds: before Python 3.13 it takes no flags
    head, came, flags, _ = of.recvmsg(_HEAD, socket.CMSG_LEN(fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in came:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
    try:
        if not head and not fds:
            return None
        raw = _rest(of, _HEAD - len(head), head)
        size = int.from_bytes(raw, sys.byteorder)
        if not fds and flags & socket.MSG_CTRUNC and size <= _LIMIT:
            _rest(of, size)
            raise HeddleError("a version came, and this process may open no further descriptor",
                              code="no_memory", exit=9, phase="fetch",
                              hint="close descriptors, or raise their limit (ulimit -n)")
        if len(fds) != 1 or size > _LIMIT:
            raise _strange("a version came without its memory, or with a description that is too large",
                           expected=f"one descriptor, and at most {_LIMIT} bytes",
                           found=f"{len(fds)} descriptors, {size} bytes")
        content = Content.decode(_rest(of, size))
        return Slot(fds.pop(), content)
    finally:
        for fd in fds:
            os.close(fd)


def _takes_descriptors(of: socket.socket) -> None:
    """Over any other socket the kernel drops the descriptor, and says nothing."""
    if of.family != socket.AF_UNIX:
        raise UsageError("a version goes over a unix socket, for it is memory of this host", code="usage",
                         exit=2, expected="AF_UNIX", found=socket.AddressFamily(of.family).name)


def _rest(of: socket.socket, size: int, before: bytes = b"") -> bytes:
    got = bytearray(before)
    while len(got) < size + len(before):
        more = of.recv(min(size + len(before) - len(got), 1 << 20))
        if not more:
            raise error_class("unavailable", 7)("the process that sent a version ended in the midst of it",
                                                code="unavailable", exit=7, phase="fetch", retriable=True)
        got += more
    return bytes(got)


def _unmap(at: int, size: int, process: int) -> None:
    """A forked child has not got the mapping: other memory may be there."""
    if os.getpid() == process:
        _libc.munmap(at, size)


_open_slots: weakref.WeakSet[Slot] = weakref.WeakSet()


def _in_child() -> None:
    """A child that kept the descriptor would hold the version for as long as it lives."""
    for slot in list(_open_slots):
        slot.close()


os.register_at_fork(after_in_child=_in_child)
