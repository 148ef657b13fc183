# SPDX-License-Identifier: Apache-2.0
"""What `Admin` answers: the objects of `heddle ... -o json` as frozen dataclasses, field for field.

Types: `*_ms` float, `*_bytes` and `*_count` int, `*_at` str (RFC 3339, UTC, milliseconds), digest "h1:...",
tag "policy@3:3f9a1c20d4e1". None where unknown; lists are tuples, sorted by name or version.  A field of a
newer broker that is not known here is left out.
"""
from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, Union

from heddle.errors import named

T = TypeVar("T")


@dataclass(frozen=True)
class WireRange:
    min: int
    max: int


@dataclass(frozen=True)
class Restored:
    """The broker's data are older than what a member knows."""
    from_: str                          # the member; "from" in JSON
    at: str
    message: str


@dataclass(frozen=True)
class BrokerInfo:
    endpoint: str
    cluster: str
    epoch: int
    pid: int
    heddle: str
    wire: WireRange
    uptime_ms: float
    state: str                          # ready, read_only
    data_dir: str
    registry_bytes: int
    settling_ms: float | None = None    # it has just started, and decides nothing for so long yet
    now_at: str | None = None           # what its clock shows
    restored: Restored | None = None
    public_key: str | None = None       # its own; None: it runs without keys


@dataclass(frozen=True)
class Counts:
    adapters: int
    versions: int
    workers_ready: int
    workers_lost: int
    writers: int


@dataclass(frozen=True)
class ActiveVersion:
    version: int
    decision: int
    tag: str
    digest: str
    since_at: str
    state: str                          # active, lost


@dataclass(frozen=True)
class NewestVersion:
    version: int
    state: str
    digest: str | None


@dataclass(frozen=True)
class HeldBy:
    by: str
    at: str
    version: int


@dataclass(frozen=True)
class Writer:
    name: str
    host: str
    pid: int
    since_at: str


@dataclass(frozen=True)
class AdapterInfo:
    name: str
    active: ActiveVersion | None
    newest: NewestVersion | None
    held: HeldBy | None
    writer: Writer | None
    base_model: str | None
    version_count: int
    subscriber_count: int
    current_count: int
    max_lag: int


@dataclass(frozen=True)
class Notice:
    """What an operator should look at."""
    at: str
    name: str                           # broker.other_cluster, broker.read_only, keys.refused, version.lost
    message: str


@dataclass(frozen=True)
class Attention:
    """Why the cluster is not healthy: what `heddle status --check` ends with 1 for."""
    name: str
    adapter: str | None
    worker: str | None
    since_at: str | None
    message: str


@dataclass(frozen=True)
class Status:
    broker: BrokerInfo
    count: Counts
    adapters: tuple[AdapterInfo, ...]
    warnings: tuple[Notice, ...] = ()   # by time
    reasons: tuple[Attention, ...] = ()     # what needs an operator now; of the broker, adapters, workers


@dataclass(frozen=True)
class BrokerRow:
    endpoint: str
    role: str                           # leader or standby
    following: bool | None              # of a standby
    behind: int | None                  # of one that follows: revisions of etcd
    pid: int
    heddle: str | None


@dataclass(frozen=True)
class StoreInfo:
    kind: str                           # sqlite or etcd
    place: str
    state: str                          # ready, unanswered or read_only
    message: str | None
    revision: int | None
    seen_age_ms: float | None
    registry_bytes: int


@dataclass(frozen=True)
class Brokers:
    cluster: str
    epoch: int
    brokers: tuple[BrokerRow, ...]      # the leader, then its standbys by endpoint
    store: StoreInfo


@dataclass(frozen=True)
class Reason:
    """An error object: why a version failed."""
    code: str
    exit: int
    message: str
    adapter: str | None
    version: int | None
    worker: str | None
    phase: str | None
    expected: str | None
    found: str | None
    hint: str | None
    retriable: bool


@dataclass(frozen=True)
class Lacking:
    """A worker that a rollout, a wait or an activation still lacks."""
    worker: str
    phase: str | None = None
    code: str | None = None
    message: str | None = None
    heartbeat_age_ms: float | None = None
    note: str | None = None             # why it is missing, for people


@dataclass(frozen=True)
class RolloutInfo:
    activation: str
    deadline_ms: float
    eligible_count: int | None
    staged_count: int | None
    active_count: int | None
    missing: tuple[Lacking, ...]


@dataclass(frozen=True)
class Moved:
    """Read requests that were taken back from a source, by the reason."""
    late: int = 0                       # it did not answer in time
    gone: int = 0                       # its connection ended, or the broker named other sources
    refused: int = 0
    bad: int = 0                        # it sent wrong bytes
    slow: int = 0                       # another source had the bytes sooner


