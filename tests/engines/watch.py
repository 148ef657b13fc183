# SPDX-License-Identifier: Apache-2.0
"""What is made, written, moved or removed in folders, by any process (inotify)."""
import ctypes
import errno
import os
import pathlib
import struct

# of <sys/inotify.h>
MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 2, 4, 8, 0x40, 0x80, 0x100, 0x200
OVERFLOW = 0x4000
ALL = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
HEAD = struct.Struct("iIII")            # watch, what, cookie, bytes of the name


class Watch:
    """Of the folders, and of those that they hold when it begins."""

    def __init__(self, *folders):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._folders = {}
        for folder in map(pathlib.Path, folders):
            for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
                watch = self._libc.inotify_add_watch(self._inotify, os.fsencode(path), ALL)
                self._folders[self._checked(watch)] = path

    @staticmethod
    def _checked(result):
        if result < 0:
            raise OSError(ctypes.get_errno(), "inotify: " + os.strerror(ctypes.get_errno()))
        return result

    def end(self):
        """The paths to which something happened, each once."""
        found = set()
        while data := self._read():
            at = 0
            while at < len(data):
                watch, what, _, length = HEAD.unpack_from(data, at)
                at += HEAD.size
                if what & OVERFLOW:
                    raise OSError(errno.EOVERFLOW, "inotify: events were lost")
                name = os.fsdecode(data[at:at + length].rstrip(b"\0"))
                found.add(str(self._folders[watch] / name))
                at += length
        os.close(self._inotify)
        return sorted(found)

    def _read(self):
        try:
            return os.read(self._inotify, 1 << 16)
        except BlockingIOError:
            return b""
