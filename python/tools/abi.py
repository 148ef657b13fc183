#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes heddle/_abi.py: the public headers as cffi wants them (ABI mode, nothing to compile, nothing to
parse at import).

abi.py HEADERS OUTPUT [--cc CC]: HEADERS is include/, which holds heddle/heddle.h.  The headers are the only
source: there is no second list of functions or structs to keep.
"""
import argparse
import pathlib
import re
import subprocess
import tempfile

import cffi

SYSTEM = ("stddef.h", "stdint.h")          # cffi knows their types


def preprocessed(headers: pathlib.Path, cc: str) -> str:
    with tempfile.TemporaryDirectory() as empty:
        for name in SYSTEM:
            (pathlib.Path(empty) / name).write_text("")
        found = subprocess.run([cc, "-E", "-P", "-nostdinc", "-D__attribute__(x)=", "-I", empty, "-I",
                                str(headers), "-x", "c", "-"],
                               input="#include <heddle/heddle.h>\n", capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"abi: {cc} -E failed:\n{found.stderr}")
    return re.sub(r"\b(\d+)u\b", r"\1", found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("headers", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    args = parser.parse_args()
    ffi = cffi.FFI()
    ffi.cdef(preprocessed(args.headers, args.cc) + "void *memmove(void *, const void *, size_t);\n")
    ffi.set_source("heddle._abi", None)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_python_code(str(args.output))
    text = args.output.read_text()
    args.output.write_text("# SPDX-License-Identifier: Apache-2.0\n" + text)


if __name__ == "__main__":
    main()
