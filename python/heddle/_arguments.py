# SPDX-License-Identifier: Apache-2.0
"""Arguments of calls, checked and as the C library takes them."""
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

from heddle import _native
from heddle._native import ffi, lib

PHASE = {"staged": 1, "active": 2}

Config = Mapping[str, Any] | bytes | str

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
                   r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?")


class Tagged(Protocol):
    """A Version, Snapshot, Update, Current, VersionInfo: what has a tag."""
    @property
    def tag(self) -> str: ...


def ref_text(ref: str | Tagged) -> Any:
    """The reference for C, which checks it: NAME, NAME@V, a tag, or what has one."""
    text: Any = getattr(ref, "tag", ref)
    return _native.c_text(text)


def parse_quorum(quorum: str | int) -> Any:
    """A heddle_quorum_t."""
    kinds = {"all": (lib.HEDDLE_QUORUM_ALL, 0), "none": (lib.HEDDLE_QUORUM_NONE, 0)}
    words = str(quorum)
    if words in kinds:
        kind, n = kinds[words]
    elif words.endswith("%") and _is_number(words[:-1]) and int(words[:-1]) <= 100:
        kind, n = lib.HEDDLE_QUORUM_PERCENT, int(words[:-1])
    elif _is_number(words) and int(words) < 2**31:
        kind, n = lib.HEDDLE_QUORUM_COUNT, int(words)
    else:
        raise _native.error("usage", "that is not a quorum", expected='"all", "none", a count, or "N%"',
                            found=repr(quorum))
    return ffi.new("heddle_quorum_t *", {"kind": kind, "n": n})[0]


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 12


def event_since(since: int | str) -> tuple[int, str]:
    """Where a listing of events begins -> (number, 0: the oldest; time as events have it, "": any)."""
    if not isinstance(since, str) or _is_number(since):
        return _native.count(since if not isinstance(since, str) else int(since), "since", 0,
                             _native.NUMBER_MAX), ""
    ago = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", since, re.ASCII)
    try:
        if ago:
            at = datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        elif _TIME.fullmatch(since):
            at = datetime.fromisoformat(since.replace("Z", "+00:00"))
            at = at.astimezone(timezone.utc) if at.tzinfo else at.replace(tzinfo=timezone.utc)
        else:
            raise ValueError("no time")
    except (ValueError, OverflowError):
        raise _native.error("usage", "that is neither a number of an event nor a time",
                            expected='a number, "5m", or a time in UTC: "2026-11-25", "2026-11-25T15:50:00Z"',
                            found=repr(since)) from None
    return 0, at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


def choose(what: str, value: str, choices: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise _native.error("usage", f"that is not a value of {what}", expected=" ".join(choices),
                            found=repr(value))
    return choices[value]


def config_bytes(config: Config) -> bytes:
    """adapter_config.json: bytes and str as they are; a mapping as PEFT would write it, sets sorted."""
    if isinstance(config, bytes):
        return config
    if isinstance(config, str):
        return config.encode()
    if not isinstance(config, Mapping):
        raise _native.error("usage", "that is not an adapter_config", expected="a mapping, bytes or str",
                            found=type(config).__name__)
    try:
        return json.dumps(dict(config), indent=2, sort_keys=True, default=_plain).encode()
    # keys that are not words, a mapping inside of itself
    except (TypeError, ValueError, RecursionError) as e:
        raise _native.error("usage", f"adapter_config is not JSON: {e}",
                            expected="texts, numbers, lists, mappings of texts",
                            found=type(config).__name__) from e


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise _native.error("usage", "a field of adapter_config is not JSON", found=type(value).__name__)
