# SPDX-License-Identifier: Apache-2.0
"""Tensors on their way in and out: what torch and numpy call a type, and views of a slot's memory.

Neither torch nor numpy is imported before a tensor of theirs comes in, or is asked for.
"""
from __future__ import annotations

import array
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from heddle import _native
from heddle._dtypes import TORCH
from heddle._native import ffi, lib

if TYPE_CHECKING:
    from heddle.updates import Hold

__all__ = ["Tensor", "Tensors"]

# those of TORCH that every torch takes from DLPack, the others by a buffer each
_DLPACK = {"U8", "I8", "I16", "F16", "BF16", "I32", "F32", "C64", "F64", "I64"}
# ... -> numpy's; where numpy has no such type, the unsigned integers of its size
NUMPY = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "uint8", "F8_E4M3": "uint8",
         "F8_E8M0": "uint8", "F8_E4M3FNUZ": "uint8",
         "F8_E5M2FNUZ": "uint8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "uint16",
         "I32": "int32", "U32": "uint32",
         "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}
_FROM_TORCH = {f"torch.{there}": here for here, there in TORCH.items()}
# numpy's names, and those of ml_dtypes
_FROM_NUMPY = {there: here for here, there in NUMPY.items() if there == TORCH[here]}
_FROM_NUMPY |= {"bfloat16": "BF16", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
                "float8_e8m0fnu": "F8_E8M0",
                "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}


@functools.cache
def torch_dtype(name: str) -> Any:
    """torch's type of a safetensors name."""
    import torch
    found = getattr(torch, TORCH.get(name, ""), None)
    if found is None:
        raise _native.error("usage", f"this torch has no type for {name}", found=name,
                            hint="take .data, the bytes as they are")
    return found


# -- in ------------------------------------------------------------------------------------------------------

def torch_name(dtype: Any) -> str:
    """safetensors' name of a torch type."""
    found = _FROM_TORCH.get(str(dtype))
    if found is None:
        raise _native.error("usage", f"no version has tensors of {dtype}", expected="a type of safetensors",
                            found=str(dtype), hint="cast them before publishing")
    return found


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def numpy_kind(dtype: str) -> str:
    """numpy's name of the type that has the bits of one of safetensors."""
    kind = NUMPY.get(dtype)
    if kind is None:
        raise _native.error("usage", f"numpy has no type for {dtype}", found=dtype,
                            hint="take .data, the bytes as they are")
    return kind


def describe(name: str, value: Any) -> tuple[str, tuple[int, ...]]:
    """(safetensors' type, shape) of a torch or numpy tensor."""
    if is_torch(value):
        dtype = _FROM_TORCH.get(str(value.dtype))
    elif is_numpy(value):
        dtype = _FROM_NUMPY.get(value.dtype.name)
    else:
        raise _native.error("usage", f"tensor {name} is neither torch's nor numpy's",
                            expected="torch.Tensor or numpy.ndarray",
                            found=type(value).__name__)
    if dtype is None:
        raise _native.error("usage", f"tensor {name} has a type that no adapter has",
                            expected="a type of safetensors",
                            found=str(value.dtype), hint="cast it before publishing")
    if is_torch(value):
        if hasattr(value, "device_mesh"):
            raise _native.error("usage", f"tensor {name} is sharded over ranks", expected="the whole tensor",
                                found=type(value).__name__,
                                hint="take its full_tensor(), on every rank")
        check_memory(name, value)
    return dtype, tuple(int(n) for n in value.shape)


def check_memory(name: str, tensor: Any, phase: str | None = None) -> None:
    """Refuses a torch tensor whose bytes cannot be read: sparse; on "meta"; its storage freed, or less than
    what it spans.

    The address of its first element tells nothing: that of a view into a freed storage is its offset.
    """
    if hasattr(tensor, "__tensor_flatten__"):   # it only wraps others (a DTensor: this rank's piece)
        for part in filter(is_torch, (getattr(tensor, part) for part in tensor.__tensor_flatten__()[0])):
            check_memory(name, part, phase)
        return
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        storage = None
    if storage is None or tensor.is_nested:
        raise _native.error("usage", f"tensor {name} is not dense", expected="torch.strided", phase=phase,
                            found="a nested tensor" if tensor.is_nested else str(tensor.layout))
    count, have = extent(tensor), storage.nbytes()
    need = (int(tensor.storage_offset()) + count) * tensor.itemsize
    if count and (have < need or storage.data_ptr() == 0):
        raise _native.error("usage", f"tensor {name} has no memory",
                            expected=f"a storage of {need} bytes or more", phase=phase,
                            found=f"{have if storage.data_ptr() else 0} bytes, device {tensor.device}",
                            hint="it was freed or never had any: load or gather it first")


def extent(tensor: Any) -> int:
    """Elements from its first one to its last one in memory, both counted."""
    count: int = tensor.numel()
    if count and not tensor.is_contiguous():
        count = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return count


def address(tensor: Any) -> int | None:
    """The address of a tensor's bytes, where they lie on the CPU as they are published: dense, row-major, in
    this machine's byte order, and with nothing that torch works out later.  None: they are to be converted.
    """
    if is_torch(tensor):
        is_plain = (tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()
                    and not tensor.is_conj() and not hasattr(tensor, "__tensor_flatten__"))
        return int(tensor.data_ptr()) if is_plain else None
    is_plain = tensor.flags.c_contiguous and tensor.dtype.isnative
    return int(ffi.cast("uintptr_t", ffi.from_buffer(tensor))) if is_plain else None


def torch_target(place: Any, size: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """A writable torch tensor on Heddle's memory."""
    import torch
    return torch.frombuffer(ffi.buffer(place, size), dtype=torch_dtype(dtype)).view(shape)


def write(place: Any, size: int, dtype: str, shape: tuple[int, ...], value: Any) -> None:
    """Copies a tensor, of any strides, to its place: dense, row-major."""
    if size == 0:
        return
    if is_torch(value):
        torch_target(place, size, dtype, shape).copy_(value.detach())
    else:
        import numpy
        # ml_dtypes: the same bytes
        source = value.view(NUMPY[dtype]) if value.dtype.name != NUMPY[dtype] else value
        numpy.copyto(numpy.frombuffer(ffi.buffer(place, size), dtype=NUMPY[dtype]).reshape(shape), source,
                     casting="equiv")


class Table:
    """The rows that heddle_publication_begin takes, and what keeps them alive."""

    def __init__(self, rows: list[tuple[str, str, tuple[int, ...]]]) -> None:
        self.rows = rows
        self.sizes: list[int] = []
        self._kept: list[Any] = []
        self.c = ffi.new("heddle_tensor_t[]", len(rows))
        for c, (name, dtype, shape) in zip(self.c, rows, strict=True):
            self._fill(c, name, dtype, shape)

    def _fill(self, c: Any, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        c.size = ffi.sizeof("heddle_tensor_t")
        c.dtype = lib.heddle_dtype_from_name(dtype.encode())
        try:
            name.encode()
        except UnicodeError:
            raise _native.error("usage", f"the name of tensor {name!r} is not text",
                                expected="what UTF-8 has", found="half of a surrogate pair") from None
        # a field read back owns nothing
        kept = _native.c_text(name), ffi.new("uint64_t[]", list(shape) or [0])
        c.name, c.dims = kept
        c.ndim = len(shape)
        self._kept += kept
        count = 1
        for n in shape:
            count *= n
        self.sizes.append(count * lib.heddle_dtype_bits(c.dtype) // 8)

    def __len__(self) -> int:
        return len(self.rows)


def _forms(values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """As long as these are the same, so is what describe() says of each."""
    return [(type(v), getattr(v, "dtype", None), getattr(v, "shape", None), getattr(v, "device", None))
            for v in values]


class Given(Table):
    """The table of tensors that a caller gave: made once for the same names, types, shapes and devices.

    Memory is not part of it: addresses, strides and storages are looked at in each call.
    """

    def __init__(self, names: tuple[str, ...], values: list[Any]) -> None:
        self._names, self._forms = names, _forms(values)
        self.is_on_cpu = all(getattr(device, "type", "cpu") == "cpu" for *_, device in self._forms)
        super().__init__([(name, *describe(name, v)) for name, v in zip(names, values, strict=True)])
        # of describe()'s answers: no storage to be checked, and in this machine's byte order
        self._is_numpy = all(map(is_numpy, values))
        self._is_native = self._is_numpy and all(v.dtype.isnative for v in values)

    def fits(self, names: tuple[str, ...], values: list[Any]) -> bool:
        return names == self._names and _forms(values) == self._forms

    def check_memory(self, values: list[Any]) -> None:
        """What describe() checks of each, and what may change without a change of the table."""
        if self._is_numpy:
            return
        for name, value in zip(self._names, values, strict=True):
            if is_torch(value):
                check_memory(name, value)

    def _numpy_sources(self, values: list[Any]) -> Any:
        """The addresses of all, in half the time that address() takes for each.  None: not all are dense and
        in row-major order.
        """
        if not self._is_native:
            return None
        try:
            return ffi.new("void *[]", list(map(ffi.from_buffer, values)))
        except ValueError:
            return None

    def fill(self, publication: Any, values: list[Any]) -> None:
        """Copies each tensor to its place: in one call of the library those that lie as they are published,
        the others one by one.
        """
        sources = self._numpy_sources(values)
        if sources is not None:
            _native.check(lib.heddle_publication_write(publication, sources))
            return
        found = [address(value) for value in values]
        addresses = array.array("Q", [at or 0 for at in found])
        _native.check(lib.heddle_publication_write(publication, ffi.from_buffer("void *[]", addresses)))
        for i in (i for i, at in enumerate(found) if at is None):
            _, dtype, shape = self.rows[i]
            write(lib.heddle_publication_tensor(publication, i), self.sizes[i], dtype, shape, values[i])


# -- out -----------------------------------------------------------------------------------------------------

class Layout:
    """The tensors of a version, in order of name, and how far each lies from the first one's memory.

    One serves for all versions with this digest of their table.
    """

    def __init__(self, digest: bytes, rows: list[tuple[str, str, tuple[int, ...], int, int]]) -> None:
        self.digest = digest
        self.rows = rows                    # (name, dtype, shape, nbytes, start)
        # those that are handed over by DLPack, and their names; an empty one would hold the slot for nothing
        self.handed = [i for i, (_, dtype, _, nbytes, _) in enumerate(rows) if nbytes and dtype in _DLPACK]
        self.handed_names = [rows[i][0] for i in self.handed]
        self.handed_c = ffi.new("uint32_t[]", self.handed)
        self.nbytes = max((start + nbytes for *_, nbytes, start in rows), default=0)
        self._numpy_rows: list[tuple[str, Any, tuple[int, ...], int]] | None = None

    def numpy_rows(self) -> list[tuple[str, Any, tuple[int, ...], int]]:
        """(name, numpy.dtype, shape, start) of all."""
        import numpy
        if self._numpy_rows is None:
            # an empty one has no place of its own
            self._numpy_rows = [(name, numpy.dtype(numpy_kind(dtype)), shape, start if nbytes else 0)
                                for name, dtype, shape, nbytes, start in self.rows]
        return self._numpy_rows


class Tensor:
    """One tensor of a version: read-only, in the worker's slot, nothing copied.

    name   PEFT's key                      dtype   safetensors' name ("BF16")
    shape  tuple of int                    nbytes  bytes, dense and row-major
    data   memoryview of the bytes         numpy(), torch()   the same bytes as an array

    Every view keeps the version's slot until it is gone, its block's end notwithstanding.
    """

    __slots__ = ("name", "dtype", "shape", "nbytes", "address", "hold")

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], nbytes: int, address: int,
                 hold: Hold) -> None:
        self.name, self.dtype, self.shape, self.nbytes = name, dtype, shape, nbytes
        self.address, self.hold = address, hold

    def _buffer(self) -> Any:
        return self.hold.buffer(self.name, self.address, self.nbytes)

    @property
    def data(self) -> memoryview:
        """The bytes, read-only."""
        return memoryview(self._buffer()).toreadonly()

    def numpy(self) -> Any:
        """A read-only numpy array.

        bf16 comes as uint16 and fp8 as uint8 (the bits as they are): numpy has no such types.
        """
        import numpy
        kind = numpy_kind(self.dtype)
        if self.nbytes == 0:
            return numpy.empty(self.shape, dtype=kind)
        return numpy.frombuffer(self.data, dtype=kind).reshape(self.shape)

    def torch(self) -> Any:
        """A torch tensor on the CPU, over the slot's memory.

        torch has no read-only tensors: writing to this one ends the process (SIGSEGV).
        """
        import torch
        kind = torch_dtype(self.dtype)
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=kind)
        # writable to the eye: of a read-only buffer torch warns each time
        return torch.frombuffer(self._buffer(), dtype=kind).view(self.shape)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}, {list(self.shape)})"


