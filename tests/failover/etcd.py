# SPDX-License-Identifier: Apache-2.0
"""An etcd of one node for a test, in a folder of the test's own: `with Etcd(folder) as etcd: etcd.endpoint`.  Etcds: of three.

As a program: etcd.py COMMAND [ARGUMENT...] runs the command with HEDDLE_ETCD=HOST:PORT of one."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

PATIENCE_S = 60


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Etcd:
    """`options`: more of etcd's own.  `cert`, `key`: it speaks TLS; `ca`: of its clients, where these show a certificate."""

    def __init__(self, folder, *options, name="default", host="127.0.0.1", cert=None, key=None, ca=None, has_clients=False):
        self.folder, self.name, self.popen, self.options = pathlib.Path(folder), name, None, list(options)
        self.scheme = "https" if cert else "http"
        if cert:
            self.options += ["--cert-file", cert, "--key-file", key]
        if has_clients:
            self.options += ["--client-cert-auth", "--trusted-ca-file", ca]
        self.client, peer, metrics = free_ports(3)
        self.endpoint, self.peer = f"{host}:{self.client}", f"http://127.0.0.1:{peer}"
        self.health = f"http://127.0.0.1:{metrics}"
        self.log, self.cluster = self.folder / ("etcd.log" if name == "default" else f"{name}.log"), f"{name}={self.peer}"

    def stop(self):
        """Killed; `start` has its data again."""
        self.popen.kill()
        self.popen.wait()

    def restart(self):
        self.stop()
        self.start()

    def __enter__(self):
        return self.start()

    def start(self):
        self.launch()
        return self.await_health()

    def launch(self):
        client = f"{self.scheme}://{self.endpoint}"
        with open(self.log, "ab") as log:
            # Short intervals: the least lease that etcd grants is half as long again as an election.
            self.popen = subprocess.Popen(
                ["etcd", "--name", self.name, "--data-dir", self.folder / ("etcd" if self.name == "default" else self.name),
                 "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", self.peer,
                 "--initial-advertise-peer-urls", self.peer, "--initial-cluster", self.cluster, "--listen-metrics-urls", self.health,
                 "--heartbeat-interval", "100", "--election-timeout", "1000", *self.options],
                stdout=log, stderr=log, preexec_fn=die_with_parent)

    def await_health(self):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.health}/health", timeout=2) as answer:
                    if b'"true"' in answer.read():
                        return self
            except OSError:
                pass
            if self.popen.poll() is not None or time.monotonic() > end:
                raise RuntimeError("etcd does not start: " + self.log.read_text()[-2000:])
            time.sleep(0.05)

    def ask(self, path, **body):
        request = json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.scheme}://{self.endpoint}/v3/{path}", request, timeout=10) as answer:
            return json.load(answer)

    def __exit__(self, *_):
        self.popen.send_signal(signal.SIGCONT)
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Etcds:
    """A cluster of three nodes, n0 to n2; `host`: the address where clients reach them."""

    def __init__(self, folder, *options, host="127.0.0.1"):
        self.nodes = [Etcd(folder, *options, name=f"n{i}", host=host) for i in range(3)]
        cluster = ",".join(node.cluster for node in self.nodes)
        for node in self.nodes:
            node.cluster = cluster
        self.endpoints = ",".join(node.endpoint for node in self.nodes)

    def start(self, nodes):
        for node in nodes:
            node.launch()
        for node in nodes:
            node.await_health()

    def __enter__(self):
        self.start(self.nodes)
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.__exit__()


def main():
    if not shutil.which("etcd"):
        print("there is no etcd: tools/setup test installs it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="heddle-etcd-") as folder, Etcd(folder) as etcd:
        return subprocess.run(sys.argv[1:], env=dict(os.environ, HEDDLE_ETCD=etcd.endpoint), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
