#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the hand-made part of tests/fuzz/corpus: from tests/golden, tests/fixtures and what is written here.
Files of the same name are replaced; inputs that a fuzzer found (regression-*, found-*) are left alone."""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"


def seed(target, name, data):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def pack(value):
    """msgpack, as much of it as the seeds need."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return (bytes([value]) if 0 <= value < 128 else b"\xcf" + struct.pack(">Q", value) if value >= 0
                else b"\xd3" + struct.pack(">q", value))
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value.encode())]) + value.encode()
    if isinstance(value, bytes):
        return b"\xc5" + struct.pack(">H", len(value)) + value
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    return b"\xde" + struct.pack(">H", len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())


BITS = {"F32": (17, 32), "BF16": (14, 16), "F16": (13, 16), "I64": (20, 64), "U8": (4, 8), "BOOL": (0, 8),
        "F4": (1, 4)}


def manifest(tensors, config=b"{}", metadata=b"", features=()):
    """tensors: name -> (dtype, dims).  The digests of chunks are zeros: decoding does not look at them."""
    names = ends = dtypes = ndims = dims = offsets = sizes = b""
    at = total = 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda t: t[0].encode()):
        number, bits = BITS[dtype]
        size = bits
        for extent in shape:
            size *= extent
        size //= 8
        names += name.encode()
        ends += struct.pack("<I", len(names))
        dtypes += bytes([number])
        ndims += bytes([len(shape)])
        dims += b"".join(struct.pack("<Q", extent) for extent in shape)
        offsets += struct.pack("<Q", at)
        sizes += struct.pack("<Q", size)
        at += (size + 4095) // 4096 * 4096
        total += size
    return pack({"v": 1, "kind": "lora", "features": list(features), "chunk_bytes": 65536,
                 "payload_bytes": at,
                 "data_bytes": total,
                 "count": len(tensors), "config": config, "metadata": metadata, "names": names,
                 "name_ends": ends, "dtypes": dtypes,
                 "ndims": ndims, "dims": dims, "offsets": offsets, "sizes": sizes,
                 "chunks": bytes(16 * ((at + 65535) // 65536))})


def messages():
    for line in (ROOT / "tests/golden/messages.txt").read_text().splitlines():
        name, text = line.split()
        seed("message", name.lower(), bytes.fromhex(text))
    for number in range(28):
        seed("message_fields", f"type-{number:02}",
             bytes([number]) + bytes((i * 37 + number) % 251 for i in range(160)))


def reports():
    for name, value in {"status": {"schema": "heddle/1", "kind": "status", "ok": True,
                                   "broker": {"pid": 7, "uptime_ms": 1.5}},
                        "list": {"versions": [{"version": 1, "reason": None, "features": ["dora"]},
                                              {"version": 2, "step": -1}]},
                        "empty": "", "empty-key": {"": None}, "nested": [[[[[[[[1]]]]]]]]}.items():
        seed("report", name, pack(value))


def adapters():
    two = {"a.lora_A": ("F32", [4, 8]), "a.lora_B": ("BF16", [8, 4])}
    seed("manifest", "two", manifest(two, metadata=b'{"format":"pt"}', features=["dora", "rslora"]))
    seed("manifest", "shapes",
         manifest({"s": ("F32", []), "z": ("I64", [0, 3]), "h": ("F4", [2, 3]),
                   "\u00e9\"\\\n": ("U8", [1] * 16)}))
    seed("manifest", "extent-beside-zero", manifest({"z": ("U8", [0, (1 << 64) - 3])}))
    seed("manifest", "metadata-name", manifest({"__metadata__": ("U8", [4])}))
    for directory in sorted((ROOT / "tests/fixtures").iterdir()):
        if not directory.is_dir():
            continue
        file = (directory / "adapter_model.safetensors").read_bytes()
        length = struct.unpack("<Q", file[:8])[0]
        header, config = file[8:8 + length], (directory / "adapter_config.json").read_bytes()
        seed("safetensors", directory.name, struct.pack("<Q", len(file) - 8 - length) + header)
        seed("peft_config", directory.name, b"\x04" + json.dumps(json.loads(config)).encode())
        table = {k: (v["dtype"], v["shape"]) for k, v in json.loads(header).items() if k != "__metadata__"}
        seed("manifest", directory.name,
             manifest(dict(list(table.items())[:6]), config=b'{"peft_type":"LORA"}',
                      metadata=b'{"format":"pt"}'))
    small = {"__metadata__": {"format": "pt"},
             "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
             "e": {"dtype": "U8", "shape": [0], "data_offsets": [24, 24]},
             "\u00e9\n": {"dtype": "F4", "shape": [2], "data_offsets": [24, 25]}}
    seed("safetensors", "small", struct.pack("<Q", 25) + json.dumps(small).encode() + b"  ")
    everything = {"peft_type": "LORA", "r": 8, "lora_alpha": 1.5, "target_modules": ["q"],
                  "rank_pattern": {"q": 4}, "alpha_pattern": {},
                  "bias": "all", "lora_bias": True, "use_dora": True, "use_rslora": True,
                  "modules_to_save": ["h"],
                  "target_parameters": ["p"], "init_lora_weights": "pissa_niter_16",
                  "alora_invocation_tokens": [1],
                  "layer_replication": [[0, 1]], "use_qalora": True, "use_bdlora": {"nblocks": 2},
                  "base_model_name_or_path": "base \u00e9"}
    seed("peft_config", "everything", b"\x04" + json.dumps(everything).encode())
    seed("peft_config", "null",
         b"\x02" + json.dumps({"peft_type": "LORA", "target_modules": None, "rank_pattern": None}).encode())


def frames():
    def frame(kind, count, body):
        return struct.pack("<BBHIQ", kind, 1, count, 0, 77) + body
    seed("frame", "hi", frame(1, 48, struct.pack("<QQ", 5, 9) + bytes(range(48))))
    seed("frame", "ask", frame(2, 2, bytes(range(16)) + struct.pack("<QQI", 1, 0, 65536)
                               + struct.pack("<QQI", 2, 65536, 4096)))
    seed("frame", "ask-16",
         frame(2, 16, bytes(16) + b"".join(struct.pack("<QQI", i, i << 16, 65536) for i in range(16))))
    seed("frame", "unask", frame(3, 3, struct.pack("<QQQ", 1, 2, 3)))
    seed("frame", "data", frame(4, 0, struct.pack("<QQI", 1, 0, 65536)))
    seed("frame", "beat", frame(5, 0, b""))
    seed("frame", "refused", frame(6, 3, b"".join(struct.pack("<QI", i, i) for i in (1, 2, 3))))
    seed("frame", "bye", frame(7, 0, b""))


def strangers():
    def greeting(mechanism, major=3):
        said = b"\xff" + bytes(8) + b"\x7f" + bytes([major, 1]) + mechanism.ljust(20, b"\0") + bytes(32)
        return b"\x00" + b"".join(bytes([len(part) - 1]) + part for part in
                                  (said[:10], said[10:11], said[11:40], said[40:]))
    for mechanism in (b"NULL", b"CURVE", b"x" * 20):
        seed("strangers", f"greeting-{mechanism.decode().lower()[:5]}", greeting(mechanism))
    seed("strangers", "greeting-old", greeting(b"NULL", major=1))
    seed("strangers", "greeting-other", b"\x00\x1fHTTP/1.1 400 Bad Request\r\n")
    seed("strangers", "address-old", b"\x01UCX\0" + struct.pack("<HHQ", 1, 2, 3) + b"an address")
    seed("strangers", "address-short", b"\x01UCX\0")
    def offer(family, address=b"an address"):
        return bytes([family]) + struct.pack("<H", len(address)) + bytes(range(16)) + address
    both = b"\x02\x02" + offer(4) + offer(6, b"another one")
    seed("strangers", "address", b"\x02\x01" + offer(4))
    seed("strangers", "address-both", both)
    seed("strangers", "address-tail", both + b"x")
    seed("strangers", "address-cut", both[:-3])
    seed("strangers", "address-empty", b"\x02\x01" + offer(6, b""))
    seed("strangers", "address-family", b"\x02\x01" + offer(5))
    seed("strangers", "address-none", b"\x02")


def rows():
    def both(name, data):
        seed("registry_rows", name, data)
        seed("registry_start", name, data)
    kinds = range(8)   # epoch adapter version decision state writer floor key
    both("plain", b"\x01" + b"".join(bytes([kind, 0]) for kind in kinds))
    both("twice", b"\x00" + b"".join(bytes([kind, 0]) for kind in kinds) * 3)
    both("versions", bytes([3, 1, 0]) + b"".join(bytes([2, 1, 1, 0, v]) for v in range(1, 8))
         + bytes([3, 1, 2, 0, 3]))
    both("other-types", b"\x02" + b"".join(bytes([kind, 1, column, kind_of, 4]) + b"text" for kind in kinds
                                                  for column in range(2) for kind_of in (2, 6))[:500])
    nameless = bytes([1, 0, 6, 3]) + b"a b"
    both("name-that-is-none", b"\x01" + bytes([1]) + nameless + bytes([2]) + nameless)


def command_lines():
    lines = {"publish": "publish DIR --adapter policy --step 3 --activation as-ready --deadline 30s --wait "
                        "50% --meta a=b --meta c=d",
             "wait": "wait policy@3 --phase staged --quorum 2 --min 1 --worker w1 --worker=w2 --exact "
                     "--deadline 500ms",
             "status": "-o json status --timeout 5", "events": "events -f --since 7 --limit 10 --adapter a",
             "verify": "verify policy --dir x",
             "activate": "activate policy@2 --dry-run --wait none",
             "rollback": "rollback policy --to 3 --deadline 5s", "resume": "resume policy -ojson",
             "pull": "pull policy@3 DIR --max-rate 20M --data-device eth1",
             "versions": "versions policy -ojson",
             "workers": "workers w1 -q",
             "adapters": "adapters --broker tcp://127.0.0.1:1,ipc:///x", "help": "help publish", "none": "",
             "two-dashes": "wait -- -x",
             "broker": "broker --help", "worker": "worker", "wrong": "publish --no-such",
             "short": "status -oq -x"}
    for name, line in lines.items():
        seed("command_line", name, b"\x00" + b"".join(word.encode() + b"\x00" for word in line.split()))
    seed("command_line", "heddle-broker", b"\x01"
         + b"\x00".join(b"--listen tcp://127.0.0.1:* --data /d --lease 4s --keep 2 --insecure".split()))
    seed("command_line", "heddle-worker",
         b"\x02"
         + b"\x00".join(b"--adapter a --adapter b --label x=y --slots 3 --export e --max-rate 20M "
                        b"--hook-timeout 1m --name n".split()))


def texts():
    for number, words in enumerate((["policy", "policy@3", "a@18446744073709551615", "a@0", "x" * 129],
                                    ["tenant-42", "zone=a", "..", "a=b=c"], ["h1:" + "0123456789abcdef" * 4],
                                    ["500ms", "1.5h", "20M", "64Ki", "all", "none", "50%", "3"],
                                    ["tcp://127.0.0.1:7700", "tcp://[::1]:1", "tcp://*:*", "ipc:///tmp/x",
                                     "tcp://a:1,tcp://localhost:2"],
                                    ["plain", "caf\u00e9 \U0001f600", "no_slot", "BF16", "x" * 250])):
        for i, word in enumerate(words):
            seed("texts", f"{number}-{i}", bytes([number]) + word.encode())
    seed("texts", "5-cut", b"\x05\xc3\xa9\xe2\x82\xf0\x9f\x01\x7f")


def keys():
    # of RFC 26
    pair = ("public rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n",
            "secret JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n")
    for name, text in {"pair": "# a key\n" + pair[0] + pair[1], "public": pair[0],
                       "endpoint": pair[0] + "endpoint tcp://127.0.0.1:7700\n",
                       "other-secret": pair[0] + pair[1].replace("JT", "JU"), "short": "public abc\n",
                       "empty": ""}.items():
        seed("keys", name, b"\x00" + text.encode())
    for name, text in {"admin": "admin", "worker": "worker:policy", "any": "publisher:*", "none": "",
                       "colon": "admin:", "bad": "worker:a b"}.items():
        seed("keys", "role-" + name, b"\x01" + text.encode())


def join_string():
    import base64
    import hashlib
    raw = bytes(range(32)) + bytes(range(32, 64)) + b"tcp://10.0.0.5:7700,tcp://[fd00::5]:7700"
    whole = raw + hashlib.blake2b(raw, digest_size=32).digest()[:4]
    text = b"heddle-join-1:" + base64.urlsafe_b64encode(whole).rstrip(b"=")
    for name, said in {"whole": text, "cut": text[:-9], "other": text.replace(b"-1:", b"-2:"), "empty": b"",
                       "prefix": b"heddle-join-1:", "no-letter": text[:40] + b"%" + text[41:]}.items():
        seed("join_string", name, b"\x00" + said)
    for name, said in {"raw": raw, "raw-short": raw[:64], "raw-nowhere": raw[:64] + b"10.0.0.5",
                       "raw-nul": raw + b"\x00x", "raw-long": raw + b",tcp://10.0.0.5:7700" * 30}.items():
        seed("join_string", name, b"\x01" + said)


def etcd_answers():
    import base64

    def b64(text):
        return base64.b64encode(text).decode()
    meta = b"heddle registry 8 0123456789abcdef 4"
    floor = struct.pack("<I", 1) + b"a\0" + struct.pack("<QQ", 7, 3)
    revoked = struct.pack("<I", 2) + b"k1\0" + struct.pack("<Q", 9)
    for name, key, value in (("meta", b"meta", meta), ("newer", b"meta", meta.replace(b" 8 ", b" 99 ")),
                             ("floor", b"f/a", floor), ("other-name", b"f/b", floor),
                             ("cut", b"f/a", floor[:-3]), ("version", b"v/a/%016x/v" % 1, floor),
                             ("no-number", b"v/a/000000000000000g/s", floor), ("foreign", b"pods/x", b"y"),
                             ("revoked", b"r/k1", revoked), ("other-key", b"r/k2", revoked)):
        seed("etcd_answers", "row-" + name, b"\0" + bytes([len(key)]) + key + value)

    def kv(key, value, more=""):
        return ('{"key":"%s","value":"%s","create_revision":"5","mod_revision":"5"%s}' %
                (b64(key), b64(value), more))
    looked = ('{"header":{"revision":"4"},"succeeded":true,"responses":[{"response_range":{"kvs":[%s]}}]}' %
              kv(b"p/meta", meta))
    header = '{"header":{"revision":"5"},'
    granted, taken = header + '"ID":"9","TTL":"5"}', header + '"succeeded":true}'
    rows = header + '"kvs":[%s,%s,%s,%s]}' % (
        kv(b"p/f/a", floor), kv(b"p/last", b"r.0"), kv(b"p/leader", b"r h", ',"lease":"9"'),
        kv(b"p/meta", meta))
    failed = header + '"responses":[{"response_range":{}},{"response_range":{"kvs":[%s]}}]}'
    lost, happened = failed % kv(b"p/last", b"other.1"), failed % kv(b"p/last", b"r.1")
    leading = [(0, looked), (1, granted), (0, taken), (0, rows)]
    for name, answers in {
            "leads": leading + [(0, taken), (1, '{"result":%s"TTL":"5"}}' % header), (0, taken)],
            "lost": leading + [(0, lost)], "happened": leading + [(56, ""), (0, happened)],
            "lease-ended": leading + [(1, '{"result":%s"ID":"9"}}' % header)],
            "standby": [(0, looked.replace("]}}]", "," + kv(b"p/leader", b"x y") + "]}}]"))],
            "denied": [(0, '{"error":"etcdserver: permission denied","code":7}')],
            "full": leading + [(0, '{"error":"etcdserver: mvcc: database space exceeded","code":8}')],
            "stream": leading + [(1, '{"error":{"grpc_code":5,"message":"lease not found"}}')],
            "page": [(0, looked), (1, granted), (0, taken), (0, rows[:-1] + ',"more":true}')]}.items():
        seed("etcd_answers", name, b"\1" + b"\n".join(bytes([how]) + text.encode() for how, text in answers))


def broker_walk(*steps):
    """Steps of tests/unit/broker_walk.h as the numbers that it draws."""
    number = {"join": 0, "leave": 2, "publish": 4, "stage": 6, "activate": 10, "reject": 13, "operate": 14,
              "time": 15, "crash": 16, "zombie": 17, "disk": 18, "key": 20}
    data = b"\x01" + b"".join(struct.pack(">I", life) for life in range(1, 6))
    for name, worker, *draws in steps:
        data += bytes([15, worker, number[name]]) + bytes(draws)
    return data


def worker_walk(app, *events):
    """Events of tests/unit/worker_walk.h: kind, version; commits with a new decision, or with the one
    given."""
    number = {"announce": 0, "commit": 3, "up": 7, "slot": 8, "fetched": 10, "staged": 14, "drained": 15}
    data, up, decisions = bytes([app]), False, 0
    for name, version, *decision in events:
        data += (b"\x01" + struct.pack(">I", 1000) + (b"" if up else b"\x01")
                 + bytes([version - 1, version % 3, 0, number[name]]))
        if name == "commit":
            data += bytes([0, decision[0] - 1]) if decision else b"\x01"
            decisions += not decision
        if name in ("slot", "fetched"):
            data += b"\x01"
        if name == "up":
            data += bytes([decisions])
            up = not up
        data += b"\x00\x01"
    return data


def stories():
    def everybody(step, *draws):
        return [(step, worker, *draws) for worker in range(3)]

    def stage(worker, digest=1):   # the newest version; 0: other bytes under its name
        return ("stage", worker, 0, digest)

    def join(worker):   # of the same life; nothing is damaged
        return ("join", worker, 1, 1)

    opened = [join(worker) for worker in range(3)] + [("publish", 0)]
    new = ("publish", 0, 1, 1, 10, 0)
    again, other_bytes = ("publish", 0, 0, 0, 1, 1, 10, 0), ("publish", 0, 0, 0, 0, 1, 10, 0)
    after_refusal = ("publish", 0, 0, 0, 1, 10, 0)
    version = [new] + [stage(worker) for worker in range(3)] + everybody("activate")
    seed("broker_core", "rollout", broker_walk(*opened, *version, *version, ("operate", 0, 1, 1, 0, 100),
                                               *everybody("activate"), *version))
    seed("broker_core", "half", broker_walk(*opened, *version, ("publish", 0, 1, 1, 0, 0), stage(0),
                                            stage(1), ("time", 0, 0, 15, 0)))
    seed("broker_core", "crash", broker_walk(*opened, *version, new, stage(0), ("crash", 0, 0), join(0),
                                             stage(0), ("time", 0, 0, 15, 0), join(1), join(2),
                                             ("publish", 0), *version))
    seed("broker_core", "disk", broker_walk(*opened, ("disk", 0, 1), *version, ("disk", 0, 0), *version,
                                            ("disk", 0, 1), ("leave", 1, 0), new, stage(0), stage(2)))
    seed("broker_core", "zombie", broker_walk(*opened, *version, ("leave", 1, 0), ("zombie", 0, 1, 0, 0, 0),
                                              ("time", 0, 0, 20, 0), ("zombie", 0, 0, 0, 0, 0)))
    seed("broker_core", "digests", broker_walk(*opened, *version, new, stage(0), stage(1, 0), stage(2),
                                               ("time", 0, 0, 20, 0), stage(1), stage(1, 0),
                                               ("join", 0, 0, 0, 0), ("join", 1, 0, 0, 1), *version))
    seed("broker_core", "requests", broker_walk(*opened, new, again, other_bytes, stage(0), again,
                                                ("disk", 0, 0), new, after_refusal, ("disk", 0, 1),
                                                after_refusal, again, ("crash", 0, 0), *opened, again,
                                                other_bytes, *version))
    seed("broker_core", "key", broker_walk(*opened, *version, new, stage(0), stage(2), ("key", 1, 0), join(1),
                                           ("zombie", 0, 1, 0, 0, 0), ("key", 1, 0), join(1), *version))
    for app in (0, 1):
        fetch = [("slot", 1), ("fetched", 1)] + [("staged", 1)] * app
        seed("worker_core", f"rollout-{app}",
             worker_walk(app, ("up", 1), ("announce", 1), *fetch, ("commit", 2), ("announce", 1), *fetch,
                         ("commit", 3), ("up", 1), ("up", 3), ("announce", 1), *fetch, ("commit", 4)))
        seed("worker_core", f"late-{app}", worker_walk(app, ("up", 1), ("announce", 1), *fetch,
                                                       ("announce", 1), ("commit", 3), ("commit", 2), *fetch,
                                                       ("commit", 2, 1), ("commit", 3, 1)))


def requests_over_http():
    for name, target in (("livez", "/livez"), ("readyz", "/readyz"), ("metrics", "/metrics"),
                         ("page", "/"), ("script", "/page/script.js"),
                         ("after", "/api/v1/versions/policy?after=7"),
                         ("status", "/api/v1/status"),
                         ("tag", "/api/v1/versions/policy@3:3f9a1c20d4e1"),
                         ("escaped", "/api/v1/workers/%77%31"),
                         ("events", "/api/v1/events?after=7&epoch=2&limit=3&adapter=policy&worker=w1")):
        seed("http_request", name, b"GET\0" + target.encode() + b"\0localhost:9700")
    seed("http_request", "resume", b"GET\0/api/v1/events\x003-17")
    seed("http_request", "head", b"HEAD\0/livez?\0[::1]:9700")
    seed("http_request", "post", b"POST\0/api/v1/status\0evil.example")
    seed("http_request", "malformed", b"GET\0/api/v1/workers/%7\x0010.0.0.7")


def events():
    for target in ("broker_core", "worker_core", "fetch_core"):
        for number in range(8):
            state, data = number * 2654435761 + 1, bytearray([number])
            for _ in range(40 + 50 * number):
                state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
                data.append(state >> 56)
            seed(target, f"walk-{number}", bytes(data[:500]))


for make in (messages, reports, adapters, frames, strangers, rows, command_lines, texts, keys, join_string,
             etcd_answers, stories, requests_over_http, events):
    make()
print(f"seeds: {sum(1 for _ in CORPUS.rglob('*') if _.is_file())} inputs, "
      f"{sum(f.stat().st_size for f in CORPUS.rglob('*') if f.is_file())} bytes")
