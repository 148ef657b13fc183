# SPDX-License-Identifier: Apache-2.0
"""Exported versions: DIR/<adapter>@<version>-<digest>/, complete PEFT directories, and the link DIR/<adapter>
to the active one.

A directory appears whole, under its name, and its name says its content; so one that is there and reads the
same is left as it is: a server may be reading it.  One process at a time exports an adapter into a directory
(a lock that ends with it)."""
from __future__ import annotations

import errno
import fcntl
import filecmp
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from heddle.errors import Conflict, HeddleError

from . import names


class Exports:
    """Thread-safe where one thread writes and another discards other directories."""

    def __init__(self, root: str, adapters: Iterable[str], server_root: str | None = None) -> None:
        """`server_root`: how the servers see `root`.  Raises Conflict (data_locked), HeddleError
        (data_dir)."""
        self.root = Path(os.path.abspath(root))
        self.server_root = server_root.rstrip("/") if server_root else str(self.root)
        self._locks: dict[str, int] = {}
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for adapter in adapters:
                self._locks[adapter] = self._lock(adapter)
                self._remove_halves(adapter)
        except OSError as e:
            self.close()
            raise HeddleError(f"cannot use the export directory {self.root}: {e.strerror}", code="data_dir",
                              exit=9, phase="export",
                              hint="look at that directory and its file system, or name another with "
                                   "--export") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the locks back.  What was exported stays: servers go on serving it."""
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()

    # --- directories -----------------------------------------------------------------------------

    def server_path(self, folder: str) -> str:
        return f"{self.server_root}/{folder}"

    def adapter_of(self, server_path: str) -> str | None:
        """Whose directory that is; None: it is none of the adapters that are exported here."""
        found = names.read_folder(server_path, self.server_root)
        return found.adapter if found and found.adapter in self._locks else None

    def write(self, folder: str, export: Callable[[str], object]) -> None:
        """`export(path)` writes a PEFT directory to `path`, which is not there.  OSError, and what `export`
        raises."""
        fresh, place = self.root / f".{folder}.new", self.root / folder
        _remove(fresh)
        export(str(fresh))
        if _same(fresh, place):
            _remove(fresh)
            return
        if place.exists():
            damaged = self.root / f".{folder}.old"
            _remove(damaged)
            place.rename(damaged)
            fresh.rename(place)
            _remove(damaged)
        else:
            fresh.rename(place)

    def discard(self, server_path: str) -> None:
        """Removes a directory that no server has any more."""
        if self.adapter_of(server_path) is not None:
            _remove(self.root / Path(server_path).name)

    def all(self, adapter: str) -> list[str]:
        """The exported directories of an adapter, as the servers see them."""
        paths = (self.server_path(entry.name) for entry in self.root.iterdir() if entry.is_dir()
                 and not entry.is_symlink())
        return sorted(path for path in paths if self.adapter_of(path) == adapter)

    def link(self, adapter: str, server_path: str) -> None:
        """DIR/<adapter> names that version from now on, in one step."""
        temporary = self.root / f".{adapter}.link-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path(server_path).name)
        temporary.rename(self.root / adapter)

    # --- how -------------------------------------------------------------------------------------

    def _lock(self, adapter: str) -> int:
        fd = os.open(self.root / f".heddle-engine.{adapter}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                     0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise Conflict(f"process {holder or 'unknown'} exports {adapter} into {self.root}",
                           code="data_locked", exit=4, adapter=adapter,
                           phase="export", hint="end it, or name another directory with --export") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def _remove_halves(self, adapter: str) -> None:
        """What a killed run left in the middle of writing: ".policy@3-....new", ".old", and temporary names
        of those."""
        half = re.compile(rf"\.+{re.escape(adapter)}(@[0-9]+-[0-9a-f]{{12}}\.(new|old)\b.*|\.link-[0-9]+)")
        for entry in self.root.iterdir():
            if half.fullmatch(entry.name):
                _remove(entry)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    while path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:        # another process removes it too: what is left of it
            continue


def _same(one: Path, other: Path) -> bool:
    """The same files with the same bytes."""
    if not other.is_dir():
        return False
    mine, theirs = ({entry.name for entry in at.iterdir()} for at in (one, other))
    return mine == theirs and all(filecmp.cmp(one / name, other / name, shallow=False) for name in mine)
