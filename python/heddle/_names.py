# SPDX-License-Identifier: Apache-2.0
"""Whether names are those that PEFT writes to disk, and not those of a live model's parameters.

An engine finds no place for a live name ("...lora_A.default.weight"), loads nothing for it, and serves the
base model.
"""
from __future__ import annotations

import re
from collections.abc import Iterable

from heddle import _native
from heddle.errors import HeddleError

# what comes after the LoRA part, on disk: lora_A.weight, lora_B.bias, lora_embedding_A, lora_magnitude_vector
_PART = re.compile(r"(?:^|\.)(lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(?:\.(.*))?$")
_ENDS = {"lora_A": ("weight",), "lora_B": ("weight", "bias"), "lora_embedding_A": (None,),
         "lora_embedding_B": (None,),
         "lora_magnitude_vector": (None, "weight")}
_OTHER = {"lora_A": "lora_B", "lora_B": "lora_A", "lora_embedding_A": "lora_embedding_B",
          "lora_embedding_B": "lora_embedding_A"}
_PREFIX = "base_model."
_HINT = "use peft.get_peft_model_state_dict(model), or publish(model)"


def _refuse(name: str, why: str, expected: str) -> HeddleError:
    return _native.error("bad_adapter", f"tensor {name} {why}", expected=expected, found=name, phase="pack",
                         hint=_HINT)


def check(names: Iterable[str]) -> None:
    """Raises BadAdapter for a name that PEFT would not write, and for half of a pair."""
    all_of_them = set(names)
    for name in sorted(all_of_them):
        if ".modules_to_save." in name or ".original_module." in name:
            raise _refuse(name, "has the name of a live model's parameter", "the name of the module itself")
        found = _PART.search(name)
        if found is None:
            continue
        part, end = found.groups()
        if end not in _ENDS[part]:
            last = _ENDS[part][0]
            expected = name[:found.start(1)] + part + (f".{last}" if last else "")
            is_cut = end is None        # the file's name has .weight behind it
            why = f"does not end in .{last}" if is_cut else "has the name of a live model's parameter"
            if not expected.startswith(_PREFIX):
                expected = f"{_PREFIX}model.{expected}"
            raise _refuse(name, why, expected)
        if not name.startswith(_PREFIX):
            raise _refuse(name, "is in no module of the model", f"{_PREFIX}model.<module>.{part}")
        if part in _OTHER and end != "bias":
            other = name[:found.start(1)] + _OTHER[part] + name[found.end(1):]
            if other not in all_of_them:
                raise _refuse(name, f"comes without its {_OTHER[part]}", other)