@dataclass(frozen=True)
class Source:
    name: str
    kind: str                           # publisher, worker
    bytes: int
    way: str | None = None              # network; host: held in its memory, nothing was copied
    moved: Moved | None = None          # asks that it lost to other sources


@dataclass(frozen=True)
class CopyTiming:
    announce_ms: float | None
    connect_ms: float | None
    fetch_ms: float | None
    verify_ms: float | None
    stage_ms: float | None
    activate_ms: float | None
    queued_ms: float | None = None      # until the version that it fetched first was there
    waiting_ms: float | None = None     # in none of the other phases


@dataclass(frozen=True)
class Copy:
    """A version on a worker."""
    worker: str
    state: str | None                   # announced fetching arrived staged committed active kept stale failed
    since_at: str | None
    bytes_done: int
    sources: tuple[Source, ...]
    timing: CopyTiming
    code: str | None = None             # why it is stale or failed
    message: str | None = None
    max_rate_bytes: int | None = None   # a second, that its max_rate allows; None: no limit, or it is gone
    rate_bytes: int | None = None       # a second, while it fetches
    source: str | None = None           # from which it fetches now
    note: str | None = None             # how it gets on, for people
    queued_behind: int | None = None    # the version that it fetched first
    awaited: bool | None = None         # the activation waited for it; None: not known
    verified: str | None = None         # by which process: here, host; None: not reported
    verified_by: str | None = None      # that worker
    held: bool | None = None            # the bytes are in a region of another process of the host
    waits_for: str | None = None        # the worker whose bytes it waits for


@dataclass(frozen=True)
class FormerFetch:
    """What a worker fetched before it was started again, left, or dropped the version."""
    worker: str
    sources: tuple[Source, ...]
    fetch_ms: float | None = None


@dataclass(frozen=True)
class VersionProgress:
    """What all workers have of a version that is on its way."""
    bytes_done: int
    all_bytes: int
    worker_count: int
    rate_bytes: int | None = None       # a second, of all that fetch


@dataclass(frozen=True)
class Slowest:
    """The worker that took longest, or that the version waits for."""
    worker: str
    phase: str | None
    ms: float
    rate_bytes: int | None = None       # a second, of phase fetch
    max_rate_bytes: int | None = None   # its --max-rate, where that limited it


@dataclass(frozen=True)
class Rest:
    """Time that is in no phase of the slowest worker."""
    ms: float
    message: str | None                 # what it was; None: not known


@dataclass(frozen=True)
class Switch:
    """The slowest switch to a version."""
    worker: str
    ms: float


@dataclass(frozen=True)
class Unfinished:
    """The worker that is furthest behind, of a version that is active already."""
    worker: str
    phase: str
    ms: float
    count: int                          # how many workers do not serve it yet


@dataclass(frozen=True)
class VersionInfo:
    """config and the fields after it are those of NAME@V alone, but for took_ms; None in a list of
    versions.
    """
    version: int
    tag: str
    digest: str
    state: str                          # staging staged active kept superseded failed retired lost
    reason: Reason | None
    step: int | None
    created_at: str
    activated_at: str | None
    data_bytes: int
    tensor_count: int
    features: tuple[str, ...]
    holder_count: int
    active_count: int
    meta: dict[str, str]
    payload_bytes: int | None = None    # in memory and on the network: each tensor in pages of its own
    note: str | None = None             # what it waits for
    config: dict[str, Any] | None = None
    request_id: str | None = None
    writer: str | None = None
    rollout: RolloutInfo | None = None
    workers: tuple[Copy, ...] | None = None
    took_ms: float | None = None        # from created_at to activated_at
    so_far_ms: float | None = None      # since created_at, while it is staging or staged
    ended_after_ms: float | None = None     # since created_at, of one that ended and was never active
    slowest: Slowest | None = None
    progress: VersionProgress | None = None    # None: no worker is on its way to it
    rest: Rest | None = None
    switch: Switch | None = None
    unfinished: Unfinished | None = None
    former: tuple[FormerFetch, ...] | None = None
    former_count: int | None = None     # of all, also of those that are not in `former`
    holder_host_count: int | None = None    # that the holders are on
    holder_host: str | None = None      # where it is one
    kind: str | None = None             # "lora", "tensors"; None: of a broker before there were two


@dataclass(frozen=True)
class Transport:
    backend: str
    ucx: str | None
    devices: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    memory: str | None = None           # "shared", or "own": all versions are copied
    memory_why: str | None = None       # why a version that the host has is copied
    host_share: str | None = None       # of Worker(host_share=)


@dataclass(frozen=True)
class Slots:
    total: int
    free: int | None
    held: int | None


@dataclass(frozen=True)
class Fetching:
    version: int
    bytes_done: int
    data_bytes: int
    source: str | None
    rate_bytes: int | None = None       # a second


