# SPDX-License-Identifier: Apache-2.0
"""Heddle inside vLLM's own server: each version goes from memory to memory into every rank, without a file.

Installed beside vLLM, the package is found by its entry points `heddle` in `vllm.general_plugins` and
`vllm.endpoint_plugins`.  docs/vllm.md says how to turn it on.  Nothing here imports vLLM before it is on.

    plugin      the two entry points: whether it is on, and what is said where it is not
    seams       the private names of vLLM that it relies on, in one list
    loading     in a rank: versions as directories of heddle://, put under vLLM's own loader
    leader      in the API server: the one Heddle worker of the engine
    answers     in the API server: which request uses which version
    reload      of heddle.weight_transfer: full weights into the model of a rank
    offline     attach(): an engine without a server
"""
from __future__ import annotations

from typing import Any


def attach(engine: Any) -> Any:
    """Versions for a `vllm.LLM` (-> offline.Attached) or an AsyncLLM (-> offline.AsyncAttached) of this
    process.  Raises Unavailable where the plugin is off, and says why.
    """
    from heddle.vllm import offline
    return offline.attach(engine)
