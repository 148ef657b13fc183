# SPDX-License-Identifier: Apache-2.0
"""A version handed on to processes that have neither the library nor a broker."""
from __future__ import annotations

import dataclasses
import errno
import gc
import hashlib
import json
import mmap
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys

import pytest

import heddle
from conftest import FIXTURES, PATIENCE

RANKS = 4

LEADER = """
    import heddle, socket
    name, path = sys.argv[1:3]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    with heddle.Worker(adapters=[name]) as w:
        print("ready", flush=True)
        for u in w.updates():
            if u.phase != "arrived":
                continue
            with u.share() as slot:
                for _ in range(4):
                    slot.send(listener.accept()[0])
            u.staged()
"""

RANKS_OF_AN_ENGINE = """
    import hashlib, socket
    import heddle.slot
    import torch                    # once, and then fork: to import it takes seconds
    for _ in range(3):
        if os.fork() == 0:
            break
    near, test = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    test.connect(sys.argv[2])
    near.connect(sys.argv[1])
    slot = heddle.slot.receive(near)
    near.close()
    def say(**told):
        test.sendall(json.dumps(told).encode() + b"\\n")
    def digest(tensors):
        h = hashlib.sha256()
        for name, t in sorted(tensors.items()):
            h.update(name.encode() + bytes(t.flatten().view(torch.uint8).tolist()))
        return h.hexdigest()
    first = slot.torch()
    say(pid=os.getpid(), tag=slot.tag, digest=digest(first), r=slot.config["r"],
        loaded=[m for m in ("_cffi_backend", "heddle._abi", "heddle._native") if m in sys.modules],
        mapped=[m for m in ("libheddle", "libucp") if m in open("/proc/self/maps").read()])
    for order in test.makefile():
        if order == "scale\\n":
            for name, t in first.items():
                if "lora_B" in name:
                    t.mul_(2.0)
            say(scaled=digest(first), again=digest(slot.torch()))
        else:
            slot.close()
            say(kept=digest({n: t for n, t in first.items() if "lora_A" in n}))
"""


class Rank:
    def __init__(self, listener):
        self.socket = listener.accept()[0]
        self.socket.settimeout(PATIENCE)
        self.lines = self.socket.makefile()
        self.told = self.heard()
        self.pid = self.told.pop("pid")

    def heard(self):
        return json.loads(self.lines.readline())

    def ask(self, order):
        self.socket.sendall(order.encode() + b"\n")
        return self.heard()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        assert self.lines.readline() == ""

    def end(self):
        self.socket.shutdown(socket.SHUT_WR)
        assert self.lines.readline() == ""


@pytest.fixture
def published(broker, adapter):
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto") as w:
        pub.publish_dir(FIXTURES / "plain").wait(min=1, timeout=60)
        yield pub, w


def digest(tensors):
    h = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        h.update(name.encode() + bytes(t.data))
    return h.hexdigest()


def taken(shared):
    """What heddle.slot reads, without torch: the tensors by the table."""
    size = shared.content.mark_offset + len(shared.content.mark)
    with mmap.mmap(shared.fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as pages:
        assert pages[shared.content.mark_offset:] == shared.content.mark
        return {row.name: pages[row.offset:row.offset + row.nbytes] for row in shared.table}


def test_the_ranks_of_an_engine_hold_what_its_worker_has(broker, adapter, program, tmp_path):
    """One of four ranks is killed, and then the worker: the others keep the version, with no page of another
    one, while eight more are published.
    """
    pytest.importorskip("torch")
    path = str(tmp_path / "leader")
    leader = program(LEADER, adapter, path)
    assert leader.line() == "ready", leader.log.read_text()
    with heddle.Publisher(adapter=adapter) as pub, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "test"))
        listener.settimeout(PATIENCE)
        listener.listen()
        ver = pub.publish_dir(FIXTURES / "plain")
        program(RANKS_OF_AN_ENGINE, path, tmp_path / "test")
        ranks = [Rank(listener) for _ in range(RANKS)]
        ver.wait(phase="staged", min=1, timeout=60)
        with heddle.Worker(adapters=[adapter], apply="auto") as w:
            w.wait_current()
            with w.acquire(adapter) as a:
                wanted = {"tag": a.tag, "digest": digest(a.tensors), "r": a.config["r"], "loaded": [],
                          "mapped": []}
                kept = digest({n: t for n, t in a.tensors.items() if "lora_A" in n})
            assert [rank.told for rank in ranks] == [wanted] * RANKS
            got = ranks[0].ask("scale")
            assert got["scaled"] != wanted["digest"] and got["again"] == wanted["digest"]
            ranks.pop().kill()
            leader.end(signal.SIGKILL)
            for step in range(8):
                pub.publish_dir(FIXTURES / ("bf16", "plain")[step % 2]).wait(min=1, timeout=60)
            for rank in ranks:
                assert rank.ask("kept") == {"kept": kept}
                rank.end()


