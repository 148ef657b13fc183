# SPDX-License-Identifier: Apache-2.0
"""libheddle as Python sees it: found, loaded at the first use, its errors as exceptions, and the fork that
ends it.

Every call of the library releases the GIL.  Nothing here is public.
"""
from __future__ import annotations

import importlib.util
import json
import operator
import os
import pathlib
import re
import threading
from collections.abc import Mapping
from typing import Any

from heddle.errors import ForkError, HeddleError, error_class, named

try:
    from heddle._abi import ffi as _ffi
except ImportError as e:      # a checkout that was never built
    raise ImportError("heddle is not built: `pip install ./python` in the checkout makes heddle/_abi.py and "
                      "the library") from e

ffi: Any = _ffi
NULL = ffi.NULL
HERE = pathlib.Path(__file__).resolve().parent
NUMBER_MAX = 2**53 - 1        # of versions, sequence numbers, bytes: what every JSON reader holds
LONGEST_MS = 2**31 - 1        # of times: 24 days, the longest that the command line and C take
BUNDLED = HERE / "_lib" / "libheddle.so.0"


def library_path() -> str:
    """Which file is, or will be, loaded: $HEDDLE_LIBRARY, the wheel's, else what the dynamic linker finds."""
    return os.environ.get("HEDDLE_LIBRARY") or (str(BUNDLED) if BUNDLED.exists() else "libheddle.so.0")


def release() -> str:
    """The version of this package, as its metadata says; the library's own where it is not installed."""
    from importlib import metadata
    try:
        return metadata.version("heddle-sync")
    except metadata.PackageNotFoundError:
        return version()


class _Library:
    """Loads on the first attribute, so that `import heddle` costs nothing and cannot fail for want of a
    library.
    """

    def __getattr__(self, name: str) -> Any:
        opened = _open()
        value = getattr(opened, name)
        setattr(self, name, value)
        return value


_lock = threading.Lock()
_opened: Any = None


def _open() -> Any:
    global _opened
    with _lock:
        if _opened is None:
            path = library_path()
            try:
                found = ffi.dlopen(path)
                have = ffi.string(found.heddle_version()).decode()
                found.heddle_publisher_publish_files      # the youngest function that is needed
            except (OSError, AttributeError) as e:
                raise HeddleError(f"libheddle cannot be used: {e}", code="internal", exit=9, found=path,
                                  hint="install heddle-sync again, or name the library of the same release: "
                                       "HEDDLE_LIBRARY") from e
            from importlib import metadata
            try:
                want = metadata.version("heddle-sync")
            except metadata.PackageNotFoundError:
                want = have
            if have.split(".")[:2] != want.split(".")[:2]:
                raise HeddleError("libheddle is of another release than this package", code="internal",
                                  exit=9, expected=want, found=f"{have} ({path})",
                                  hint="name the library of the same release: HEDDLE_LIBRARY")
            _opened = found
    return _opened


lib: Any = _Library()


def version() -> str:
    return text(lib.heddle_version()) or ""


# -- fork ----------------------------------------------------------------------------------------------------

used = False        # a handle was opened: threads, sockets and UCX belong to this process
forked = False      # ... and this is a child of it


def _in_child() -> None:
    global forked
    forked = forked or used


os.register_at_fork(after_in_child=_in_child)


def use() -> None:
    """Before any handle is opened, and in every call."""
    global used
    if forked:
        raise ForkError()
    used = True


# -- texts and errors ----------------------------------------------------------------------------------------

def text(c: Any) -> str | None:
    return None if c == NULL else ffi.string(c).decode("utf-8", "replace")


def take_text(holder: Any) -> str:
    """The text in a `char **` that the library made, which is freed."""
    try:
        return str(ffi.string(holder[0]).decode("utf-8", "replace"))
    finally:
        lib.heddle_free(holder[0])


def take_json(holder: Any) -> Any:
    return json.loads(take_text(holder))


def c_text(value: str | os.PathLike[str] | None) -> Any:
    """A NUL-terminated copy; keep it while C reads it."""
    if value is None:
        return NULL
    try:
        raw = os.fsencode(value)
    except (TypeError, ValueError):             # no text, or one that no encoding has
        raise error("usage", "that is not text", expected="a str or a path", found=repr(value)[:80]) from None
    if b"\0" in raw:
        raise error("usage", f"a text has a NUL byte in it: {value!r}")
    return ffi.new("char[]", raw)


