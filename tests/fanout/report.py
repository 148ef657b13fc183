# SPDX-License-Identifier: Apache-2.0
"""What was measured, as `heddle-bench compare` and tests/fanout/picture read it (bench/result.h):

    report   { schema, kind "bench", ok, machine, rows, error }
    row      { name "fanout/CASE/SIZE/RATE/WORKERS", data_bytes, tensor_count, worker_count, keep,
               repeat_count, figures, references }
    series   { name, unit, median, worst, ratio (of a figure, to each reference of its unit), samples }

Figures in ms are times of the cluster; those in bytes are what left the publisher (`publisher_out`), and
what came to the host that got most (`worker_in`).  References in ms are the chain, the star and the peers, in
turns with it, and `link`, the time of the version's bytes on one link: a figure's ratio to that is its M/B.
In bytes they are the version itself (`adapter`), what left the sender of each (`chain_out`), and what a case
has counted beside (`at`: what had come to a relay when something happened to it).

A row has three fields more than those of heddle-bench.  `busy`: the part of the cores' time that was in use,
for each repetition of the cluster ("heddle") and of the others.  `hidden`: what the burst of the links hides
of the hops of a chain, in M/B.  `over_time`: with --over-time, the bytes of each host in one more
repetition."""
import datetime
import json
import os
import pathlib
import statistics

from cluster import CHUNK, TENSORS
from net import BURST

HEADERS = 1.046         # of Ethernet, IP and TCP at an MTU of 1500
BUSY_LIMIT = 0.7
SELF = "heddle"


def short(number):
    """300e6 -> "300M"; sizes and rates in names."""
    for letter, factor in ("G", 1e9), ("M", 1e6), ("k", 1e3):
        if number >= factor:
            return f"{number / factor:g}{letter}"
    return f"{number:g}"


class Row:
    def __init__(self, case, size, rate, workers, hops, data_bytes):
        self.name = f"fanout/{case}/{short(size)}B/{short(8 * rate)}bit/{workers}"
        self.workers, self.bytes = workers, data_bytes
        self.link_ms = 1e3 * data_bytes / rate
        self.hidden = HEADERS * hops * min(CHUNK, BURST) / data_bytes
        self.figures, self.references, self.busy, self.over_time = {}, {}, {}, {}

    def figure(self, name, unit, value):
        self.figures.setdefault(name, (unit, []))[1].append(value)

    def reference(self, name, unit, value):
        self.references.setdefault(name, (unit, []))[1].append(value)

    def turn(self, by, busy):
        self.busy.setdefault(by, []).append(round(busy, 4))

    def encode(self):
        repeat = len(self.busy[SELF])
        references = {"adapter": ("bytes", [self.bytes] * repeat), **self.references,
                      "link": ("ms", [self.link_ms] * repeat)}
        figures = []
        for name, (unit, samples) in self.figures.items():
            ratio = {r: statistics.median(a / b for a, b in zip(samples, others))
                     for r, (u, others) in references.items() if u == unit}
            figures.append(series_of(name, unit, samples, ratio))
        return {"name": self.name, "skipped": None, "data_bytes": self.bytes, "tensor_count": TENSORS,
                "worker_count": self.workers, "keep": 0, "repeat_count": repeat, "figures": figures,
                "references": [series_of(n, u, s, None) for n, (u, s) in references.items()],
                "busy": self.busy, "hidden": self.hidden, "over_time": self.over_time or None}


def series_of(name, unit, samples, ratio):
    return {"name": name, "unit": unit, "skipped": None, "median": statistics.median(samples), "p99": None,
            "worst": max(samples), "ratio": ratio, "samples": samples}


def machine_facts(congestion):
    def line(path, key):
        found = [t for t in pathlib.Path(path).read_text().splitlines() if t.startswith(key)]
        return found[0].partition(":")[2].strip() if found else None

    return {"at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"), "host": os.uname().nodename, "cpu": line("/proc/cpuinfo", "model name"),
            "core_count": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "kernel": os.uname().release, "tcp": congestion,
            "transfer_mode": os.environ.get("HEDDLE_TRANSFER_MODE") or "eager",
            "load_before": os.getloadavg()[0]}


def encode(machine, rows, missed):
    return {"schema": "heddle/1", "kind": "bench", "ok": not missed,
            "machine": {**machine, "load_after": os.getloadavg()[0]}, "rows": [r.encode() for r in rows],
            "error": {"message": "; ".join(missed)} if missed else None}


def print_json(report, out):
    json.dump(report, out)
    print(file=out)


def number(value, digits=3):
    return "" if value is None else f"{value:.{digits}f}"


def print_table(report, repeat, out):
    """A line for each time; out and in are bytes in multiples of the version's."""
    rows = report["rows"]
    wide = max((len(r["name"]) for r in rows), default=3)
    print(f"{report['machine']['tcp']}, {repeat} repetitions; times until a version is active; M/B: the time "
          f"of its bytes on one link, and M these bytes", file=out)
    print(f"{'row':{wide}} {'what':18} {'ms':>7} {'worst':>7} {'M/B':>7} {'corrected':>9} {'out/M':>7} "
          f"{'in/M':>7} {'busy':>5} {'void':>4}", file=out)
    for row in rows:
        figures = {f["name"]: f for f in row["figures"]}
        references = {f["name"]: f for f in row["references"]}
        link, name = references.pop("link")["median"], row["name"]
        for what, series in {**figures, **references}.items():
            if series["unit"] != "ms":
                continue
            is_own = what in figures
            busy = row["busy"][SELF if is_own else what]
            out_bytes = figures["publisher_out"] if is_own else references[f"{what}_out"]
            into = figures.get("worker_in") if is_own else None
            multiple = series["median"] / link
            corrected = multiple + row["hidden"] if what in ("active", "chain") else None
            print(f"{name:{wide}} {what:18} {series['median']:7.0f} {series['worst']:7.0f} {multiple:7.3f} "
                  f"{number(corrected):>9} {out_bytes['median'] / row['data_bytes']:7.3f} "
                  f"{number(into and into['median'] / row['data_bytes']):>7} "
                  f"{100 * statistics.median(busy):4.0f}% {sum(b >= BUSY_LIMIT for b in busy):4}", file=out)
            name = ""