class Tensors(Mapping[str, Tensor]):
    """The tensors of a version by name, in order of name."""

    def __init__(self, layout: Layout, first: int, hold: Hold) -> None:
        self._layout, self._first, self._hold = layout, first, hold
        self._rows: dict[str, Tensor] | None = None

    def _made(self) -> dict[str, Tensor]:
        if self._rows is None:              # on two threads: twice the same
            self._rows = {name: Tensor(name, dtype, shape, nbytes, self._first + start, self._hold)
                          for name, dtype, shape, nbytes, start in self._layout.rows}
        return self._rows

    def __getitem__(self, name: str) -> Tensor:
        return self._made()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._layout.rows)

    def places(self) -> list[tuple[str, str, tuple[int, ...], int, int]]:
        """(name, dtype, shape, nbytes, address) of all, without a view of any."""
        return [(*row[:4], self._first + row[4]) for row in self._layout.rows]

    def numpy(self) -> dict[str, Any]:
        """name -> numpy array (`Tensor.numpy`)."""
        return self._hold.arrays(self._layout, self._first)

    def torch(self) -> dict[str, Any]:
        """name -> torch tensor (`Tensor.torch`)."""
        from torch.utils.dlpack import from_dlpack
        of = self._layout
        handed = self._hold.hand_over(of, from_dlpack) if of.handed else []
        found = dict(zip(of.handed_names, handed, strict=True))
        if len(found) == len(of.rows):
            return found
        return {name: found[name] if name in found else row.torch() for name, row in self._made().items()}

    def __repr__(self) -> str:
        return f"Tensors({len(self)} tensors)"
