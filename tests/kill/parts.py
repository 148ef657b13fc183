#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/kill/run finds in the output of a process, without a cluster."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
from sanitizers import errors_in, leaks_in, reports  # noqa: E402

LEAK = """2026-11-27T10:00:00.000Z info  worker.joined: w1
==7==ERROR: LeakSanitizer: detected memory leaks

Direct leak of 56 byte(s) in 1 object(s) allocated from:
    #0 0x1 in __interceptor_calloc (/usr/lib/libasan.so.8+0x1)
    #1 0x2 in ucs_calloc (/usr/lib/libucs.so.0+0x2)

SUMMARY: AddressSanitizer: 56 byte(s) leaked in 1 allocation(s).
"""
FREED = """==8==ERROR: AddressSanitizer: heap-use-after-free on address 0x1 at pc 0x2 bp 0x3 sp 0x4
READ of size 8 at 0x1 thread T0
SUMMARY: AddressSanitizer: heap-use-after-free worker/fetch.c:1 in fetch_land
"""
SHIFT = "worker/fetch.c:12:3: runtime error: shift exponent 64 is too large for 64-bit type\n"
QUIET = "2026-11-27T10:00:00.000Z warn  transfer.error: an error of the runtime: reset by peer\n"

assert leaks_in(LEAK) == ["56 byte(s) leaked in 1 allocation(s)., by __interceptor_calloc < ucs_calloc"], leaks_in(LEAK)
assert errors_in(LEAK) == [], "a leak is a leak alone"
assert [line.split(" on ")[0] for line in errors_in(FREED)] == ["ERROR: AddressSanitizer: heap-use-after-free"], errors_in(FREED)
assert errors_in(SHIFT) == [SHIFT.strip()], errors_in(SHIFT)
assert len(leaks_in(LEAK + FREED + LEAK)) == 2 and len(errors_in(SHIFT + LEAK + FREED)) == 2
assert not leaks_in(FREED + SHIFT + QUIET) and not errors_in(QUIET)

# Of a publisher, which ends by itself, and of the command line it is the only sign.
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    assert reports(folder, leaks_in) == [] and reports(folder, errors_in) == []
    for process, text in (("publish", LEAK), ("ask", SHIFT), ("r1", FREED), ("broker", QUIET)):
        (folder / f"{process}.err").write_text(text)
    assert [what.split(":")[0] for what in reports(folder, leaks_in)] == ["publish"]
    assert [what.split(":")[0] for what in reports(folder, errors_in)] == ["ask", "r1"]
    assert reports(folder, errors_in, "publish") == [] and len(reports(folder, leaks_in, "publish")) == 1
print("kill parts: passed")
