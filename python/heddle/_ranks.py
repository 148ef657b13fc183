# SPDX-License-Identifier: Apache-2.0
"""The rank link: how the one process of an engine that is a Heddle worker (the leader) hands versions to the
processes that have a part of the model (the ranks), on the same host.

    leader                                              rank
    listener = listen()          ── listener.name ──►   link = connect(name, {"instance": ..., "rank": 0})
    links = listener.gather(instance, count, timeout)
    ranks = Ranks(links)
    ranks.stage(tag, slot, id=7)    ── STAGE, the memory ──►  handler.stage(tag, slot, {"id": 7})
                                    ◄── YES | NO, words ──
    ranks.commit(tag)               ── COMMIT ──►             handler.commit(tag)
    ranks.drop(tag)                 ── DROP ──►               handler.drop(tag)

A frame is 8 bytes and a JSON object of at most 64 KiB.  STAGE is followed by what `Slot.send` sends.  Each
request of the leader has exactly one answer, in order; so a link on which one is missing, or another one
comes, is closed and of no use any more.  The socket has an abstract name, which belongs to a network
namespace.  Each end checks that the other one is a process of its own user; there is no other protection.

A rank needs no libheddle, UCX, cffi or broker.
"""
from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heddle import slot as slots
from heddle.errors import Deadline, HeddleError, Unavailable, error_class
from heddle.slot import Slot

HELLO, STAGE, YES, NO, COMMIT, DROP = range(1, 7)
_HEAD = struct.Struct("=BxxxI")
_BODY_MAX = 64 << 10
_WORDS_MAX = 640                # as many as a rejected version takes along
_HELLO_S = 5.0                  # a peer that has begun a frame has this long to end it
ANSWER_S = 120.0                # a rank that answers later counts as gone
TURN_S = 0.0005                 # of Python's threads, while a version is built beside generation
CONNECT_S = 10.0                # the queue of the leader may be full, of processes of any user
_CREDENTIALS = struct.Struct("=iII")
_TIME = struct.Struct("@ll")


def _strange(found: str) -> HeddleError:
    return error_class("protocol", 8)("a peer of the rank link sent an invalid frame", code="protocol",
                                      exit=8, expected="a frame of this release of Heddle", found=found[:80])


@dataclass(frozen=True)
class Peer:
    pid: int
    uid: int


def _peer_of(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid)


