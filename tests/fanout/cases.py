# SPDX-License-Identifier: Apache-2.0
"""The cases of the rig: what is done to a cluster in one repetition, and which conditions hold for it.

Conditions are counts of bytes, and lower bounds of time: a busy machine misses none of them."""
import functools
import sys

from cluster import Bare, Cluster, Look, Peer, Turn
from report import SELF, Row

OUT_MOST = 1.15         # of the publisher's bytes, in versions: one copy, its headers, and control messages
MEGA = 10**6


class Sample:
    """One repetition of the cluster, now: the publisher's bytes, and those of the hosts that count.  The case
    adds times in s, and what else it has counted in bytes."""

    def __init__(self, turn, hosts):
        self.out, self.busy, self.into = turn.out(), turn.busy(), [turn.into(h) for h in hosts]
        self.times, self.beside = {}, {}


class Case:
    """What all have: N workers on hosts of their own, and a bare chain beside."""

    WORKERS, RATE = (16,), 300 * MEGA
    QUICK_WORKERS, QUICK_RATE = (4,), 50 * MEGA     # so slow that what is done at half way comes in time
    LEAST, PER_HOST, SPARE, BESIDE = 2, 1, 0, ("chain",)
    PUBLISH = ("--as-ready",)   # each worker switches when it has the version, whatever becomes of others

    def __init__(self, cluster, args):
        self.cluster, self.args, self.hosts = cluster, args, cluster.hosts

    @classmethod
    def counts(cls, args):
        return args.workers or (cls.QUICK_WORKERS if args.quick else cls.WORKERS)

    @classmethod
    def refuses(cls, args):
        """-> what is wrong with the options, or None"""
        return f"--workers: at least {cls.LEAST}" if min(cls.counts(args)) < cls.LEAST else None

    def once(self):
        """-> a Sample"""
        raise NotImplementedError

    def check(self, sample, check):
        """Conditions of one repetition, beside those of all cases."""

    def calm(self):
        """A version to which nothing happens: connections are made, and memory is touched."""
        self.cluster.publish()
        self.cluster.published()


class Wave(Case):
    """a version to N workers that have all joined before"""

    WORKERS, QUICK_RATE, LEAST = (1, 2, 4, 8, 16), Case.RATE, 1
    BESIDE, PUBLISH = ("chain", "star"), ()

    def once(self):
        turn = self.cluster.publish()
        told = self.cluster.published()
        sample = Sample(turn, self.hosts)
        sample.times["active"] = (told["commit_ms"] + told["active_ms"]) / 1e3
        return sample


CASES = {case.__name__.lower(): case for case in (Wave,)}


# ---- how each is run ----

class Run:
    """One case with one number of workers."""

    def __init__(self, name, args, workers):
        self.kind, self.args, self.held = CASES[name], args, {}
        self.hosts = -(-workers // self.kind.PER_HOST)
        rate = (args.rate or (self.kind.QUICK_RATE if args.quick else self.kind.RATE)) // 8
        self.cluster = Cluster(args, rate, args.size, self.hosts, self.kind.PER_HOST, self.kind.SPARE,
                               self.kind.PUBLISH)
        self.row = Row(name, args.size, rate, self.hosts * self.kind.PER_HOST, self.hosts - 1,
                       self.cluster.bytes)

    def check(self, holds, text):
        self.held[text] = self.held.get(text, True) and holds

    def open(self):
        """The cluster, and what takes turns with it."""
        self.cluster.open()
        self.case, bare = self.kind(self.cluster, self.args), Bare(self.cluster)
        self.beside = {how: functools.partial(bare.seconds, how) for how in self.kind.BESIDE}
        for name in self.args.peers if self.kind is Wave else ():
            peer = Peer(self.cluster, name)
            why = peer.open()
            if why:
                print(f"skipped: {name}, {self.row.name}: {why}", file=sys.stderr)
            else:
                self.beside[name] = peer.seconds

    def measure(self):
        self.case.calm()
        for seconds in self.beside.values():
            seconds()
        for _ in range(self.args.repeat):
            self.own_turn()
            for name in self.beside:
                self.turn_of(name)
        if self.args.over_time:
            for name, once in {SELF: self.case.once, **self.beside}.items():
                look = Look(self.cluster.hosts + (self.cluster.spare if name == SELF else []))
                look.start()
                try:
                    once()
                finally:
                    self.row.over_time[name] = look.end()

    def own_turn(self):
        sample, bytes_ = self.case.once(), self.cluster.bytes
        for name, seconds in sample.times.items():
            self.row.figure(name, "ms", 1e3 * seconds)
        self.row.figure("publisher_out", "bytes", sample.out)
        self.row.figure("worker_in", "bytes", max(sample.into))
        for name, count in sample.beside.items():
            self.row.reference(name, "bytes", count)
        self.row.turn(SELF, sample.busy)
        self.check(min(sample.times.values()) >= 0.99 * self.cluster.unit_s, "not faster than one link")
        self.check(min(sample.into) >= bytes_, "all bytes came to each over its link")
        self.check(sample.out <= OUT_MOST * bytes_, "the publisher's link carries one copy")
        self.case.check(sample, self.check)

    def turn_of(self, name):
        turn, count = Turn(self.cluster.source, self.cluster.hosts), self.hosts
        seconds = self.beside[name]()
        out, into = turn.out(), [turn.into(h) for h in self.cluster.hosts]
        self.row.turn(name, turn.busy())
        self.row.reference(name, "ms", 1e3 * seconds)
        self.row.reference(f"{name}_out", "bytes", out)
        self.check(seconds >= 0.99 * self.cluster.unit_s, f"{name}: not faster than one link")
        self.check(min(into) >= self.cluster.bytes, f"{name}: all bytes came to each over its link")
        if name == "star":
            self.check(seconds >= 0.99 * count * self.cluster.unit_s and out >= count * self.cluster.bytes,
                       "star: the sender's link carries each copy")
        if name == "chain":
            self.check(out <= OUT_MOST * self.cluster.bytes, "chain: the sender's link carries one copy")

    def close(self):
        left = self.cluster.close()
        self.check(not left, " ".join(["nothing is left behind", *left]))


def measure(name, args, rows, check):
    """Each number of workers has a cluster of its own, and a row."""
    for workers in CASES[name].counts(args):
        run = Run(name, args, workers)
        try:
            run.open()
            run.measure()
            rows.append(run.row)
        finally:
            run.close()
            for text, holds in run.held.items():
                check(holds, f"{run.row.name}: {text}")
