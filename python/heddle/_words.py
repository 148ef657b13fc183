# SPDX-License-Identifier: Apache-2.0
"""Words that arguments and fields take, for type checkers."""
from typing import Literal

Phase = Literal["staged", "active"]
Activation = Literal["all", "as-ready", "manual"]
IfUnchanged = Literal["skip", "fail", "publish"]
Apply = Literal["app", "auto"]
Kind = Literal["lora", "tensors"]
UpdatePhase = Literal["arrived", "commit", "active", "retired", "failed", "stale"]
