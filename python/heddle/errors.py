# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, in one list: the codes of `heddle/error.h` as exceptions.

Every exception of Heddle is a `HeddleError` and also the standard exception that a program would catch anyway
(`TimeoutError`, `ConnectionError`, ...).  `code` is the stable name that the command line prints, `exit` the
status that it would end with.  Exceptions travel between processes (pickle) with all of their fields.
"""
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.versions import Rollout

__all__ = ["HeddleError", "UsageError", "NotFound", "Conflict", "Fenced", "Held", "Deadline", "Denied",
           "Unavailable", "BadAdapter", "RolloutFailed", "Closed", "ForkError", "error_class"]

FIELDS = ("code", "exit", "adapter", "version", "worker", "phase", "expected", "found", "hint", "retriable")


# the secret of a join string that came where none is expected, as in a mistyped command line
_JOIN = re.compile(r"(heddle-join-[^: ]*:)[A-Za-z0-9_-]+")


def _masked(text: str) -> str:
    return _JOIN.sub(r"\1***", text)


class HeddleError(Exception):
    """A failure, told in full.

    code       stable name, e.g. "no_slot"                exit       0..9 or 130, as the command's exit status
    adapter, version, worker, phase                       where it happened; None where unknown
    expected, found, hint      what should have been, what was, what to do; None where unknown
    retriable  True: the same call may succeed later without a change
    message    one line: what, and where (also `str(e)`, with expected, found and hint appended)
    rollout    of `Version.wait`: the Rollout, with who is missing; else None
    answer     of `Admin`: the object of an answer that is "no"; else None
    """

    def __init__(self, message: str, *, code: str = "internal", exit: int = 9, adapter: str | None = None,
                 version: int | None = None, worker: str | None = None, phase: str | None = None,
                 expected: str | None = None, found: str | None = None, hint: str | None = None,
                 retriable: bool = False) -> None:
        message = _masked(message)
        found, hint = found and _masked(found), hint and _masked(hint)
        Exception.__init__(self, message)
        self.message, self.code, self.exit = message, code, exit
        self.adapter, self.version, self.worker, self.phase = adapter, version, worker, phase
        self.expected, self.found, self.hint, self.retriable = expected, found, hint, retriable
        self.rollout: Rollout | None = None
        self.answer: Any = None

    def __str__(self) -> str:
        parts = [self.message]
        if self.expected:
            parts.append(f"expected: {self.expected}")
        if self.found:
            parts.append(f"found: {self.found}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "; ".join(parts) + f" [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in FIELDS}
        return _rebuild, (type(self), self.message, fields, self.rollout, self.answer)


def _rebuild(kind: type[HeddleError], message: str, fields: dict[str, Any], rollout: Any,
             answer: Any) -> HeddleError:
    made = kind(message, **fields)
    made.rollout, made.answer = rollout, answer
    return made


class UsageError(HeddleError, ValueError):
    """The call is wrong: `usage`, `bad_name`, `insecure_address`."""


class NotFound(HeddleError, LookupError):
    """There is no such adapter, version or worker: `not_found`."""


class Conflict(HeddleError):
    """Another writer, version or request stands against it (exit 4): `writer_held`, `unchanged`,
    `request_conflict`, `step_back`, ...
    """


class Fenced(Conflict):
    """A newer session replaced this one: close it, and open again."""


class Held(Conflict):
    """The adapter is held at an older version, activated by hand.  The message names the user."""


class Deadline(HeddleError, TimeoutError):
    """Time ran out: `deadline`, `no_workers`."""


class Denied(HeddleError, PermissionError):
    """The key may not do that."""


class Unavailable(HeddleError, ConnectionError):
    """The broker does not answer.  The call may be made again."""


class BadAdapter(HeddleError, ValueError):
    """The adapter is wrong, or of a kind that is refused (exit 8); also a limit that was passed."""


class RolloutFailed(HeddleError):
    """The answer is no (exit 1): `version_failed`, `version_lost`, `digest_mismatch`."""


class Closed(HeddleError):
    """The handle is closed."""


class ForkError(HeddleError):
    """The process was forked after Heddle was used: nothing of it works in the child."""

    def __init__(self, message: str = "Heddle was used before this fork, and works in the parent alone",
                 **fields: Any) -> None:
        fields.setdefault("code", "usage")
        fields.setdefault("exit", 2)
        fields.setdefault("hint", "start workers with the method spawn, or open handles after the fork")
        super().__init__(message, **fields)


_BY_CODE: dict[str, type[HeddleError]] = {"fenced": Fenced, "held": Held, "closed": Closed}
_BY_EXIT: dict[int, type[HeddleError]] = {1: RolloutFailed, 2: UsageError, 3: NotFound, 4: Conflict,
                                          5: Deadline, 6: Denied, 7: Unavailable, 8: BadAdapter}


def error_class(code: str, exit: int) -> type[HeddleError]:
    """The exception of a code and its exit status."""
    return _BY_CODE.get(code) or _BY_EXIT.get(exit, HeddleError)


_FIELD = re.compile(r"\bopts\.([a-z_]+?)(?:_ms|_bytes)?\b")


def named(message: str) -> str:
    """A message, which may have an application's own words, with the fields of C's options as arguments of
    this package.
    """
    return _FIELD.sub(r"\1=", message)
