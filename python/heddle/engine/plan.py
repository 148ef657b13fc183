# SPDX-License-Identifier: Apache-2.0
"""What a plug between one worker and some servers does: state + event + now -> actions.  No socket, thread,
clock, file.

A version, and what is owed to the worker for it:

    LOADING     arrived; STAGED is owed as soon as every server answers for its name
    STAGED      every server answered for it
    SWITCHING   decided; ACTIVATE is owed as soon as every server answers for it (again)
    ACTIVE      decided and said
    KEPT        was active; its name goes on answering, for a way back and for requests that still name it
    DROPPED     wanted no more: unloaded where it is, when its requests are over; then its directory is
                discarded

What a server has is known from what it did (loaded, unloaded) and from its own list (seen), which comes again
and again: a server that was started again has an empty list, and everything wanted is loaded into it anew,
the active version first. A server has one job at a time.  One that waits for a name's requests when it
unloads it (WAITING) takes nothing else meanwhile, and no version is refused for that: its time stands still.
A name that it has from a directory of ours belongs to a version, or an earlier run left it there: it is taken
as it is when its version comes, and unloaded once another version of its adapter is active.

Not for threads: one caller."""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Callable, Iterable, Mapping, Union

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0
DOUBTS = 3                               # a DOUBTFUL refusal in the same words so often is a lasting one


class Kind(enum.Enum):
    """Whether it helps to try a refused job again."""

    LASTING = "lasting"                  # it does not
    DOUBTFUL = "doubtful"                # the server blames itself: a few times
    PASSING = "passing"                  # it may, until the deadline
    WAITING = "waiting"                  # an unload: it is under way, until the name's requests are over


class State(enum.Enum):
    LOADING = "loading"
    STAGED = "staged"
    SWITCHING = "switching"
    ACTIVE = "active"
    KEPT = "kept"
    DROPPED = "dropped"


@dataclass
class Version:
    adapter: str
    number: int
    name: str                            # at the servers
    path: str                            # as the servers see it
    state: State = State.LOADING
    since: float = 0.0
    deadline: float = float("inf")       # LOADING, SWITCHING: what is owed is refused then
    before: State = State.LOADING        # SWITCHING: where it goes back to


@dataclass(frozen=True)
class Load:
    server: int
    name: str
    path: str
    deadline: float


@dataclass(frozen=True)
class Unload:
    server: int
    name: str
    force: bool                          # requests that still name it are waited for no more


@dataclass(frozen=True)
class Staged:
    adapter: str
    number: int


@dataclass(frozen=True)
class Activate:
    adapter: str
    number: int


@dataclass(frozen=True)
class Reject:
    phase: str                           # what is refused: "arrived" or "commit"
    adapter: str
    number: int
    words: str


@dataclass(frozen=True)
class Discard:
    """No server has the version's directory any more."""

    path: str


Action = Union[Load, Unload, Staged, Activate, Reject, Discard]


@dataclass
class _Trouble:
    words: str
    lasting: bool                        # trying again would not help
    again: float                         # not before this time
    pause: float = FIRST_PAUSE_S
    count: int = 1                       # refusals in these words


@dataclass
class Server:
    url: str
    up: bool = False
    since: float = 0.0                   # up or away since then
    words: str = "not asked yet"         # why it is away
    room: int | None = None              # how many adapters it takes at once; None: no limit is known
    has: dict[str, str] = field(default_factory=dict)        # name -> path
    job: Load | Unload | None = None
    waits: str | None = None             # the name that it unloads as soon as its requests are over
    # names whose load failed, until the next list says whether they are there
    unsure: set[str] = field(default_factory=set)
    troubles: dict[str, _Trouble] = field(default_factory=dict)   # by name


_RANK = {State.SWITCHING: 0, State.ACTIVE: 0, State.LOADING: 1, State.STAGED: 2, State.KEPT: 3}


