# SPDX-License-Identifier: Apache-2.0
"""See tests/python/host.  This process trains.  Receivers are processes of this file, or Ray's actors."""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata

import heddle
import numpy
from own_broker import broker_of_its_own

COUNT = 448
ROWS, COLUMNS = 22, 2048                # float32: 180 kB an array, 81 MB in all
ADAPTER = "host"
NAMES = [f"base_model.model.layers.{i // 14}.m{i // 2 % 7}.lora_{'AB'[i % 2]}.weight" for i in range(COUNT)]


def use(arrays, n):
    """Reads the last element of each array.  -> when that was done"""
    seen = [a[-1, -1] for a in arrays.values()]
    at = time.monotonic()
    assert len(seen) == COUNT and all(value == n for value in seen), (n, seen[:3])
    return at


def empty_arrays():
    """Arrays whose memory is there: the kernel gives pages at the first write."""
    arrays = {name: numpy.empty((ROWS, COLUMNS), "float32") for name in NAMES}
    for a in arrays.values():
        a.fill(0)
    return arrays


# -- ways, each with its trainer and its receiver --------------------------------------------------------

class Heddle:
    def __init__(self, work):
        self.publisher = heddle.Publisher(adapter=ADAPTER, if_unchanged="publish")

    def send(self, arrays, n):
        self.publisher.publish_tensors(arrays, {"peft_type": "LORA", "r": 16}, step=n)

    def close(self):
        self.publisher.close()


class HeddleReceiver:
    def __init__(self, name, work):
        self.worker = heddle.Worker(adapters=[ADAPTER], apply="auto", name=name)
        self.updates = self.worker.updates()

    def receive(self, n):
        next(u for u in self.updates if u.phase == "active" and u.step == n)
        with self.worker.acquire(ADAPTER) as a:
            return use(a.numpy(), n)


class Safetensors:
    def __init__(self, work):
        self.work, self.last = work, None

    def send(self, arrays, n):
        from safetensors.numpy import save_file
        save_file(arrays, f"{self.work}/{n}.part")
        os.rename(f"{self.work}/{n}.part", f"{self.work}/{n}.safetensors")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.work}/{self.last}.safetensors")
        self.last = n

    def close(self):
        pass


class SafetensorsReceiver:
    def __init__(self, name, work):
        self.work, self.arrays = work, empty_arrays()

    def receive(self, n):
        from safetensors import safe_open
        path = pathlib.Path(self.work, f"{n}.safetensors")
        while not path.exists():
            time.sleep(0.0002)
        with safe_open(path, "numpy") as f:
            for name, array in self.arrays.items():
                numpy.copyto(array, f.get_tensor(name))
        return use(self.arrays, n)


def nixl_agent(name):
    from nixl import _api
    return _api.nixl_agent(name, _api.nixl_agent_config(backends=["UCX"]))


def places_of(arrays):
    return [(a.ctypes.data, a.nbytes, 0) for a in arrays.values()]


class Nixl:
    """The arrays are registered once.  A file with a version's number says that it may be read."""
    def __init__(self, work):
        self.work, self.agent, self.arrays = work, nixl_agent("trainer"), empty_arrays()
        self.agent.register_memory([(*place, "") for place in places_of(self.arrays)], "DRAM")
        what = {"agent": self.agent.get_agent_metadata().hex(), "places": places_of(self.arrays)}
        pathlib.Path(work, "nixl.json.part").write_text(json.dumps(what))
        os.rename(f"{work}/nixl.json.part", f"{work}/nixl.json")

    def send(self, arrays, n):
        # A trainer's next step writes its arrays while receivers read, so a version has a copy of its own.
        for name, array in arrays.items():
            numpy.copyto(self.arrays[name], array)
        pathlib.Path(self.work, f"nixl-{n}").touch()

    def close(self):
        pass


class NixlReceiver:
    def __init__(self, name, work):
        self.work, self.agent, self.arrays = work, nixl_agent(name), empty_arrays()
        self.agent.register_memory([(*place, "") for place in places_of(self.arrays)], "DRAM")
        self.handle = None

    def receive(self, n):
        if self.handle is None:
            there = json.loads(pathlib.Path(self.work, "nixl.json").read_text())
            self.agent.add_remote_agent(bytes.fromhex(there["agent"]))
            here = self.agent.get_xfer_descs(places_of(self.arrays), "DRAM")
            remote = self.agent.get_xfer_descs([tuple(p) for p in there["places"]], "DRAM")
            self.handle = self.agent.initialize_xfer("READ", here, remote, "trainer", b"")
        marker = pathlib.Path(self.work, f"nixl-{n}")
        while not marker.exists():
            time.sleep(0.0002)
        state = self.agent.transfer(self.handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handle)
        assert state == "DONE", state
        return use(self.arrays, n)


WAYS = {"heddle": (Heddle, HeddleReceiver), "nixl": (Nixl, NixlReceiver),
        "safetensors": (Safetensors, SafetensorsReceiver)}


def be_receiver(way, name, work):
    receiver = WAYS[way][1](name, work)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(receiver.receive(int(line))), flush=True)


