# SPDX-License-Identifier: Apache-2.0
"""The cases of the rig: what is done to a cluster in one repetition, and which conditions hold for it.

Conditions are counts of bytes, and lower bounds of time: a busy machine misses none of them."""
import functools
import signal
import sys

from cluster import Bare, Cluster, Look, Peer, Turn, seconds_of
from report import BUSY_LIMIT, SELF, Row

WINDOW = 2 << 20        # of a fetch: what may come twice where a source goes
OUT_MOST = 1.05         # of the publisher's bytes, in versions: one copy, its headers, and control messages
IN_MOST = 1.05          # of a worker's, beside the window
MEGA = 10**6


class Sample:
    """One repetition of the cluster, now: the publisher's bytes, and those of the hosts that count.  The case
    adds times in s, and what else it has counted in bytes."""

    def __init__(self, turn, hosts):
        self.out, self.busy, self.into = turn.out(), turn.busy(), [turn.into(h) for h in hosts]
        self.times, self.beside = {}, {}

    def with_worse(self, other):
        """Of two versions in one repetition, what is worse."""
        self.out, self.busy = max(self.out, other.out), max(self.busy, other.busy)
        self.into = [max(pair) for pair in zip(self.into, other.into)]
        return self


class Case:
    """What all have: N workers on hosts of their own, and a bare chain beside."""

    WORKERS, RATE = (16,), 300 * MEGA
    QUICK_WORKERS, QUICK_RATE = (4,), 50 * MEGA     # so slow that what is done at half way comes in time
    LEAST, PER_HOST, SPARE, BESIDE, COPIES = 2, 1, 0, ("chain",), 2
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

    def active(self, turn, workers):
        """Waits until the version is active on these; -> when that was on the last."""
        return max(worker.when("activate.done", turn.version) for worker in workers)

    def begun_at(self):
        """When the version was published, as soon as the publisher is done with it."""
        return seconds_of(self.cluster.published()["begun_at"])

    def others(self, worker):
        return [w for w in self.cluster.workers if w is not worker]

    def at_half(self, turn, among=None, place=None):
        """Waits until half of the version has come to the worker at that place of the chain, or in its
        middle, and returns that worker.  One that has more bytes stands before one that has less."""
        among = among or self.cluster.workers
        place = place or (len(among) + 1) // 2

        def there():
            found = sorted(among, key=lambda w: -turn.into(w.host))[place - 1]
            return found if turn.into(found.host) >= self.cluster.bytes / 2 else None

        return turn.wait_for(there)

    def check_copies(self, sample, check, text):
        """Where the cores are busy, late sources are left and slow heads replaced, as they should be."""
        if sample.busy < BUSY_LIMIT:
            check(max(sample.into) <= IN_MOST * self.cluster.bytes + WINDOW, text)
        else:
            check(max(sample.into) < self.COPIES * self.cluster.bytes,
                  f"busy cores: less than {self.COPIES} copies came to each host")


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


class Hosts(Wave):
    """as wave, with four workers on each host, of which one fetches over the network"""

    WORKERS, RATE, PER_HOST, COPIES, BESIDE = (64,), 200 * MEGA, 4, 4, ("chain",)
    QUICK_WORKERS, QUICK_RATE = (8,), RATE

    def once(self):
        sample = super().once()
        told = self.cluster.ask("versions", f"policy@{self.cluster.version}")["versions"][0]["workers"]
        sample.copied = sum(not w["held"] for w in told)
        return sample

    def check(self, sample, check):
        """A head that is too slow for its host gets one more beside it, on busy cores."""
        self.check_copies(sample, check, "one copy came to each host")
        check(sample.copied <= 2 * len(self.hosts), "the others hold that copy")


class Kill(Case):
    """a relay is killed when it has half of the version: the others"""

    @classmethod
    def refuses(cls, args):
        least = min(cls.counts(args))
        if args.relay is not None and not 1 <= args.relay < least:
            return f"--relay: 1 to {least - 1}; the last one of a chain hands nothing on"
        return super().refuses(args)

    def begin(self, relay):
        relay.send(signal.SIGKILL)

    def end(self, relay):
        return self.cluster.again(relay)

    def once(self):
        turn = self.cluster.publish()
        relay = self.at_half(turn, place=self.args.relay)
        at = turn.into(relay.host)
        self.begin(relay)
        others = self.others(relay)
        end = self.active(turn, others)
        sample = Sample(turn, [w.host for w in others])
        sample.beside = {"at": at, "handed_on": turn.out(relay.host)}
        self.active(turn, [self.end(relay)])
        sample.times["active"] = end - self.begun_at()
        return sample

    def check(self, sample, check):
        check(sample.beside["handed_on"] >= self.cluster.bytes / 8, "it had handed on what came to it")
        self.check_copies(sample, check, "what came twice to one of the others is a window at most")


class Stop(Kill):
    """a relay stands still from half way until all others are done: the others"""

    RATE = 200 * MEGA

    def begin(self, relay):
        relay.send(signal.SIGSTOP)

    def end(self, relay):
        relay.send(signal.SIGCONT)
        return relay


class Join(Case):
    """one more worker joins at half way: its own time from when it `joined`, and from when it `fetched` this
         version"""

    SPARE, NAME = 1, "joiner"

    def once(self):
        cluster, host = self.cluster, self.cluster.spare[0]
        turn = cluster.publish()
        at = turn.into(self.at_half(turn).host)
        joiner = cluster.worker(self.NAME, host)
        joiner.line()
        fetched_at, end = joiner.when("stage.started", turn.version), self.active(turn, [joiner])
        others_end = self.active(turn, cluster.workers)
        sample = Sample(turn, self.hosts)
        joined_at = seconds_of(cluster.ask("workers", self.NAME)["workers"][0]["joined_at"])
        sample.times = {"joined": end - joined_at, "fetched": end - fetched_at,
                        "active": others_end - self.begun_at()}
        sample.beside = {"at": at, "joiner_in": turn.into(host)}
        joiner.end()
        joiner.wait()
        return sample

    def check(self, sample, check):
        check(sample.beside["joiner_in"] >= self.cluster.bytes, "all bytes came to the joiner over its link")


class Slow(Case):
    """one has a tenth of the rate: the others in the `first` version, and in the `next`, when it is known"""

    @classmethod
    def refuses(cls, args):
        if args.over_time:
            return "--over-time: its repetition is three versions"
        if args.repeat >= min(cls.counts(args)):
            return "--repeat: each time another one is slow; less than --workers"
        return super().refuses(args)

    def __init__(self, cluster, args):
        super().__init__(cluster, args)
        self.known = set()

    def once(self):
        """Another one each time: the broker puts one that was slow behind the others, for minutes."""
        slow = self.at_half(self.cluster.publish(), [w for w in self.cluster.workers if w not in self.known])
        self.cluster.published()
        self.known.add(slow)
        samples, times = [], {}
        for name in "first", "next":
            slow.host.limit(self.cluster.rate // 10)
            turn, others = self.cluster.publish(), self.others(slow)
            end = self.active(turn, others)
            samples.append(Sample(turn, [w.host for w in others]))
            slow.host.limit(self.cluster.rate)      # its own end is not what is measured
            self.active(turn, [slow])
            times[name] = end - self.begun_at()
        sample = samples[0].with_worse(samples[1])
        sample.times = times
        return sample


CASES = {case.__name__.lower(): case for case in (Wave, Kill, Stop, Join, Slow, Hosts)}


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
        self.beside = {how: functools.partial(bare.seconds, how) for how in self.kind.BESIDE
                       if how != "star" or not self.args.no_star}
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
