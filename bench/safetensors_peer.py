# SPDX-License-Identifier: Apache-2.0
"""python3 - FILE TABLE READERS: today's way, for comparison.  For each line that it reads: save_file of the
tensors to FILE, tell READERS processes, each of which opens it with safe_open and copies each tensor into an
array that was touched before; prints the ms that it took.  TABLE: a line a tensor, its bytes and its name.
Prints a line with its versions first."""
import os
import pathlib
import sys
import time

import numpy
import safetensors
from safetensors import safe_open
from safetensors.numpy import save_file

path, table, readers = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
# bf16 has no numpy type: its bytes travel as uint16, which costs the same.
rows = [line.split(" ", 1) for line in table.read_text().splitlines()]
sizes = {name: int(size) // 2 for size, name in rows}


def read(told, done):
    slot = {name: numpy.ones(count, numpy.uint16) for name, count in sizes.items()}
    os.write(done, b"+")
    while os.read(told, 1):
        with safe_open(path, framework="np") as file:
            for name in file.keys():
                slot[name][:] = file.get_tensor(name)
        os.write(done, b"+")
    os._exit(0)


def start_reader():
    told, tell = os.pipe()
    hear, done = os.pipe()
    if os.fork() == 0:
        for fd in [0, tell, hear, *(fd for pair in pairs for fd in pair)]:
            os.close(fd)
        read(told, done)
    os.close(told)
    os.close(done)
    return tell, hear


pairs = []
for _ in range(readers):
    pairs.append(start_reader())
for _, hear in pairs:
    os.read(hear, 1)
tensors = {name: numpy.arange(count, dtype=numpy.uint16) for name, count in sizes.items()}
print(f"safetensors {safetensors.__version__}, numpy {numpy.__version__}, Python {sys.version.split()[0]}",
      flush=True)
try:
    for _ in sys.stdin:
        start = time.perf_counter()
        save_file(tensors, path)
        for tell, _ in pairs:
            os.write(tell, b"+")
        for _, hear in pairs:
            if not os.read(hear, 1):
                sys.exit("a reader ended")
        print(f"{(time.perf_counter() - start) * 1e3:.4f}", flush=True)
finally:
    path.unlink(missing_ok=True)
