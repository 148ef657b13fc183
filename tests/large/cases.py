# SPDX-License-Identifier: Apache-2.0
"""The cases of tests/large/run: case_NAME(box, quick).  A limit has a reason beside it; a time is a bound
against hanging and against what grows with the square, wide enough for a machine that others use too."""
import shutil
import subprocess
import time

from box import Failed, Skipped, mb, memory_available

LEASE_S = 4
KEEP = 3        # of the broker, by default


def make_adapter(box, name, *options):
    path = box.work / name
    subprocess.run([str(box.bin / "mkadapter"), *map(str, options), str(path)], check=True,
                   stdout=subprocess.DEVNULL)
    return path


def need(box, what, memory_bytes, disk_bytes):
    if memory_available() < memory_bytes:
        raise Skipped(f"{what} needs {mb(memory_bytes)} of memory, {mb(memory_available())} are free")
    if shutil.disk_usage(box.work).free < disk_bytes:
        raise Skipped(f"{what} needs {mb(disk_bytes)} of disk under {box.work.parent}")


def publish(box, path, adapter, *options):
    answer, took_s = box.timed("publish", path, "--adapter", adapter, *options)
    if not answer.get("ok"):
        raise Failed(f"publish to {adapter}: {answer.get('error')}")
    return answer, took_s


def check_verified(box, ref, count):
    answer, took_s = box.timed("verify", ref, "--deadline", "120s")
    matches = sum(1 for w in answer.get("workers", []) if w["match"])
    box.check(answer["exit"] == 0 and matches == count,
              f"verify {ref}: {matches} of {count} hold the published bytes ({took_s:.1f} s)")


def one_adapter(box, shape, workers, versions):
    """Publishes versions of one shape to workers that export them, and looks at each."""
    for i in range(workers):
        box.start_worker(f"w{i}", "policy", options=("--export", box.work / f"export{i}", "--export-keep",
                                                     "0")).said()
    for number in range(1, versions + 1):
        path = make_adapter(box, f"v{number}", *shape, "--seed", number)
        answer, took_s = publish(box, path, "policy", "--deadline", "300s")
        box.note(f"{answer['tensor_count']} tensors, {mb(answer['data_bytes'])}: pack "
                 f"{answer['timing']['pack_ms']:.0f} ms, durable {answer['timing']['commit_ms']:.0f}, "
                 f"staged {answer['timing']['staged_ms']:.0f}, active on {workers} "
                 f"{answer['timing']['active_ms']:.0f}; the command {took_s * 1e3:.0f}")
        box.check(answer["rollout"]["active_count"] == workers,
                  f"policy@{answer['version']} is active on {answer['rollout']['active_count']} of {workers}")
        switch_ms = answer["timing"]["active_ms"] - answer["timing"]["staged_ms"]
        box.check(switch_ms < 1000, f"the switch took {switch_ms:.0f} ms, whatever the size")
        shutil.rmtree(path) if number < versions else None
    check_verified(box, f"policy@{versions}", workers)
    last = box.work / f"v{versions}"
    for i in range(workers):
        exported = box.work / f"export{i}" / "policy"
        same = all(subprocess.run(["cmp", "-s", str(last / f), str(exported / f)]).returncode == 0
                   for f in ("adapter_config.json", "adapter_model.safetensors"))
        box.check(same, f"what w{i} exported is what was published, byte for byte")
    return answer


def case_tensors(box, quick):
    """90,064 tensors, few bytes, the names of DeepSeek-V3 with a LoRA per expert, to two workers; quick:
    one."""
    workers, versions = (1, 1) if quick else (2, 3)
    need(box, "the case", (2 + 2 * workers) * 400 << 20, 1 << 30)  # a page for each tensor: 369 MB a version
    broker = box.start_broker()
    before = broker.resident()
    answer = one_adapter(box, ("--shape", "deepseek-v3", "--narrow", "64", "--rank", "1"), workers, versions)
    box.check(answer["tensor_count"] == 90064, f"{answer['tensor_count']} tensors")
    grown = broker.resident() - before
    box.check(grown < 4 << 20, f"the broker knows nothing of tensors: {grown >> 10} KiB more")