@dataclass(frozen=True)
class Subscription:
    name: str
    version: int | None
    decision: int | None
    tag: str | None
    digest: str | None
    state: str | None
    lag: int
    since_at: str | None
    held_count: int
    fetching: Fetching | None
    kept: tuple[int, ...]
    code: str | None = None             # why it is stale
    message: str | None = None
    note: str | None = None             # how it gets on with what it fetches, for people


@dataclass(frozen=True)
class Counters:
    bytes_in: int
    bytes_out: int
    chunks_bad: int
    retries: int
    fenced: int


@dataclass(frozen=True)
class Group:
    """Workers that serve as one: a version is staged there when each of the `ranks` has staged it."""
    name: str
    rank: int
    ranks: int


@dataclass(frozen=True)
class SharedMemory:
    """Of its versions; None: not reported."""
    own_bytes: int | None               # of the regions that it owns
    held_bytes: int | None              # of the regions of other processes of its host that it holds


@dataclass(frozen=True)
class Draining:
    """A worker that is to leave waits until another process that stays holds what only it has."""
    since_at: str
    only_here_count: int
    only_here: tuple[str, ...]          # "policy@3", 64 at most


@dataclass(frozen=True)
class WorkerInfo:
    """`current`: it serves the active version of every adapter that it subscribed to."""
    name: str
    token: int
    state: str                          # ready draining left lost
    current: bool
    host: str
    pid: int
    labels: dict[str, str]
    joined_at: str
    heartbeat_age_ms: float
    transport: Transport
    slots: Slots
    adapters: tuple[Subscription, ...]
    counters: Counters
    group: Group | None = None
    memory: SharedMemory | None = None
    relay_why: str | None = None        # why other workers fetch from it last, or do not
    drain: Draining | None = None       # it is to leave


@dataclass(frozen=True)
class ForgetResult:
    adapter: str
    version_count: int                  # of its versions that were remembered
    dry_run: bool                       # nothing was forgotten


@dataclass(frozen=True)
class Reached:
    worker: str
    version: int | None
    digest: str | None
    state: str | None
    since_at: str | None


@dataclass(frozen=True)
class WaitResult:
    adapter: str
    version: int
    digest: str | None
    decision: int | None
    phase: str
    need_count: int
    have_count: int
    eligible_count: int
    elapsed_ms: float
    workers: tuple[Reached, ...]
    missing: tuple[Lacking, ...]


@dataclass(frozen=True)
class WouldFetch:
    """A worker that has not the bytes of the version."""
    worker: str
    bytes: int
    version: int | None                 # that it serves until then


@dataclass(frozen=True)
class ActivateResult(WaitResult):
    to: int = 0
    from_: int | None = None            # "from" in JSON
    changed: bool = False
    held: bool = False
    bytes_moved: int = 0
    dry_run: bool = False
    would_fetch: tuple[WouldFetch, ...] = ()    # of dry_run, by worker
    would_fetch_bytes: int | None = None        # of all of them; None: no dry_run
    same_bytes: bool = False                    # changed, and both versions have one digest


@dataclass(frozen=True)
class Checked:
    worker: str
    version: int
    digest: str | None
    match: bool
    exported_match: bool | None
    hash_ms: float | None
    code: str | None


@dataclass(frozen=True)
class VerifyResult:
    expected: str
    workers: tuple[Checked, ...]
    adapter: str | None = None
    version: int | None = None
    elapsed_ms: float | None = None


@dataclass(frozen=True)
class ReachedWorker:
    """`reach`: yes no untested (its UCX is of another version, say).  `reach_ms`: with yes, `reach_why`:
    else."""
    name: str
    host: str
    ucx: str
    reach: str
    reach_ms: float | None
    reach_why: str | None


@dataclass(frozen=True)
class ReachResult:
    """`ok`: each of them was reached.  `device`: what this process reached them by."""
    ok: bool
    device: str
    workers: tuple[ReachedWorker, ...]


@dataclass(frozen=True)
class Event:
    """seq is strictly increasing within an epoch; type "gap" tells of some that are missing."""
    seq: int
    epoch: int
    at: str
    type: str
    adapter: str | None
    version: int | None
    worker: str | None
    code: str | None
    message: str | None
    data: dict[str, Any]


@lru_cache(maxsize=None)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def decode(kind: type[T], value: Any) -> T:
    """A dataclass out of its JSON object; unknown fields are ignored, absent ones None or their default."""
    hints, given = _hints(typing.cast(Any, kind)), {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.name.rstrip("_")
        if name in value:
            given[field.name] = _decode_value(hints[field.name], value[name])
            if name in _OF_FAILURE and isinstance(given[field.name], str):
                given[field.name] = named(given[field.name])
        elif field.default is dataclasses.MISSING:
            given[field.name] = None
    return kind(**given)


_OF_FAILURE = ("message", "hint", "note")   # what another process said, in the words of C


def _decode_value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_value(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        return tuple(_decode_value(args[0], element) for element in value)
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type, hint), value)
    return value