@pytest.mark.parametrize("own_memory", [False, True])
def test_it_has_the_tensors_of_its_version(broker, adapter, own_memory):
    with heddle.Publisher(adapter=adapter) as pub, \
            heddle.Worker(adapters=[adapter], apply="auto", own_memory=own_memory) as w:
        pub.publish_dir(FIXTURES / "plain").wait(min=1, timeout=60)
        with w.acquire(adapter) as a:
            shared = a.share()
            told = {name: bytes(t.data) for name, t in a.tensors.items()}
            assert (shared.tag, shared.config, shared.config_bytes) == (a.tag, a.config, a.config_bytes)
            wanted = [(t.name, t.dtype, t.shape) for t in a.tensors.values()]
            assert [row[:3] for row in shared.table] == wanted
        assert w.stats()["held"] == [], "the slot is not held by what was shared"
        with shared:
            assert taken(shared) == told


def test_it_is_sent_and_received(published, adapter):
    near, far = socket.socketpair()
    _, w = published
    with w.acquire(adapter) as a, a.share() as shared, near, far:
        for _ in range(2):
            shared.send(near)
        for _ in range(2):
            with heddle.slot.receive(far) as got:
                assert got.content == shared.content and taken(got) == taken(shared)
                assert not os.get_inheritable(got.fd)
        near.shutdown(socket.SHUT_WR)
        assert heddle.slot.receive(far) is None


def pages_of_its_own():
    """Bytes of private maps of versions that this process has written to."""
    found, total = False, 0
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            found = " rw-p " in line and "heddle-region" in line
        elif found and line.startswith("Private_Dirty:"):
            total += int(line.split()[1]) * 1024
    return total


def maps():
    return sum(" rw-p " in line and "heddle-region" in line
               for line in pathlib.Path("/proc/self/maps").read_text().splitlines())


def test_what_is_written_costs_memory_page_by_page_and_is_given_back(published, adapter):
    torch = pytest.importorskip("torch")
    _, w = published
    with w.acquire(adapter) as a:
        shared = a.share()
    loaded = [shared.torch(), shared.torch()]
    shared.close()
    shared.close()
    assert maps() == 2 and pages_of_its_own() == 0
    name = next(iter(loaded[0]))
    loaded[0][name].fill_(7.0)
    assert 0 < pages_of_its_own() < 2 * 4096 + loaded[0][name].nbytes
    assert not torch.equal(loaded[0][name], loaded[1][name])
    one = loaded[1][name]
    loaded.clear()
    assert maps() == 1, "one tensor keeps its mapping"
    del one
    assert maps() == 0
    with pytest.raises(heddle.Closed):
        shared.torch()