def broker_moved(broker):
    """Bytes that it read and wrote, sockets and files."""
    fields = dict(line.split(": ") for line in open(f"/proc/{broker.pid}/io").read().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def case_workers(box, quick):
    """200 workers on one box: all become active; some are killed, the broker is killed; quick: 24."""
    count = 24 if quick else 200
    need(box, f"{count} workers", count * 24 << 20, 1 << 30)
    broker = box.start_broker()
    fds_before = broker.descriptors()
    start = time.monotonic()
    workers = [box.start_worker(f"w{i:03}", "policy") for i in range(count)]
    for w in workers:
        w.said(within=180)
    box.note(f"{count} joined in {time.monotonic() - start:.1f} s")
    path = [make_adapter(box, f"v{i}", "--shape", "qwen2.5-0.5b", "--rank", "1", "--seed", i)
            for i in range(6)]
    for i in range(3):
        publish_to_all(box, path[i], count)
    look = broker.resident(), broker.descriptors()
    box.check(look[1] - fds_before <= count + 8,
              f"the broker has {look[1]} descriptors for {count} workers, {fds_before} without")
    box.check(look[0] < (16 << 20) + count * (128 << 10),
              f"the broker has {mb(look[0])} of memory: under 16 MB and 128 KiB a worker")
    victims = workers[::10]
    publisher = box.start("publisher", "heddle", "publish", path[3], "--adapter", "policy", "--broker",
                          box.endpoint, "-o", "json", "--deadline", "120s")
    for v in victims:
        v.kill()
    answer = publisher.said(within=150)
    left = count - len(victims)
    box.check(answer["ok"] and left <= answer["rollout"]["active_count"] <= count,
              f"{len(victims)} killed in a publish: it is active on {answer['rollout']['active_count']}, "
              f"{answer['timing']['active_ms']:.0f} ms")
    workers = [box.start_worker(w.name, "policy") if w in victims else w for w in workers]
    took_s = all_current(box, count)
    box.note(f"{len(victims)} started again, all current after {took_s:.1f} s")
    publish_to_all(box, path[4], count)
    after = broker.resident(), broker.descriptors()
    box.check(after[1] <= look[1], f"the broker has {after[1]} descriptors again")
    box.check(after[0] <= look[0] * 1.1 + (1 << 20),
              f"the broker has {mb(after[0])} of memory, {mb(look[0])} before")
    broker.kill()
    broker = box.start_broker()
    start = time.monotonic()
    box.until(60, "all have joined again", lambda: box.ready_count() == count)
    box.note(f"the broker killed and started: all {count} are back after {time.monotonic() - start:.1f} s")
    publish_to_all(box, path[5], count)
    versions = box.ask("versions", "policy")["versions"]
    box.check([v["version"] for v in versions] == [1, 2, 3, 4, 5, 6], "six versions, each numbered once")
    check_verified(box, "policy", count)


def publish_to_all(box, path, count):
    answer, took_s = publish(box, path, "policy", "--deadline", "120s")
    box.check(answer["rollout"]["active_count"] == count,
              f"policy@{answer['version']} is active on {answer['rollout']['active_count']} of {count}: "
              f"staged {answer['timing']['staged_ms']:.0f} ms, active {answer['timing']['active_ms']:.0f}")


def all_current(box, count):
    start = time.monotonic()
    answer = box.ask("wait", "policy", "--min", count, "--deadline", "120s", within=150)
    box.check(answer["exit"] == 0 and answer["have_count"] == count,
              f"{answer.get('have_count')} of {count} serve the latest")
    return time.monotonic() - start


def case_adapters(box, quick):
    """1,000 adapters, 250 to each of four workers; the broker is killed; quick: 100."""
    count, per_worker = (100, 25) if quick else (1000, 250)
    need(box, "the case", 2 << 30, 1 << 30)
    broker = box.start_broker()
    names = [f"policy-{i:04}" for i in range(count)]
    start = time.monotonic()
    workers = [box.start_worker(f"w{i}", *names[i * per_worker:(i + 1) * per_worker]) for i in range(4)]
    for w in workers:
        w.said(within=60)
    box.note(f"4 workers with {per_worker} adapters each joined in {time.monotonic() - start:.1f} s")
    publisher = box.start_publisher("publisher", "--adapters", count, "--count", 3)
    done = publisher.said(within=900)
    box.check(done["created"] == 3 * count,
              f"{done['created']} versions of {count} adapters in {done['seconds']:.1f} s; active "
              f"{done['active_ms']:.1f} ms, at worst {done['active_worst_ms']:.0f}")
    check_adapters(box, count)
    cost = broker.resident()
    box.check(cost < (16 << 20) + count * (16 << 10),
              f"the broker has {mb(cost)} of memory, {broker.descriptors()} descriptors")
    for w in workers:
        box.note(f"{w.name} has {mb(w.resident())} of its own memory, {w.descriptors()} descriptors")
    box.check(all(w.descriptors() < per_worker * 8 + 64 for w in workers),
              "a worker has fewer than 8 descriptors an adapter")
    broker.kill()
    start = time.monotonic()
    broker = box.start_broker()
    box.note(f"the broker killed, and ready again in {time.monotonic() - start:.2f} s")
    box.until(60, "all have joined again", lambda: box.ready_count() == 4)
    box.note(f"all are back after {time.monotonic() - start:.1f} s")
    box.until(30, "what is active is known again",
              lambda: all(a["current_count"] == 1 for a in box.ask("adapters")["adapters"]))
    check_adapters(box, count)
    publisher.end()
    again = box.start_publisher("again", "--adapters", 10, "--count", 1).said()
    box.check(again["version"] == 4, "versions go on above those of before")
    many = box.start_worker("many", *[f"x{i}" for i in range(257)])
    status, said = many.popen.wait(30), many.err.read_text().strip().splitlines()
    box.check(status == 2 and "1 to 256" in said[0],
              f"a worker with 257 adapters is refused with {status}: {said[0]}")
    del box.processes["many"]


def check_adapters(box, count):
    answer, took_s = box.timed("adapters")
    active = sum(1 for a in answer["adapters"] if a["active"] and a["active"]["version"] == 3
                 and a["current_count"] == 1)
    box.check(active == count and took_s < 5,
              f"heddle adapters: {active} of {count} active and current ({took_s * 1e3:.0f} ms)")
    status, took_s = box.timed("status")
    box.check(status["count"]["adapters"] == count and took_s < 5,
              f"heddle status: {status['count']['adapters']} adapters ({took_s * 1e3:.0f} ms)")


def case_versions(box, quick):
    """10,000 versions of one adapter: broker, workers, publisher and registry keep their size; quick:
    2,400."""
    # more than the 1,024 ended versions that are remembered
    count, first = (2400, 1200) if quick else (10000, 2000)
    broker = box.start_broker()
    w = [box.start_worker(f"w{i}", "policy") for i in range(2)]
    for each in w:
        each.said()
    publisher = box.start_publisher("publisher", "--count", count, "--every", first)
    members, looks = {"broker": broker, "w0": w[0], "w1": w[1], "publisher": publisher}, []
    for turn in range(count // first):
        said = publisher.said(turn + 1, within=600)
        most = max(p.regions() for p in members.values())
        # what is kept, what is active, what is written, and one more (trainer_client/publications.h)
        box.check(most <= KEEP + 3, f"{most} regions of a process, at most {KEEP + 3}")
        looks.append({n: (p.resident(), p.descriptors_beside_regions()) for n, p in members.items()}
                     | {"registry": box.ask("status")["broker"]["registry_bytes"]})
        box.note(f"{said['count']}: commit {said['commit_ms']:.1f} ms, active {said['active_ms']:.1f}, at "
                 f"worst {said['active_worst_ms']:.0f}; broker {looks[-1]['broker'][0] >> 10} KiB, "
                 f"registry {looks[-1]['registry'] >> 10} KiB")
        publisher.go_on()
    box.check(said["version"] == count and said["created"] == count,
              f"version {said['version']} after {said['seconds']:.0f} s")
    for name in members:
        (was, was_fds), (now, fds) = looks[0][name], looks[-1][name]
        box.check(now <= was * 1.05 + (512 << 10),
                  f"{name}: {now >> 10} KiB after {count}, {was >> 10} after {first}: within 5 % and 512 KiB")
        box.check(fds <= was_fds, f"{name}: {fds} descriptors beside regions, {was_fds} before")
    box.check(looks[-1]["registry"] <= looks[0]["registry"] * 1.1,
              f"registry: {looks[-1]['registry'] >> 10} KiB, {looks[0]['registry'] >> 10} before: "
              f"within 10 %")
    rows, took_s = box.timed("versions", "policy")
    numbers = [v["version"] for v in rows["versions"]]
    box.check(numbers == list(range(count - len(numbers) + 1, count + 1)) and 1000 <= len(numbers) <= 1100,
              f"heddle versions: the last {len(numbers)}, in order ({took_s * 1e3:.0f} ms)")
    gone = box.ask("versions", "policy@1")
    box.check(gone["exit"] == 3, f"policy@1 is forgotten: exit {gone['exit']}")
    broker.kill()
    start = box.given_s()
    broker = box.start_broker()
    took_s = box.given_s() - start
    again = box.ask("versions", "policy")["versions"]
    box.check([(v["version"], v["digest"]) for v in again] == [(v["version"], v["digest"])
                                                               for v in rows["versions"]] and took_s < 5,
              f"the broker killed, ready in {took_s * 1e3:.0f} ms with the same versions")
    publisher.end()


def case_pace(box, quick):
    """A version every 10 ms for a minute, to two adapters, one worker slow; others published beside them;
    quick: 8 s."""
    seconds = 8 if quick else 60
    broker = box.start_broker()
    adapters = ("strict", "ready", "calm")
    fast = [box.start_worker(f"w{i}", *adapters) for i in range(3)]
    slow = box.start_worker("slow", *adapters, options=("--own-memory", "--max-rate", "20M"))
    for w in (*fast, slow):
        w.said()
    shape = ("--tensors", 16, "--tensor-bytes", 1 << 16)  # 1 MB: 50 ms to the slow worker
    every_10_ms = ("--interval", 10, "--count", seconds * 100, *shape)
    strict = box.start_publisher("strict", "--adapter", "strict", *every_10_ms)
    ready = box.start_publisher("ready", "--adapter", "ready", "--as-ready", *every_10_ms)
    calm = box.start_publisher("calm", "--adapter", "calm", "--interval", 250, "--count", seconds * 4)
    ends = {p.name: p.said(within=4 * seconds + 60) for p in (strict, ready, calm)}
    box.note(f"the broker took {broker.cpu_s():.1f} s of CPU")
    for name, end in ends.items():
        box.check(end["refused"] == 0 and end["created"] == end["count"] and end["seconds"] < 2 * seconds,
                  f"{name}: {end['created']} published in {end['seconds']:.1f} s, none refused; commit "
                  f"{end['commit_ms']:.1f} ms, at worst {end['commit_worst_ms']:.0f}")
        wait = box.ask("wait", f"{name}@{end['version']}", "--exact", "--min", 4, "--deadline", "30s")
        box.check(wait["exit"] == 0 and wait["have_count"] == 4,
                  f"{name}@{end['version']}, the last one, is active on {wait.get('have_count')} of 4")
        rows = {v["version"]: v for v in box.ask("versions", f"{name}")["versions"]}
        last = rows[end["version"]]
        box.check(last["digest"] == end["digest"] and last["state"] == "active",
                  f"{name}: the last one's bytes")
        for w in (*fast, slow):
            judge_pace(box, w, name, end)
    for p in (strict, ready, calm):
        p.end()


def judge_pace(box, worker, adapter, end):
    """From the worker's own history: numbers only rise, and nothing stands still for long."""
    active = [e for e in worker.lines() if e.get("type") == "activate.done" and e["adapter"] == adapter]
    numbers = [e["version"] for e in active]
    at = [parse_ms(e["at"]) for e in active]
    gap = max((b - a for a, b in zip(at, at[1:])), default=0)
    starved = end["seconds"] * 1e3 / 4
    box.check(len(numbers) > 1 and numbers == sorted(set(numbers)) and gap < min(starved, 3000),
              f"{adapter} on {worker.name}: {len(numbers)} versions, rising, at most {gap:.0f} ms between "
              f"two")


def parse_ms(text):
    clock, fraction = text.rstrip("Z").split(".")
    return time.mktime(time.strptime(clock, "%Y-%m-%dT%H:%M:%S")) * 1e3 + int(fraction[:3])


def case_bytes(box, quick):
    """2 GB in 90,064 tensors, to two workers that export it; quick: 100 MB."""
    shape = ("--shape", "qwen3-30b-a3b", "--rank", "1") if quick else ("--shape", "deepseek-v3", "--rank",
                                                                       "3")
    need(box, "the case", 1 << 30 if quick else 15 << 30, 2 << 30 if quick else 14 << 30)
    broker = box.start_broker()
    read_before = broker_moved(broker)
    answer = one_adapter(box, shape, 2, 1 if quick else 2)
    box.check(answer["data_bytes"] > (100e6 if quick else 2e9), f"{mb(answer['data_bytes'])}")
    moved = broker_moved(broker) - read_before
    box.check(moved < 8 << 20, f"the broker read and wrote {moved >> 10} KiB")
