# SPDX-License-Identifier: Apache-2.0
"""In the API server: which request uses which version, exactly, and the header that says it.

vLLM looks a request's model up in one dictionary, `lora_requests`.  Requests is that dictionary: it notes
each look-up with the HTTP request that made it.  So the header names the version that answers, also where the
active version changes in between, and a version counts as used from its look-up until the answer has ended.

A name that a client gives to a path of Heddle is one more name of that version: it has no number, no place
and no prefix cache of its own.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heddle._inside.answers import HEADER, Middleware, Use, current
from heddle.vllm.loading import SCHEME

__all__ = ["HEADER", "Middleware", "Requests", "Use"]


class Requests(dict[str, Any]):
    """vLLM's names.  `version_of` says which version (leader.Version) stands behind a path; None: none, or a
    path that is not Heddle's.
    """

    def __init__(self, names: dict[str, Any], version_of: Callable[[str], Any | None]) -> None:
        super().__init__(names)
        self._version_of = version_of

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        use, version = current(), self._version_of(found.lora_path)
        if use is not None and version is not None:
            use.take(version)
        return found

    def __setitem__(self, name: str, request: Any) -> None:
        """What vLLM does with a client's name, when the engine has it."""
        version = self._version_of(request.lora_path)
        if version is None and request.lora_path.startswith(SCHEME):
            raise LookupError(f"{request.lora_path} went while it was loaded")
        super().__setitem__(name, request if version is None else version.request)

    def __delitem__(self, name: str) -> None:
        """What vLLM does to unload a client's name.  Heddle takes its own by pop()."""
        found = self.get(name)
        version = None if found is None else self._version_of(found.lora_path)
        if version is not None and name in (version.name, version.adapter):
            from fastapi import HTTPException
            raise HTTPException(400, f"{name} is a name that Heddle gives: its versions come and go by "
                                     "themselves")
        super().__delitem__(name)