def test_a_forked_child_does_not_hold_it(published, adapter):
    _, w = published
    with w.acquire(adapter) as a, a.share() as shared:
        child = os.fork()
        if child == 0:
            os._exit(0 if shared.fd < 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert shared.fd >= 0


def test_another_content_is_refused(published, adapter):
    pytest.importorskip("torch")
    _, w = published
    with w.acquire(adapter) as a, a.share() as shared:
        other = dataclasses.replace(shared.content, mark=bytes(72))
        with heddle.slot.Slot(os.dup(shared.fd), other) as wrong, pytest.raises(heddle.NotFound,
                                                                                match="another content"):
            wrong.torch()
        assert maps() == 0


@pytest.mark.parametrize("change", [
    lambda of: {"mark_offset": 1 << 40}, lambda of: {"mark": b""},
    lambda of: {"table": (of.table[0]._replace(nbytes=of.mark_offset + 1),)},
    lambda of: {"table": (of.table[0]._replace(offset=-1),)},
    lambda of: {"mark_offset": -mmap.PAGESIZE, "table": ()}])
def test_a_description_that_does_not_fit_the_file_is_refused(published, adapter, change):
    _, w = published
    with w.acquire(adapter) as a, a.share() as shared:
        fd = os.dup(shared.fd)
        with pytest.raises(heddle.BadAdapter, match="not what its description says"):
            heddle.slot.Slot(fd, dataclasses.replace(shared.content, **change(shared.content)))
        # closed; another thread may have opened a file of its own under that number since
        try:
            assert not os.path.samestat(os.fstat(fd), os.fstat(shared.fd))
        except OSError as e:
            assert e.errno == errno.EBADF


def frame(raw):
    return len(raw).to_bytes(8, sys.byteorder) + raw


@pytest.mark.parametrize("sent, with_file, error", [
    (frame(b"{}"), False, "without its memory"),
    (frame(b"[]"), True, "cannot be read"),
    (frame(b'{"tag": 1, "config": "", "table": [[1]], "mark_offset": 0, "mark": ""}'), True,
     "cannot be read"),
    *((frame(b'{"tag": "a", "config": "{}", "table": [["t", "F32", [%b], %b, %b]], "mark_offset": %b, '
             b'"mark": "00"}' % numbers), True, "cannot be read")
      for numbers in ((b"1", b"0", b"4", b"-4096"), (b"1", b"0", b"4", b"Infinity"),
                      (b"1", b"0", b"4", b"4096.5"), (b"1", b"NaN", b"4", b"4096"),
                      (b"1", b"0", b"true", b"4096"), (b"-1", b"0", b"4", b"4096"),
                      (b"2", b"0", b"4", b"4096"), (b"1", b"0", b"4", b'"4096"'),
                      (b"1", b"0", b"4", b"1" + b"0" * 20),
                      (b"1" + b", 1" * 16, b"0", b"4", b"4096"))),
    *((frame(b'{"tag": "a", "config": "%b", "table": [], "mark_offset": 0, "mark": "00"}' % config), True,
       "cannot be read") for config in (b"", b"nonsense", b"5")),
    (frame(b'{"tag": "a", "config": "{}", "table": [["t", "F32", [1], 0, 4], ["t", "F32", [1], 4, 4]], '
           b'"mark_offset": 4096, "mark": "00"}'), True, "two tensors have one name"),
    (frame(b'{"tag": "a", "config": "{}", "table": [], "mark_offset": 0, "mark": "00"}'), True,
     "not shared memory|not what its description says"),
    ((1 << 60).to_bytes(8, sys.byteorder), True, "too large"),
    (frame(b"{}")[:9], True, "ended in the midst"),
    (b"abc", True, "ended in the midst"),
])
def test_what_is_no_version_is_refused(tmp_path, sent, with_file, error):
    near, far = socket.socketpair()
    gc.collect()                        # descriptors of other tests are closed now, not in between
    before = len(os.listdir("/proc/self/fd"))
    with (tmp_path / "file").open("w+b") as file, near, far:
        socket.send_fds(near, [sent], [file.fileno()] if with_file else [])
        near.shutdown(socket.SHUT_WR)
        with pytest.raises(heddle.HeddleError, match=error):
            heddle.slot.receive(far)
    assert len(os.listdir("/proc/self/fd")) == before - 2, "nothing that came stays open"


def test_a_socket_that_carries_no_descriptor_is_refused(published, adapter):
    _, w = published
    with socket.create_server(("127.0.0.1", 0)) as listener, w.acquire(adapter) as a, a.share() as shared:
        with socket.create_connection(listener.getsockname()) as near:
            for call in (lambda: shared.send(near), lambda: heddle.slot.receive(near)):
                with pytest.raises(heddle.UsageError, match="unix socket.*AF_INET"):
                    call()


def test_without_a_free_descriptor_the_next_version_still_comes(published, adapter):
    _, w = published
    near, far = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with near, far, w.acquire(adapter) as a, a.share() as shared:
        for _ in range(2):
            shared.send(near)
        lowest = os.dup(near.fileno())      # no number below it is free
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(heddle.HeddleError, match="ulimit -n") as failed:
                heddle.slot.receive(far)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert failed.value.code == "no_memory"
        with heddle.slot.receive(far) as got:
            assert got.tag == shared.tag


def test_it_needs_neither_library_nor_cffi():
    code = ("import sys; sys.modules['_cffi_backend'] = None; import heddle.slot; import heddle; "
            "print(heddle.NotFound.__name__, heddle.slot.Slot.__name__, 'heddle._native' in sys.modules)")
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (got.stdout, got.stderr) == ("NotFound Slot False\n", "")