class Link:
    """One connection, at either end.  One thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        """Takes the connection over.  Denied: the peer is a process of another user."""
        self._socket = connection
        self.hello: dict[str, Any] = {}         # what the rank said of itself
        self.peer = _peer_of(connection)
        if self.peer.uid != os.geteuid():
            self.close()
            raise error_class("denied", 6)(
                f"process {self.peer.pid} is refused on the rank link", code="denied", exit=6,
                expected=f"a process of user {os.geteuid()}", found=f"one of user {self.peer.uid}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: int, **fields: Any) -> None:
        body = json.dumps(fields).encode()
        if len(body) > _BODY_MAX:
            raise _strange(f"{len(body)} bytes to send")
        self._socket.sendall(_HEAD.pack(kind, len(body)) + body)

    def receive(self) -> tuple[int, dict[str, Any]] | None:
        """A frame; None: the other end is closed.  TimeoutError: as the socket's time-out."""
        head = self._exactly(_HEAD.size, is_first=True)
        if head is None:
            return None
        kind, size = _HEAD.unpack(head)
        if size > _BODY_MAX:
            raise _strange(f"kind {kind}, {size} bytes")
        body = self._exactly(size) or b""
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise _strange(repr(body[:40])) from None
        if not isinstance(fields, dict):
            raise _strange(repr(body[:40]))
        return kind, fields

    def _exactly(self, size: int, is_first: bool = False) -> bytes | None:
        got = bytearray()
        while len(got) < size:
            more = self._socket.recv(size - len(got))
            if not more:
                if is_first and not got:
                    return None
                raise Unavailable("the rank link ended in the midst of a frame", code="unavailable", exit=7)
            got += more
        return bytes(got)

    def send_slot(self, slot: Slot) -> None:
        slot.send(self._socket)

    def receive_slot(self) -> Slot:
        found = slots.receive(self._socket)
        if found is None:
            raise Unavailable("the rank link ended before a version's memory came", code="unavailable",
                              exit=7)
        return found

    def wait_at_most(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Another thread that waits for the link goes on, with an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Listener:
    """Where the ranks of engines of this process connect.  `name` is for their environment."""

    def __init__(self) -> None:
        self.name = f"heddle-ranks-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(128)
        self._early: list[Link] = []            # said hello for another engine than the one asked for
        self._gathered: set[str] = set()        # engines; a rank connects once
        os.register_at_fork(after_in_child=self.close)

    def gather(self, instance: str, count: int, timeout: float) -> list[Link]:
        """The links of the `count` ranks of an engine, in order of rank.  What says nothing, or anything but
        a HELLO, is closed, and holds up no other.  Deadline: some are missing.  Unavailable: they were
        gathered before.
        """
        if instance in self._gathered:
            raise Unavailable("the ranks of this engine have a leader, or had one: they connect once",
                              code="unavailable", exit=7, phase="stage",
                              hint="make another engine, or go on with the first leader")
        until = time.monotonic() + timeout
        silent: list[Link] = []
        known = {int(link.hello["rank"]): link for link in self._early if link.hello["instance"] == instance}
        self._early = [link for link in self._early if link.hello["instance"] != instance]
        try:
            while len(known) < count:
                left = until - time.monotonic()
                if left <= 0:
                    raise Deadline(f"{len(known)} of {count} ranks connected within {timeout:g} s",
                                   code="deadline", exit=5, phase="stage", expected=f"ranks 0 to {count - 1}",
                                   found=f"{sorted(known)}")
                waits: list[Any] = [self._socket, *silent]
                ready = select.select(waits, [], [], left)[0]
                for link in [link for link in silent if link in ready]:
                    silent.remove(link)
                    if not _said_hello(link):
                        link.close()
                    elif link.hello["instance"] != instance:
                        self._early.append(link)
                    elif link.hello["rank"] >= count or link.hello["rank"] in known:
                        link.close()
                    else:
                        known[link.hello["rank"]] = link
                if self._socket in ready:
                    with contextlib.suppress(HeddleError, OSError):
                        silent.append(Link(self._socket.accept()[0]))
        except BaseException:
            for link in known.values():
                link.close()
            raise
        finally:
            for link in silent:
                link.close()
        self._gathered.add(instance)
        return [known[rank] for rank in range(count)]

    def close(self) -> None:
        self._socket.close()


def _said_hello(link: Link) -> bool:
    try:
        link.wait_at_most(_HELLO_S)
        frame = link.receive()
        link.wait_at_most(None)
    except (HeddleError, OSError):
        return False
    if frame is None or frame[0] != HELLO:
        return False
    link.hello = frame[1]
    rank = link.hello.get("rank")
    return isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 \
        and isinstance(link.hello.get("instance"), str)


def listen() -> Listener:
    return Listener()


def connect(name: str, hello: Mapping[str, Any]) -> Link:
    """A rank's end.  `hello`: instance and rank, and what else the leader may want to know.  TimeoutError:
    the leader's queue is full.  It takes none before its engine is up, and the engine waits for its ranks.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # not settimeout: such a socket would not wait for a place in the queue
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(*_split(CONNECT_S)))
        connection.connect(b"\0" + name.encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
    except BlockingIOError:
        connection.close()
        raise TimeoutError(f"for {CONNECT_S:g} s the rank link took no connection: its queue is full, of "
                           "processes that are not its ranks") from None
    except BaseException:
        connection.close()
        raise
    link = Link(connection)
    link.send(HELLO, **hello)
    return link


def _split(seconds: float) -> tuple[int, int]:
    """Into seconds and microseconds."""
    return int(seconds), int(seconds % 1 * 1e6)


class Refused(Exception):
    """A rank cannot take a version: which, and its words."""


class Ranks:
    """The leader's end of all links of one engine.  Any thread; its calls wait for each other."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = list(links)
        self._lock = threading.Lock()
        self._lost: str | None = None           # why this engine takes no version any more

    @property
    def hellos(self) -> list[dict[str, Any]]:
        return [dict(link.hello) for link in self._links]

    @property
    def lost(self) -> str | None:
        return self._lost

    def stage(self, tag: str, slot: Slot, **fields: Any) -> None:
        """Until every rank has built the version.  Refused: one cannot, and none keeps it."""
        with self._lock:
            self._live()
            answers = self._ask(STAGE, tag, slot, fields)
            if any(answers):
                self._ask(DROP, tag)
                raise Refused(_first_of(answers, len(self._links)))

    def commit(self, tag: str) -> None:
        """Tells every rank that the version is decided.  Refused: one says no."""
        with self._lock:
            self._live()
            answers = self._ask(COMMIT, tag)
            if any(answers):
                raise Refused(_first_of(answers, len(self._links)))

    def drop(self, tag: str) -> None:
        """No rank keeps the version."""
        with self._lock, contextlib.suppress(Refused):
            self._live()
            self._ask(DROP, tag)

    def _live(self) -> None:
        if self._lost is not None:
            raise Refused(self._lost)

    def _ask(self, kind: int, tag: str, slot: Slot | None = None,
             fields: Mapping[str, Any] | None = None) -> list[str | None]:
        """What each rank said against it, in order; None: nothing."""
        until, rank = time.monotonic() + ANSWER_S, 0
        try:
            for rank, link in enumerate(self._links):
                link.wait_at_most(ANSWER_S)
                link.send(kind, tag=tag, **(fields or {}))
                if slot is not None:
                    link.send_slot(slot)
            answers = []
            for rank, link in enumerate(self._links):
                link.wait_at_most(max(0.001, until - time.monotonic()))
                answers.append(_answer(link, tag))
        except (OSError, HeddleError) as e:
            self._lost = (f"rank {rank} of this engine (process {self._links[rank].peer.pid}) is gone from "
                          f"the rank link: {e or type(e).__name__}. No further version can be loaded; "
                          "restart the server")
            self.close()
            raise Refused(self._lost) from e
        return answers

    def close(self) -> None:
        for link in self._links:
            link.close()


def _answer(link: Link, tag: str) -> str | None:
    frame = link.receive()
    if frame is None:
        raise Unavailable("it closed the link", code="unavailable", exit=7)
    kind, fields = frame
    if kind not in (YES, NO) or fields.get("tag") != tag:
        raise _strange(f"kind {kind} about {fields.get('tag')!r}")
    return None if kind == YES else str(fields.get("words") or "it gave no reason")[:_WORDS_MAX]


def _first_of(answers: list[str | None], count: int) -> str:
    """As one line for people; with one rank there is nothing to tell apart."""
    rank, words = next((rank, words) for rank, words in enumerate(answers) if words)
    return words if count == 1 else f"rank {rank}: {words}"


class Handler(Protocol):
    """What a rank does.  A method that raises says no; what it raised are the words."""

    def stage(self, tag: str, slot: Slot, fields: Mapping[str, Any]) -> None:
        """Takes the slot over, also where it raises."""

    def commit(self, tag: str) -> None: ...

    def drop(self, tag: str) -> None: ...


def serve(link: Link, handler: Handler) -> None:
    """A rank: answers the leader until the link ends.  Raises where anything but its frames comes."""
    with contextlib.closing(link):
        while (frame := link.receive()) is not None:
            kind, fields = frame
            tag = fields.pop("tag", None)
            if kind not in (STAGE, COMMIT, DROP) or not isinstance(tag, str):
                raise _strange(f"kind {kind} about {tag!r}")
            try:
                slot = link.receive_slot() if kind == STAGE else None
            except HeddleError as e:
                if e.code != "no_memory":       # after it the next frame still comes
                    raise
                _say_no(link, tag, e)
                continue
            try:
                if slot is not None:
                    with _short_turns():
                        handler.stage(tag, slot, fields)
                elif kind == COMMIT:
                    handler.commit(tag)
                else:
                    handler.drop(tag)
            except Exception as e:
                _say_no(link, tag, e)
            else:
                link.send(YES, tag=tag)


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Generation and the thread that builds a version take turns in Python.  By its default a turn is 5 ms,
    which each step of generation, and each step of the build, would wait for.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def join(name: str, hello: Mapping[str, Any], handler: Handler, log: logging.Logger) -> None:
    """A rank of an engine: answers the leader, in a thread of its own, as long as there is one.  Where it
    ends, the engine goes on with what it has.
    """
    try:
        link = connect(name, hello)
    except OSError as e:
        log.warning("heddle: rank %d found no leader: %s", hello["rank"], e)
        return

    def answer() -> None:
        try:
            serve(link, handler)
        except ConnectionResetError:            # the leader is off, and said why
            pass
        except Exception as e:
            log.warning("heddle: the rank link ended, and no further version comes: %s", e)
    threading.Thread(target=answer, name="heddle-rank", daemon=True).start()


def _say_no(link: Link, tag: str, why: Exception) -> None:
    words = " ".join(str(why).split()) or type(why).__name__
    link.send(NO, tag=tag, words=words[:_WORDS_MAX])
