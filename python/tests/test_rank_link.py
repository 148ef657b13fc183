# SPDX-License-Identifier: Apache-2.0
"""The link from the process of an engine that is a worker to those that have a part of the model."""
from __future__ import annotations

import fcntl
import gc
import json
import logging
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest

import heddle
from conftest import PATIENCE, until
from heddle import _ranks
from heddle.slot import Content, Row, Slot

# A rank: says what it is asked for, and what a version's memory has.
RANK = """
    import mmap
    from heddle import _ranks
    name, rank = sys.argv[1], int(sys.argv[2])
    def say(*told):
        print(json.dumps(told), flush=True)
    class Handler:
        def stage(self, tag, slot, fields):
            with slot, mmap.mmap(slot.fd, 4, prot=mmap.PROT_READ) as pages:
                say("stage", tag, fields, pages[:].decode(), slot.config)
            if tag == "dies":
                os.kill(os.getpid(), 9)
            if tag == "bad" and rank == 1:
                raise ValueError("LoRA rank 64 is greater\\n  than max_lora_rank 16.")
        def commit(self, tag):
            say("commit", tag)
        def drop(self, tag):
            say("drop", tag)
    link = _ranks.connect(name, {"instance": "abc", "rank": rank})
    _ranks.serve(link, Handler())
    say("end", [m for m in ("_cffi_backend", "heddle._native") if m in sys.modules])
"""


def slot_of(tag):
    fd = os.memfd_create("version", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, b"\1\2\3\4" + bytes(4092) + b"mark")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return Slot(fd, Content(tag, b'{"r": 8}', (Row("a", "U8", (4,), 0, 4),), 4096, b"mark"))


@pytest.fixture
def listener():
    found = _ranks.listen()
    yield found
    found.close()


@pytest.fixture
def engine(listener, program):
    """Two ranks, which are processes, and the leader's end of them."""
    processes = [program(RANK, listener.name, rank) for rank in (1, 0)][::-1]
    ranks = _ranks.Ranks(listener.gather("abc", 2, PATIENCE))
    assert [hello["rank"] for hello in ranks.hellos] == [0, 1]
    yield ranks, processes
    ranks.close()


def stage(ranks, tag):
    with slot_of(tag) as slot:
        ranks.stage(tag, slot, id=7)


def told(tag):
    return ["stage", tag, {"id": 7}, "\1\2\3\4", {"r": 8}]


def test_every_rank_gets_the_memory_of_a_version(engine):
    ranks, processes = engine
    stage(ranks, "policy@1:abc")
    ranks.commit("policy@1:abc")
    ranks.drop("policy@1:abc")
    ranks.close()
    for process in processes:
        lines = [process.json() for _ in range(4)]
        assert lines == [told("policy@1:abc"), ["commit", "policy@1:abc"], ["drop", "policy@1:abc"],
                         ["end", []]]


def test_what_one_rank_refuses_no_rank_keeps(engine):
    ranks, processes = engine
    with pytest.raises(_ranks.Refused, match="^rank 1: LoRA rank 64 is greater than max_lora_rank 16.$"):
        stage(ranks, "bad")
    stage(ranks, "good")
    assert ranks.lost is None
    for process in processes:
        assert [process.json() for _ in range(3)] == [told("bad"), ["drop", "bad"], told("good")]


@pytest.mark.parametrize("when", ["before", "in the midst"])
def test_without_a_rank_no_version_is_taken(engine, when):
    ranks, processes = engine
    if when == "before":
        processes[1].end(signal.SIGKILL)
    with pytest.raises(_ranks.Refused, match="rank [01] of this engine .* is gone"):
        stage(ranks, "dies")
    assert "restart the server" in ranks.lost
    with pytest.raises(_ranks.Refused, match="is gone"):
        stage(ranks, "next")
    ranks.drop("dies")


class Peers:
    """Ends of a link in this process, which say what they like."""

    def __init__(self, name):
        self._name, self.open = name, []

    def say(self, raw, *, ends=False):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(b"\0" + self._name.encode())
        peer.sendall(raw)
        if ends:
            peer.shutdown(socket.SHUT_WR)
        self.open.append(peer)
        return peer

    def close(self):
        for peer in self.open:
            peer.close()


@pytest.fixture
def peers(listener):
    found = Peers(listener.name)
    yield found
    found.close()


def frame(kind, fields):
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("=BxxxI", kind, len(body)) + body


def hello(**fields):
    return frame(_ranks.HELLO, {"instance": "abc", "rank": 0, **fields})


def test_a_silent_rank_counts_as_gone(listener, peers, monkeypatch):
    monkeypatch.setattr(_ranks, "ANSWER_S", 0.2)
    peers.say(hello())
    ranks = _ranks.Ranks(listener.gather("abc", 1, PATIENCE))
    with pytest.raises(_ranks.Refused, match="rank 0 .* is gone .*timed out"):
        stage(ranks, "policy@1:abc")


