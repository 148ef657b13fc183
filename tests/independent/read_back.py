#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""read_back.py SOURCE EXPORTED: PyPI's safetensors reads from both directories the same metadata and the same
tensors, bit for bit, and the configurations are equal byte for byte.  Prints how many tensors; exits with 1
at a difference."""
import sys
from pathlib import Path

from safetensors import deserialize, safe_open

NAME = "adapter_model.safetensors"


def content(directory):
    """Metadata, and name -> (dtype, shape, bytes).  The bytes as they are: numpy has no bf16."""
    rows = {name: (t["dtype"], list(t["shape"]), bytes(t["data"]))
            for name, t in deserialize((directory / NAME).read_bytes())}
    with safe_open(directory / NAME, framework="np") as f:
        return f.metadata(), rows


def main(source, exported):
    if (source / "adapter_config.json").read_bytes() != (exported / "adapter_config.json").read_bytes():
        return "the configurations differ"
    (want_meta, want), (got_meta, got) = content(source), content(exported)
    if want_meta != got_meta:
        return f"metadata: {want_meta} became {got_meta}"
    if want.keys() != got.keys():
        return f"tensors that are not in both: {sorted(want.keys() ^ got.keys())}"
    wrong = [name for name in want if want[name] != got[name]]
    if wrong or not want:
        return f"{len(wrong)} of {len(want)} tensors differ, first {wrong[:1]}"
    print(f"{len(want)} tensors, {sum(len(t[2]) for t in want.values())} bytes")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
