#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""digest.py DIR...: the h1 digest of each PEFT directory; digest.py --tensors FILE...: that of the files as
full weights.  From docs/protocol.md alone (pip install xxhash)."""
import hashlib, json, struct, sys
from pathlib import Path
import xxhash

PAGE = 4096


def tensors(path):
    """[(name, dtype, shape, bytes)] sorted by the bytes of the name."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length:]
    rows = [(name.encode(), t["dtype"].encode(), t["shape"], body[slice(*t["data_offsets"])])
            for name, t in header.items()]
    return sorted(rows, key=lambda row: row[0])


def h1(directory):
    return h1_of((directory / "adapter_config.json").read_bytes(),
                 tensors(directory / "adapter_model.safetensors"))


def h1_of_files(files):
    return h1_of(b"{}", sorted((row for path in files for row in tensors(path)), key=lambda row: row[0]))


def h1_of(config, rows):
    h = hashlib.blake2b(digest_size=32)
    h.update(b"heddle/h1\n")
    h.update(struct.pack("<Q", len(config)) + config)
    h.update(struct.pack("<Q", len(rows)))
    for name, dtype, shape, data in rows:
        h.update(struct.pack("<I", len(name)) + name)
        h.update(struct.pack("<I", len(dtype)) + dtype)
        h.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        h.update(struct.pack("<Q", len(data)))
    for *_, data in rows:
        for at in range(0, len(data), PAGE):
            leaf = bytes(data[at:at + PAGE]).ljust(PAGE, b"\0")
            h.update(struct.pack("<Q", xxhash.xxh64_intdigest(leaf)))
    return "h1:" + h.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--tensors"]:
        print(h1_of_files(map(Path, sys.argv[2:])))
    else:
        for argument in sys.argv[1:]:
            print(h1(Path(argument)))