def test_a_leader_that_ends_does_not_wait_for_a_rank(listener, peers):
    peer = peers.say(hello())
    ranks = _ranks.Ranks(listener.gather("abc", 1, PATIENCE))
    found = []

    def ask():
        try:
            ranks.commit("policy@1:abc")
        except _ranks.Refused as e:
            found.append(str(e))
    thread = threading.Thread(target=ask)
    thread.start()
    peer.recv(1)                                # it waits for the answer
    ranks.close()
    thread.join(PATIENCE)
    assert len(found) == 1 and "is gone" in found[0]


@pytest.mark.parametrize("answer", [
    frame(_ranks.YES, {"tag": "another"}), frame(_ranks.COMMIT, {"tag": "policy@1:abc"}),
    frame(_ranks.YES, b"{"), frame(_ranks.YES, b"[" * 30000), frame(_ranks.YES, b"[]"),
    frame(0, {}), frame(7, {}), struct.pack("=BxxxI", _ranks.NO, (64 << 10) + 1)])
def test_a_rank_that_answers_something_else_counts_as_gone(listener, peers, answer):
    peers.say(hello() + answer)
    ranks = _ranks.Ranks(listener.gather("abc", 1, PATIENCE))
    with pytest.raises(_ranks.Refused, match="is gone.*invalid frame"):
        stage(ranks, "policy@1:abc")


def test_strange_peers_hold_up_no_rank(listener, peers):
    gc.collect()                                # descriptors of other tests are closed now, not in between
    before = len(os.listdir("/proc/self/fd"))
    silent = peers.say(b"")
    refused = [peers.say(raw, ends=True) for raw in (
        b"GET / HTTP/1.1\r\n\r\n", hello()[:5], hello()[:12], hello(rank=-1), hello(rank="0"),
        hello(rank=True), hello(rank=2), hello(instance=5), frame(_ranks.YES, {"tag": "a"}),
        struct.pack("=BxxxI", _ranks.HELLO, 1 << 31))]
    good = [peers.say(hello(rank=rank)) for rank in (1, 0)]
    links = listener.gather("abc", 2, PATIENCE)
    assert [link.hello["rank"] for link in links] == [0, 1]
    for peer in (silent, *refused):
        peer.settimeout(PATIENCE)
        try:
            assert peer.recv(1) == b""
        except ConnectionResetError:            # closed with something unread
            pass
    for link in links:
        link.close()
    for peer in good:
        peer.close()
    peers.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_rank_of_another_engine_is_kept_for_it(listener, peers):
    peers.say(hello(instance="other"))
    peers.say(hello())
    assert listener.gather("abc", 1, PATIENCE)[0].hello["instance"] == "abc"
    assert listener.gather("other", 1, PATIENCE)[0].hello["instance"] == "other"
    with pytest.raises(heddle.Unavailable, match="they connect once"):      # at once
        listener.gather("abc", 1, PATIENCE)


def test_ranks_that_do_not_come_are_told(listener, peers):
    peer = peers.say(hello(rank=1))
    with pytest.raises(heddle.Deadline, match=r"1 of 2 ranks .* found: \[1\]"):
        listener.gather("abc", 2, 0.2)
    peer.settimeout(PATIENCE)
    assert peer.recv(1) == b"", "it is not left waiting"


def test_a_process_of_another_user_is_refused(listener, peers, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(heddle.Denied, match=f"process {os.getpid()} is refused"):
        _ranks.connect(listener.name, {"instance": "abc", "rank": 0})
    peer = peers.say(hello())
    with pytest.raises(heddle.Deadline):
        listener.gather("abc", 1, 0.2)
    peer.settimeout(PATIENCE)
    with pytest.raises(ConnectionResetError):   # closed before its HELLO was read
        peer.recv(1)


@pytest.mark.parametrize("sent, error", [
    (frame(_ranks.YES, {"tag": "a"}), "invalid frame"), (frame(_ranks.COMMIT, {}), "invalid frame"),
    (frame(_ranks.COMMIT, {"tag": 1}), "invalid frame"), (frame(9, {}), "invalid frame"),
    (frame(_ranks.STAGE, {"tag": "a"}), "ended before a version's memory"),
    (frame(_ranks.STAGE, {"tag": "a"}) + bytes(8), "without its memory"),
    (frame(_ranks.COMMIT, {"tag": "a"})[:-1], "in the midst"), (b"\4", "in the midst")])
def test_a_rank_ends_where_no_leader_speaks(sent, error):
    near, far = socket.socketpair()
    with far:
        far.sendall(sent)
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(heddle.HeddleError, match=error):
            _ranks.serve(_ranks.Link(near), None)
    assert near.fileno() == -1


class Notes:
    def __init__(self):
        self.staged, self.limit = [], None

    def stage(self, tag, slot, fields):
        slot.close()
        self.staged.append(tag)

    def drop(self, tag):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limit)


