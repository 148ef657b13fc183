#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Today's way, for comparison: safetensors to tmpfs, load, copy into memory that was touched before.  Usage: files.py DIR REPS -> one JSON line."""
import json
import pathlib
import statistics
import sys
import time

import numpy
from safetensors import deserialize
from safetensors.numpy import save

source, reps = pathlib.Path(sys.argv[1]) / "adapter_model.safetensors", int(sys.argv[2])
# bf16 has no numpy type: its bytes travel as uint16, which costs the same.
tensors = {name: numpy.frombuffer(t["data"], dtype=numpy.uint16).copy() for name, t in deserialize(source.read_bytes())}
slot = {name: numpy.zeros_like(t) for name, t in tensors.items()}
path = pathlib.Path("/dev/shm") / f"heddle-bench-{time.time_ns()}.safetensors"
times = []
try:
    for _ in range(reps + 2):
        start = time.perf_counter()
        path.write_bytes(save(tensors))
        for name, t in deserialize(path.read_bytes()):
            slot[name][:] = numpy.frombuffer(t["data"], dtype=numpy.uint16)
        times.append((time.perf_counter() - start) * 1e3)
finally:
    path.unlink(missing_ok=True)
times = times[2:]
print(json.dumps({"kind": "files", "reps": reps, "median_ms": round(statistics.median(times), 2), "worst_ms": round(max(times), 2)}))