class Plan:
    def __init__(self, urls: Iterable[str], *, load_s: float, drain_s: float,
                 adapter_of: Callable[[str], str | None]) -> None:
        """`adapter_of(path)`: whose directory of ours that is; None: it is not ours."""
        self.servers = [Server(url) for url in urls]
        self.versions: dict[tuple[str, int], Version] = {}
        self._load_s, self._drain_s, self._adapter_of = load_s, drain_s, adapter_of
        self._stepped = 0.0
        # servers that took no load when it was asked last
        self._held: set[int] = set()
        # server, name of an earlier run -> to be unloaded since
        self._left: dict[tuple[int, str], float] = {}

    # --- the worker's events ---------------------------------------------------------------------

    def arrived(self, now: float, adapter: str, number: int, name: str, path: str) -> None:
        """A verified version, exported to `path`.  Said again for one that is here: it is owed STAGED
        again."""
        v = self.versions.get((adapter, number))
        if v is None or v.state is State.DROPPED:
            v = self.versions[adapter, number] = Version(adapter, number, name, path)
            for s in self.servers:
                s.troubles.pop(name, None)
        if v.state in (State.LOADING, State.STAGED):
            v.state, v.since, v.deadline = State.LOADING, now, now + self._load_s

    def commit(self, now: float, adapter: str, number: int) -> bool:
        """False: the version is not known here, it has to arrive first.  Of the active one: ACTIVATE is owed
        once more."""
        v = self.versions.get((adapter, number))
        if v is None or v.state is State.DROPPED:
            return False
        if v.state is not State.SWITCHING:
            v.before = v.state
        v.state, v.since, v.deadline = State.SWITCHING, now, now + self._load_s
        return True

    def activated(self, now: float, adapter: str, number: int) -> None:
        """The worker took ACTIVATE."""
        for v in self.versions.values():
            if v.adapter == adapter and v.state is State.ACTIVE:
                v.state, v.since = State.KEPT, now
            elif v.adapter == adapter and v.before is State.ACTIVE:
                v.before = State.KEPT
        v = self.versions[adapter, number]
        v.state, v.since, v.deadline = State.ACTIVE, now, float("inf")

    def overtaken(self, now: float, adapter: str, number: int) -> None:
        """The worker refused ACTIVATE: another decision follows."""
        v = self.versions[adapter, number]
        v.state, v.since, v.deadline = self._at_rest(v), now, float("inf")

    def gone(self, now: float, adapter: str, number: int) -> None:
        """Retired, failed or rejected: no request names it again."""
        v = self.versions.get((adapter, number))
        if v is not None and v.state is not State.DROPPED:
            v.state, v.since = State.DROPPED, now

    def left(self, now: float) -> None:
        """The worker's session is over: all that servers have is left for the next one to take."""
        self.versions.clear()
        self._left.clear()
        for s in self.servers:
            s.troubles.clear()

    # --- the servers' events ---------------------------------------------------------------------

    def seen(self, now: float, server: int, listing: Mapping[str, str], room: int | None) -> list[str]:
        """A server's own list.  Returns the names that it had and has no more, though they were not
        unloaded."""
        s = self.servers[server]
        if not s.up:
            s.up, s.since, s.words = True, now, ""
        lost = [name for name in s.has if name not in listing and name != s.waits
                and self._adapter_of(s.has[name])]
        s.has, s.room = dict(listing), room
        s.unsure.clear()
        return lost

    def away(self, now: float, server: int, words: str) -> None:
        s = self.servers[server]
        if s.up:
            s.up, s.since = False, now
        s.words, s.waits = words, None

    def loaded(self, now: float, server: int) -> None:
        """It answers for the name of its job."""
        s = self.servers[server]
        if s.job and isinstance(s.job, Load):
            s.has[s.job.name] = s.job.path
            s.troubles.pop(s.job.name, None)
        s.job = None

    def unloaded(self, now: float, server: int) -> None:
        s = self.servers[server]
        if s.job:
            s.has.pop(s.job.name, None)
            s.troubles.pop(s.job.name, None)
        s.job = s.waits = None

    def refused(self, now: float, server: int, words: str, kind: Kind) -> None:
        """The job failed; it is tried again after a pause unless that would not help."""
        s = self.servers[server]
        if s.job:
            last = s.troubles.get(s.job.name)
            pause = min(last.pause * 2, LAST_PAUSE_S) if last else FIRST_PAUSE_S
            count = last.count + 1 if last and last.words == words else 1
            is_lasting = kind is Kind.LASTING or (kind is Kind.DOUBTFUL and count >= DOUBTS)
            s.troubles[s.job.name] = _Trouble(words, is_lasting, now + pause, pause, count)
            if isinstance(s.job, Load):
                s.unsure.add(s.job.name)
            else:
                s.waits = s.job.name if kind is Kind.WAITING else None
        s.job = None

    # --- what to do ------------------------------------------------------------------------------

    def step(self, now: float) -> list[Action]:
        """What has to be done now.  Each Load and Unload is answered by loaded, unloaded or refused."""
        self._stand_still(now - self._stepped)
        self._stepped = now
        actions: list[Action] = []
        for v in list(self.versions.values()):
            self._answer(v, now, actions)
        for index, s in enumerate(self.servers):
            if s.up and s.job is None and (job := self._job(index, s, now, actions)):
                s.job = job
                actions.append(job)
        for key, v in list(self.versions.items()):
            if v.state is State.DROPPED and not any(self._uses(s, v) for s in self.servers):
                del self.versions[key]
                actions.append(Discard(v.path))
        self._held = {index for index, s in enumerate(self.servers) if s.waits or isinstance(s.job, Unload)}
        return actions

    def wake(self) -> float:
        """When `step` has to be asked again if nothing happens before: later than it was asked last."""
        times = [v.deadline for v in self.versions.values() if v.state in (State.LOADING, State.SWITCHING)]
        times += [t.again for s in self.servers if s.up and not s.job for t in s.troubles.values()]
        return min((t for t in times if t > self._stepped), default=float("inf"))

    def is_idle(self) -> bool:
        """No server has a job, and nothing is owed."""
        owed = (State.LOADING, State.SWITCHING, State.DROPPED)
        return not any(s.job or s.waits for s in self.servers) and not any(v.state in owed
                                                                           for v in self.versions.values())

    def away_since(self) -> float | None:
        """Since when some server has been away; None: none is."""
        return min((s.since for s in self.servers if not s.up), default=None)

    # --- how -------------------------------------------------------------------------------------

    @staticmethod
    def _at_rest(v: Version) -> State:
        return v.before if v.before in (State.ACTIVE, State.KEPT) else State.STAGED

    def _stand_still(self, seconds: float) -> None:
        """The time of a version does not run while a server that has to load it unloads something."""
        for v in self.versions.values():
            if any(self.servers[i].up and not self._answers(self.servers[i], v) for i in self._held):
                v.deadline += seconds

    @staticmethod
    def _answers(s: Server, v: Version) -> bool:
        return s.up and s.has.get(v.name) == v.path

    @staticmethod
    def _uses(s: Server, v: Version) -> bool:
        """A server that is away keeps no directory: it may never come back."""
        return s.up and (s.has.get(v.name) == v.path or v.name in (*s.unsure, s.waits)
                         or (s.job is not None and s.job.name == v.name))

    def _answer(self, v: Version, now: float, actions: list[Action]) -> None:
        if v.state not in (State.LOADING, State.SWITCHING):
            return
        missing = [s for s in self.servers if not self._answers(s, v)]
        if not missing and v.state is State.LOADING:
            v.state, v.since, v.deadline = State.STAGED, now, float("inf")
            actions.append(Staged(v.adapter, v.number))
        elif not missing:
            v.deadline = float("inf")
            actions.append(Activate(v.adapter, v.number))
        elif now >= v.deadline or any(self._is_hopeless(s, v) for s in missing):
            self._refuse(v, now, missing, actions)

    @staticmethod
    def _is_hopeless(s: Server, v: Version) -> bool:
        return v.name in s.troubles and s.troubles[v.name].lasting

    def _refuse(self, v: Version, now: float, missing: list[Server], actions: list[Action]) -> None:
        hopeless = [s for s in missing if self._is_hopeless(s, v)]
        words = "; ".join(f"{s.url}: {self._words(s, v)}" for s in hopeless or missing)
        phase = "arrived" if v.state is State.LOADING else "commit"
        if v.state is State.LOADING:
            v.state, v.since = State.DROPPED, now
        else:
            v.state, v.since, v.deadline = self._at_rest(v), now, float("inf")
        actions.append(Reject(phase, v.adapter, v.number, words))

    def _words(self, s: Server, v: Version) -> str:
        if v.name in s.troubles:
            return s.troubles[v.name].words
        if not s.up:
            return s.words
        busy = f", busy with {s.job.name}" if s.job and s.job.name != v.name else ""
        return f"does not answer for {v.name} after {self._load_s:g} s{busy}"

    def _job(self, index: int, s: Server, now: float, actions: list[Action]) -> Load | Unload | None:
        if s.waits:
            return self._not_too_soon(s, Unload(index, s.waits, force=True), now)
        wanted = [v for v in self.versions.values() if v.state in _RANK and not self._answers(s, v)]
        for v in sorted(wanted, key=lambda v: (_RANK[v.state],
                                               -v.number if v.state is State.KEPT else v.number)):
            trouble = s.troubles.get(v.name)
            if trouble and (now < trouble.again or (trouble.lasting and v.state is not State.ACTIVE)):
                continue
            job = self._job_for(index, s, v, now)
            if job is not None:
                return job
        return self._job_unload(index, s, now)

    def _job_for(self, index: int, s: Server, v: Version, now: float) -> Load | Unload | None:
        if v.name in s.has:
            if self._adapter_of(s.has[v.name]):
                # another content under this name, of an earlier run
                return Unload(index, v.name, force=True)
            s.troubles[v.name] = _Trouble(f"{v.name} is taken: loaded from {s.has[v.name] or 'elsewhere'}",
                                          True, now)
            return None
        spare = 2 if v.state is State.KEPT else 1            # what is kept leaves a place for what arrives
        if s.room is None or len(s.has) + spare <= s.room:
            return Load(index, v.name, v.path,
                        max(v.deadline, now) if v.deadline < float("inf") else now + self._load_s)
        if v.state is State.KEPT:
            return None
        victim = self._victim(index, s, now)
        if victim is None:
            held = ", ".join(f"{u.name} {u.state.value}" for u in self.versions.values() if u.name in s.has)
            other = sorted(name for name in s.has if self._of_name(name) is None)
            held = ", ".join(filter(None, [held, *other]))
            s.troubles[v.name] = _Trouble(f"takes {s.room} adapters and has them: {held}", True, now)
            return None
        # A server that tells its room waits for the requests of this one name by itself: no other way is
        # shorter.
        return self._not_too_soon(s, Unload(index, victim, force=True), now)

    def _victim(self, index: int, s: Server, now: float) -> str | None:
        """What makes room: first what is not wanted, then the oldest kept."""
        for name, _ in self._unwanted(index, s, now):
            return name
        kept = [v for v in self.versions.values() if v.state is State.KEPT and s.has.get(v.name) == v.path]
        oldest = min(kept, key=lambda v: v.since, default=None)
        return oldest.name if oldest else None

    def _unwanted(self, index: int, s: Server, now: float) -> list[tuple[str, float]]:
        active = {v.adapter for v in self.versions.values() if v.state is State.ACTIVE}
        found = []
        for name, path in s.has.items():
            v, adapter = self._of_name(name), self._adapter_of(path)
            if v is not None and v.path == path:
                if v.state is State.DROPPED:
                    found.append((name, v.since))
            elif adapter in active:
                found.append((name, self._left.setdefault((index, name), now)))
        return sorted(found, key=lambda pair: pair[1])

    def _job_unload(self, index: int, s: Server, now: float) -> Unload | None:
        for name, since in self._unwanted(index, s, now):
            job = self._not_too_soon(s, Unload(index, name, now >= since + self._drain_s), now)
            if job is not None:
                return job
        return None

    @staticmethod
    def _not_too_soon(s: Server, job: Unload, now: float) -> Unload | None:
        trouble = s.troubles.get(job.name)
        return None if trouble and now < trouble.again else job

    def _of_name(self, name: str) -> Version | None:
        return next((v for v in self.versions.values() if v.name == name), None)