def test_a_rank_without_a_free_descriptor_says_no_and_goes_on():
    near, far = socket.socketpair()
    notes = Notes()
    notes.limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with far:
        for tag in ("first", "second"):
            far.sendall(frame(_ranks.STAGE, {"tag": tag}))
            with slot_of(tag) as slot:
                slot.send(far)
            if tag == "first":                  # the limit is as it was after it
                far.sendall(frame(_ranks.DROP, {"tag": tag}))
        far.shutdown(socket.SHUT_WR)
        lowest = os.dup(near.fileno())          # no number below it is free
        os.close(lowest)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, notes.limit[1]))
            _ranks.serve(_ranks.Link(near), notes)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, notes.limit)
        assert notes.staged == ["second"]
        reader = _ranks.Link(far)
        kind, fields = reader.receive()
        assert (kind, fields["tag"]) == (_ranks.NO, "first") and "ulimit -n" in fields["words"]
        assert [reader.receive()[0] for _ in range(2)] == [_ranks.YES] * 2


def test_generation_waits_for_short_turns_while_a_version_is_built():
    near, far = socket.socketpair()
    usual, turns = sys.getswitchinterval(), []

    class Builds:
        def stage(self, tag, slot, fields):
            slot.close()
            turns.append(sys.getswitchinterval())
            if tag == "bad":
                raise ValueError("no")

        def commit(self, tag):
            turns.append(sys.getswitchinterval())
    with far:
        for tag in ("good", "bad"):
            far.sendall(frame(_ranks.STAGE, {"tag": tag}))
            with slot_of(tag) as slot:
                slot.send(far)
            far.sendall(frame(_ranks.COMMIT, {"tag": tag}))
        far.shutdown(socket.SHUT_WR)
        _ranks.serve(_ranks.Link(near), Builds())
    assert turns == pytest.approx([_ranks.TURN_S, usual] * 2)


def test_a_full_queue_does_not_hold_up_a_rank(listener, peers, monkeypatch):
    monkeypatch.setattr(_ranks, "CONNECT_S", 0.2)
    for _ in range(4096):
        peer = socket.socket(socket.AF_UNIX)
        peer.setblocking(False)
        peers.open.append(peer)
        try:
            peer.connect(b"\0" + listener.name.encode())
        except BlockingIOError:
            break
    failed = []

    def connect():
        with pytest.raises(OSError) as e:
            _ranks.connect(listener.name, {"instance": "abc", "rank": 0})
        failed.append(str(e.value))
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(10)
    assert failed == ["for 0.2 s the rank link took no connection: its queue is full, of processes that are "
                      "not its ranks"]
    peers.close()


def test_a_connected_rank_may_wait_as_long_as_it_likes(listener):
    link = _ranks.connect(listener.name, {"instance": "abc", "rank": 0})
    assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == bytes(16)
    link.close()


def test_a_rank_that_joins_answers_until_the_leader_ends(listener, caplog):
    log, notes = logging.getLogger("rank"), Notes()
    hello = {"instance": "abc", "rank": 0}
    _ranks.join(listener.name, hello, notes, log)
    ranks = _ranks.Ranks(listener.gather("abc", 1, PATIENCE))
    stage(ranks, "policy@1:abc")
    assert notes.staged == ["policy@1:abc"]
    threads = [thread for thread in threading.enumerate() if thread.name == "heddle-rank"]
    ranks.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(threads) == 1 and not caplog.messages
    _ranks.join("heddle-ranks-of-none", hello, notes, log)
    assert caplog.messages[0].startswith("heddle: rank 0 found no leader: ")


def test_a_rank_says_why_its_link_ended(listener, peers, caplog):
    _ranks.join(listener.name, {"instance": "abc", "rank": 0}, Notes(), logging.getLogger("rank"))
    link, = listener.gather("abc", 1, PATIENCE)
    link.send(_ranks.YES, tag="a")              # which no leader says
    assert link.receive() is None
    until(lambda: caplog.messages, "it is said")
    assert "no further version comes: " in caplog.messages[0] and "invalid frame" in caplog.messages[0]
    link.close()


def test_descriptors_beside_a_frame_do_not_stay_open():
    near, far = socket.socketpair()
    gc.collect()
    with far:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(far, [frame(_ranks.COMMIT, {"tag": "a"})], [far.fileno()] * 3)
        link = _ranks.Link(near)
        assert link.receive() == (_ranks.COMMIT, {"tag": "a"})
        assert len(os.listdir("/proc/self/fd")) == before
        link.close()


def test_calls_of_two_threads_do_not_mix(engine):
    ranks, processes = engine
    threads = [threading.Thread(target=stage, args=(ranks, f"policy@{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert ranks.lost is None
    orders = [[process.json()[1] for _ in range(4)] for process in processes]
    assert orders[0] == orders[1] and sorted(orders[0]) == [f"policy@{n}" for n in range(4)]


def test_a_forked_child_does_not_listen(listener):
    child = os.fork()
    if child == 0:
        os._exit(0 if listener._socket.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert listener._socket.fileno() >= 0


def test_it_needs_neither_library_nor_cffi():
    code = ("import sys; sys.modules['_cffi_backend'] = None; import heddle._ranks; "
            "print('heddle._native' in sys.modules)")
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (got.stdout, got.stderr) == ("False\n", "")