def names(values: Any, what: str) -> tuple[str, ...]:
    """The texts of a list; a single text is none, though Python would take it for a list of letters."""
    if isinstance(values, (str, bytes)):
        raise error("usage", f"{what} is a list", expected=f"[{values!r}]", found=repr(values))
    try:
        found = tuple(values)
    except TypeError:
        raise error("usage", f"{what} is not a list", expected="a list of texts",
                    found=repr(values)[:80]) from None
    for value in found:
        if not isinstance(value, str):
            raise error("usage", f"{what} has something that is not text", expected="texts",
                        found=repr(value)[:80])
    return found


def c_list(values: Any, what: str = "it") -> tuple[Any, list[Any]]:
    """A NULL-terminated `const char *[]` and what keeps it alive; NULL for None."""
    if values is None:
        return NULL, []
    kept = [c_text(v) for v in names(values, what)]
    return ffi.new("const char *[]", kept + [NULL]), kept


def pairs(values: Any, what: str) -> list[str] | None:
    """"key=value" of each pair of a mapping, for c_list; None where there are none."""
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise error("usage", f"{what} is not a mapping", expected='{"key": "value"}', found=repr(values)[:80])
    return [f"{key}={value}" for key, value in values.items()] or None


def count(value: Any, what: str, least: int = 0, most: int = 2**31 - 1, hint: str | None = None) -> int:
    """A whole number within bounds, as C takes it.  True and False are none."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool) or not least <= found <= most:
        is_count = found is not None and not isinstance(value, bool)
        raise error("usage", f"{what} is {'out of bounds' if is_count else 'not a count'}",
                    expected=f"an integer, {least} to {most}", found=repr(value)[:80],
                    hint=hint or f"pass a whole number within these bounds as {what}=")
    return found


# What hints of the library call things by (fields of C's options, then options of the command line), in words
# of this package.
_SPOKEN = [(re.compile(pattern), said) for pattern, said in (
    (r"\btimeout_ms\b", "timeout="),
    (r"\bopts\.([a-z_]+?)(?:_ms)?\b", lambda m: "--" + m[1].replace("_", "-")),
    (r"wait for phase staged", 'ver.wait(phase="staged")'),
    (r"--broker or HEDDLE_BROKER", "broker= or HEDDLE_BROKER"),
    (r"--key or HEDDLE_KEY", "key= or HEDDLE_KEY"), (r"\(--key, HEDDLE_KEY\)", "(key=, HEDDLE_KEY)"),
    (r"--request-id", "request_id"), (r"--takeover", "Publisher(takeover=True)"),
    (r"--allow-step-back", "allow_step_back=True"),
    (r"--if-unchanged (\w+) that version is taken, with publish",
     r'Publisher(if_unchanged="\1") that version is taken, with if_unchanged="publish"'),
    (r"--if-unchanged (\w+)", r'Publisher(if_unchanged="\1")'),
    (r"(?<!with )(?<!without )--insecure", "insecure=True"), (r"--adapter ([^\s,]+)", r'adapters=["\1"]'),
    (r"--kinds (\w+)", r'kinds=["\1"]'), (r"--kind (\w+)", r'kind="\1"'),
    (r"with --adapter", "with adapters=[...]"), (r"--slots (\d+)", r"slots=\1"),
    (r"--slots to (\d+)", r"slots to \1"),
    (r"with more --slots", "with a larger slots="), (r"--step ", "step="),
    (r"--(name|deadline|timeout)\b", r"\1="),
    (r"--(broker-key|data-device|host-share|join-timeout|address|broker|join|key)\b",
     lambda m: m[1].replace("-", "_") + "="))]


# Commands that are calls of Admin.
_COMMAND = re.compile(r"`heddle (status|adapters|workers|versions|wait|activate|rollback|resume|forget|drain|"
                      r"verify|events)(?: (?!-)([^ `]+))?(?: --phase (\w+))?`")
_WITHOUT = ("status", "adapters", "workers", "events")      # those that need no name


def _as_call(m: re.Match[str]) -> str:
    of = [f'"{m[2]}"' if m[2] else "" if m[1] in _WITHOUT else "...", f'phase="{m[3]}"' if m[3] else ""]
    return f"`Admin().{m[1]}({', '.join(part for part in of if part)})`"


def spoken(hint: str) -> str:
    """A hint of the library in terms of Python.  Commands in `...` that are not calls of this package, and
    options of another program, stay as they are.
    """
    parts = re.split(r"(`[^`]*`)", _COMMAND.sub(_as_call, hint))
    for pattern, said in _SPOKEN:
        parts[::2] = [pattern.sub(said, part) for part in parts[::2]]
    return "".join(parts)


def error(code: str, message: str, **fields: Any) -> HeddleError:
    """An exception of our own with a code of the list."""
    exit_status = lib.heddle_err_exit(lib.heddle_err_from_name(code.encode()))
    return error_class(code, exit_status)(message, code=code, exit=exit_status, **fields)


def c_error(e: HeddleError) -> Any:
    """heddle_error_t, for a call that reports it; texts that are too long are cut between two characters."""
    row = ffi.new("heddle_error_t *", {"code": lib.heddle_err_from_name(e.code.encode())})
    for name in ("phase", "message", "expected", "found", "hint"):
        place, told = getattr(row, name), (getattr(e, name) or "").encode("utf-8", "replace")
        ffi.memmove(place, told := told[:len(place) - 1].decode("utf-8", "ignore").encode(), len(told))
    return row


def error_of(rc: int, described: Any = None) -> HeddleError:
    """The exception of a call that returned rc on this thread."""
    e = lib.heddle_last_error() if described is None else described
    name, exit_status = text(lib.heddle_err_name(rc)) or "unknown", lib.heddle_err_exit(rc)
    kind = error_class(name, exit_status)
    if e.code != rc:
        return kind(text(lib.heddle_err_text(rc)) or name, code=name, exit=exit_status)
    message = named(text(e.message) or "") or text(lib.heddle_err_text(rc)) or name
    return kind(message, code=name, exit=exit_status,
                adapter=text(e.adapter) or None, version=e.version or None, worker=text(e.worker) or None,
                phase=text(e.phase) or None, expected=text(e.expected) or None, found=text(e.found) or None,
                hint=spoken(text(e.hint) or "") or None, retriable=bool(e.retriable))


def check(rc: int) -> None:
    if rc:
        raise error_of(rc)


def milliseconds(seconds: float | None, what: str, least: int = 0) -> int:
    """Seconds as a count of milliseconds for C; None (no limit) and all that is longer: LONGEST_MS."""
    if seconds is None:
        return LONGEST_MS
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or seconds != seconds or seconds < 0:
        raise error("usage", f"{what} is not a time", expected="seconds, 0 or more, or None: no limit",
                    found=repr(seconds)[:80], hint=f"pass a number of seconds, or None, as {what}=")
    return max(least, min(int(min(seconds, LONGEST_MS) * 1000 + 0.999), LONGEST_MS))


# -- the data plane ------------------------------------------------------------------------------------------

def ucx_of_environment() -> str | None:
    """The directory of UCX's libraries in PyPI's libucx-cu12 or -cu13, where that is installed and its files
    are there.
    """
    try:
        spec = importlib.util.find_spec("libucx")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (pathlib.Path(place) / "lib" / "libucp.so.0").exists():
            return str(pathlib.Path(place) / "lib")
    return None


def system_has_ucx() -> bool:
    """Whether the dynamic linker finds a UCX by itself (one that the process has loaded already counts)."""
    import ctypes.util
    return ctypes.util.find_library("ucp") is not None or _is_loaded("libucp.so")


def _is_loaded(name: str) -> bool:
    try:
        return any(f"/{name}" in line for line in pathlib.Path("/proc/self/maps").read_text().splitlines())
    except OSError:
        return False


def load_transport() -> dict[str, str]:
    """Loads plugin and UCX: the system's UCX, else that of PyPI's libucx.  -> backend, ucx, plugin,
    library.
    """
    from_wheel = None if system_has_ucx() else ucx_of_environment()
    told = ffi.new("char **")
    check(lib.heddle_transport_load(c_text(from_wheel), told))
    found: dict[str, str] = take_json(told)
    return found