class Processes:
    """The receivers of a way that are processes of this file."""
    def __init__(self, way, count, work):
        self.sender = WAYS[way][0](work)
        self.peers = [subprocess.Popen([sys.executable, __file__, "--receive", way, f"{way}-{i}", work],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                      for i in range(count)]
        for peer in self.peers:
            if "ready\n" not in iter(peer.stdout.readline, ""):
                self.close()
                raise RuntimeError(f"a receiver of {way} did not start; its error is above")

    def round(self, arrays, n):
        for peer in self.peers:
            peer.stdin.write(f"{n}\n")
            peer.stdin.flush()
        time.sleep(0.05)                                    # they wait for it
        start = time.monotonic()
        self.sender.send(arrays, n)
        return max(json.loads(peer.stdout.readline()) for peer in self.peers) - start

    def close(self):
        for peer in self.peers:
            peer.stdin.close()
        for peer in self.peers:
            try:
                peer.wait(30)
            except subprocess.TimeoutExpired:
                peer.kill()
                peer.wait()
        self.sender.close()


class Ray:
    def __init__(self, count):
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
        self.ray = ray
        ray.init(num_cpus=count, object_store_memory=2 << 30, include_dashboard=False, log_to_driver=False,
                 logging_level="error", configure_logging=False)
        try:
            self.actors = [ray.remote(num_cpus=1)(RayReceiver).remote() for _ in range(count)]
            ray.get([a.receive.remote(None, 0) for a in self.actors])
        except Exception:
            ray.shutdown()
            raise

    def round(self, arrays, n):
        start = time.monotonic()
        version = self.ray.put(arrays)
        return max(self.ray.get([a.receive.remote(version, n) for a in self.actors])) - start

    def close(self):
        self.ray.shutdown()


class RayReceiver:
    def receive(self, arrays, n):
        return use(arrays, n) if arrays else 0


# -- the comparison --------------------------------------------------------------------------------------

# Nixl's agents poll in a thread of their own while they are idle, which would take the cores from the others.
TURNS = (("heddle", "ray", "safetensors"), ("nixl",))


def open_ways(names, count, work):
    """-> the ways of this turn that run here, and why the others do not."""
    ways, skipped = {}, {}
    for name in names:
        try:
            ways[name] = Ray(count) if name == "ray" else Processes(name, count, work)
        except Exception as e:
            if name == "heddle":
                raise
            skipped[name] = f"{type(e).__name__}: {e}".splitlines()[0][:200]
    return ways, skipped


def copy_time(arrays, target):
    start = time.monotonic()
    for name, array in arrays.items():
        numpy.copyto(target[name], array)
    return time.monotonic() - start


def take_turn(ways, rounds):
    """-> for each way and each round that counts: ms until usable, and multiples of that round's memcpy"""
    arrays, target, n = empty_arrays(), empty_arrays(), 0
    times = {way: [] for way in ("memcpy", *ways)}
    for round_number in range(rounds + 3):                  # the first ones make memory and connections
        order = list(ways)
        shift = round_number % len(order)
        took = {}
        for way in ["memcpy", *order[shift:], *order[:shift]]:
            n += 1
            for a in arrays.values():
                a.fill(n)                                   # a step of the trainer writes every tensor
            took[way] = copy_time(arrays, target) if way == "memcpy" else ways[way].round(arrays, n)
        if round_number >= 3:
            for way, t in took.items():
                times[way].append((t * 1e3, t / took["memcpy"]))
    return times


def measure(count, rounds, work):
    figures, skipped = {}, {}
    for names in TURNS:
        ways, why_not = open_ways(names, count, work)
        skipped |= why_not
        try:
            times = take_turn(ways, rounds) if ways else {}
        finally:
            for way in ways.values():
                way.close()
        for way, samples in times.items():
            ms, of_memcpy = zip(*samples, strict=True)
            figures.setdefault(way, {"median_ms": statistics.median(ms), "worst_ms": max(ms),
                                     "of_memcpy": statistics.median(of_memcpy), "samples_ms": ms})
    return {"receivers": count, "ways": figures, "skipped": skipped}


def version_of(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main():
    parser = argparse.ArgumentParser(prog="tests/python/host")
    parser.add_argument("--rounds", type=int, default=21, help="rounds that count; default 21")
    parser.add_argument("--receivers", default="1,4,16", help="how many receivers; default 1,4,16")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--receive", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.receive:
        be_receiver(*args.receive)
        return
    rows = []
    for count in map(int, args.receivers.split(",")):
        work = tempfile.mkdtemp(dir="/dev/shm", prefix="heddle-host.")
        try:
            with broker_of_its_own(work):
                rows.append(measure(count, args.rounds, work))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        if args.output == "table":
            show(rows[-1], len(rows) == 1, args.rounds)
    if args.output == "json":
        packages = {p: version_of(p) for p in ("heddle-sync", "ray", "nixl", "safetensors", "numpy")}
        print(json.dumps({"bytes": COUNT * ROWS * COLUMNS * 4, "arrays": COUNT, "rounds": args.rounds,
                          "packages": packages, "load": os.getloadavg()[0], "rows": rows}))


def show(row, is_first, rounds):
    if is_first:
        print(f"{COUNT} numpy arrays, {COUNT * ROWS * COLUMNS * 4 / 1e6:.0f} MB, until usable everywhere; "
              f"medians of {rounds}\n{'receivers':>9}  {'way':12} {'ms':>8} {'worst':>8} {'x memcpy':>9}")
    for way, f in row["ways"].items():
        print(f"{row['receivers']:9}  {way:12} {f['median_ms']:8.1f} {f['worst_ms']:8.1f} "
              f"{f['of_memcpy']:9.2f}", flush=True)
    for way, why in row["skipped"].items():
        print(f"{row['receivers']:9}  {way:12} skipped: {why}", flush=True)


if __name__ == "__main__":
    main()
