#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""client.py ENDPOINT PID TOKEN: a good client of the broker from docs/protocol.md alone (pip install pyzmq
msgpack).

It asks what there is, joins as a worker, takes a version through its messages up to ACTIVE and leaves; then
publishes versions as a writer and takes them itself, one up to ROLLOUT `active`, one that it rejects.  The
bytes of versions are not its business: it says STAGED on trust.  The broker, process PID, has policy@1,
active, on a worker named w1."""
import hashlib
import sys

import peer
from peer import *

failed = 0


def check(text, holds, found=None):
    global failed
    print(f"{'ok' if holds else 'FAIL'}   {text}" + ("" if holds else f": found {found}"))
    failed += not holds


def take_what_is_there(endpoint, pid):
    admin = Peer(endpoint)
    hello = admin.greet(ADMIN)
    check("HELLO is answered with a wire version, an epoch, a lease and who the broker is",
          hello["wire"] == 1 and hello["epoch"] > 0 and hello["lease_ms"] > 0 and hello["pid"] == pid, hello)
    versions = admin.ask("versions", name="policy", limit=1)
    check("versions of policy: number 1 is active",
          [v["version"] for v in versions] == [1] and versions[0]["state"] == "active", versions)
    names = [w["name"] for w in admin.ask("workers", limit=1)]
    check("workers, page after page: w1 is there", "w1" in names, names)

    worker = Peer(endpoint, WORKER)
    worker.join("foreign", "policy", labels=["zone=eu"], host="h")
    welcome = worker.welcomed()
    token = welcome["token"]
    check("the token carries the epoch", token >> 32 == welcome["epoch"] == hello["epoch"], welcome)
    decision = welcome["adapters"][0]
    digest = decision["digest"]
    check("WELCOME tells the decision: 1, naming version 1",
          (decision["adapter"], decision["decision"], decision["version"]) ==
          ("policy", 1, 1), decision)
    check("with the digest that the question showed", "h1:" + digest.hex() == versions[0]["digest"], decision)
    announce = worker.await_type(ANNOUNCE)
    check("ANNOUNCE names the worker that has the bytes",
          announce["version"] == 1 and announce["digest"] == digest and
          any(s["kind"] == 2 and s["name"] == "w1" for s in announce["sources"]), announce)
    worker.send(NEED_SOURCES, token=token, version=1, adapter="policy",
                lost=[s["token"] for s in announce["sources"]])

    worker.send(STAGED, token=token, version=1, adapter="policy", digest=digest)
    commit = worker.await_type(COMMIT)
    check("STAGED is followed by the COMMIT of decision 1",
          (commit["version"], commit["decision"], commit["digest"]) == (1, 1, digest), commit)
    worker.send(ACTIVE, token=token, version=1, decision=1, adapter="policy", digest=digest)
    for seq in (1, 2):
        worker.send(HEARTBEAT, token=token, seq=seq, adapters=[{"adapter": "policy"}], slots_total=3,
                    slots_free=2)
        beat = worker.await_type(HEARTBEAT_OK)
        check(f"heartbeat {seq} is acknowledged", beat == {"token": token, "seq": seq}, beat)
    me = admin.ask("workers", name="foreign")[0]
    check("the broker tells others: ready, current, version 1, its label",
          (me["state"], me["current"], me["adapters"][0]["version"],
            me["labels"]) == ("ready", True, 1, {"zone": "eu"}), me)
    worker.send(LEAVE, token=token, req=77)
    check("LEAVE is answered with BYE", worker.await_type(BYE) == {"token": token, "req": 77})
    me = admin.ask("workers", name="foreign")[0]
    check("and the broker says so", me["state"] == "left", me)


def metadata(text, **more):
    """What PUBLISH says of a version: made up, but for the digest, which nobody here recomputes."""
    part = {"payload_bytes": 8192, "manifest_bytes": 300,
            "manifest_digest": hashlib.blake2b(b"m", digest_size=32).digest()}
    return {"adapter": "paper", "request_id": text,
            "digest": hashlib.blake2b(text.encode(), digest_size=32).digest(), "parts": [part],
            "step": 100, "data_bytes": 14, "tensor_count": 2, "chunk_count": 1, "kind": "lora",
            "base_model": "none/such", "features": ["dora", "rslora"],
            "config": b'{"peft_type": "LORA", "r": 1}',
            "meta": [{"key": "run", "value": "7"}, {"key": "blank"}], **more}


def publish_and_take(endpoint):
    admin, worker, publisher = Peer(endpoint, ADMIN), Peer(endpoint, WORKER), Peer(endpoint, PUBLISHER)
    worker.join("reader", "paper")
    worker.welcomed()
    publisher.open("paper", "author", address=b"a place")
    token = publisher.welcomed()["token"]
    first = metadata("one")
    publisher.send(PUBLISH, token=token, req=5, **first)
    published = publisher.await_type(PUBLISHED)
    check("PUBLISH is answered: version 1, created, a share key",
          (published["version"], published["created"], published["req"]) == (1, True, 5) and
          any(published["key"]), published)
    announce = worker.await_type(ANNOUNCE)
    source = announce["sources"][0]
    check("ANNOUNCE carries the metadata, the key and the address",
          announce["key"] == published["key"] and announce["parts"] == first["parts"] and
          announce["step"] == 100 and (source["kind"], source["name"], source["address"], source["token"])
          == (1, "author", b"a place", token), announce)
    about = {"token": worker.token, "version": 1, "adapter": "paper", "digest": first["digest"]}
    worker.send(STAGED, sources=[{"token": token, "kind": 1, "bytes": 8192, "name": "author"}], fetch_us=10,
                verify_us=10, **about)
    worker.send(ACTIVE, decision=worker.await_type(COMMIT)["decision"], activate_us=5, **about)
    rollout = publisher.await_type(ROLLOUT, state="active", active_count=1)
    check("ROLLOUT: active on one of one",
          (rollout["eligible_count"], rollout["staged_count"], rollout["decision"]) == (1, 1, 1), rollout)
    row = admin.ask("versions", name="paper", version=1)[0]
    shown = {k: row[k] for k in ("step", "data_bytes", "tensor_count", "features", "meta", "config",
                                 "request_id", "writer", "state")}
    check("the version is listed with its metadata",
          shown == {"step": 100, "data_bytes": 14, "tensor_count": 2, "features": ["dora", "rslora"],
"meta": {"run": "7", "blank": ""}, "config": {"peft_type": "LORA", "r": 1}, "request_id": "one",
                    "writer": "author", "state": "active"}, row)

    publisher.send(PUBLISH, token=token, req=6, **metadata("two", step=101))
    check("the next version has the next number", publisher.await_type(PUBLISHED, req=6)["version"] == 2)
    check("RELEASE: others hold version 1", publisher.await_type(RELEASE, version=1)["adapter"] == "paper")
    worker.await_type(ANNOUNCE, version=2)
    worker.send(NACK, token=worker.token, version=2, adapter="paper", phase="stage", code="no_slot",
                message="the foreign client is full")
    abort = worker.await_type(ABORT, version=2)
    check("a NACK fails the version for everybody: ABORT says so",
          abort["adapter"] == "paper" and abort["code"], abort)
    rollout = publisher.await_type(ROLLOUT, version=2, state="failed")
    check("and ROLLOUT names who, where and why",
          [(m["worker"], m["phase"], m["code"]) for m in rollout["missing"]]
          == [("reader", "stage", "no_slot")], rollout)
    answer = admin.ask("wait", name="paper", version=2, deadline_ms=5000)[0]
    check("a wait for it ends at once", answer["version"] == 2 and not answer["ok"], answer)

    admin.req += 1
    admin.send(QUERY, req=admin.req, op="verify", name="paper", version=1, deadline_ms=60000)
    verify = worker.await_type(VERIFY)
    worker.send(VERIFIED, req=verify["req"], **{**about, "hash_us": 9})
    report = admin.await_type(REPORT, req=admin.req)
    check("VERIFY is answered by VERIFIED: everybody has the bytes", report.get("code", "") == "", report)

    admin.req += 1
    admin.send(QUERY, req=admin.req, op="pull", name="paper")
    report = admin.await_type(REPORT, req=admin.req)
    sources = [(s["kind"], s["name"]) for s in report["sources"]]
    check("pull is answered with the key, the parts and who has the bytes",
          report["key"] == announce["key"] and report["parts"] == first["parts"] and
          sources == [(2, "reader")], report)
    for client in (worker, publisher):
        client.leave()


if __name__ == "__main__":
    take_what_is_there(sys.argv[1], int(sys.argv[2]))
    publish_and_take(sys.argv[1])
    check("whatever was heard is as the page says", not peer.astray, peer.astray)
    sys.exit(1 if failed else 0)
