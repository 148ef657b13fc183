# SPDX-License-Identifier: Apache-2.0
"""An etcd of one node for a test, in a folder of the test's own: `with Etcd(folder) as etcd: etcd.endpoint`.

As a program: etcd.py COMMAND [ARGUMENT...] runs the command with HEDDLE_ETCD=HOST:PORT of one."""
import ctypes
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

    def __init__(self, folder, *options, cert=None, key=None, ca=None, has_clients=False):
        self.folder, self.popen, self.options = pathlib.Path(folder), None, list(options)
        self.scheme = "https" if cert else "http"
        if cert:
            self.options += ["--cert-file", cert, "--key-file", key]
        if has_clients:
            self.options += ["--client-cert-auth", "--trusted-ca-file", ca]
        self.client, self.peer, self.metrics = free_ports(3)
        self.endpoint = f"127.0.0.1:{self.client}"

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
        client, peer = f"{self.scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer}"
        health = f"http://127.0.0.1:{self.metrics}"
        with open(self.folder / "etcd.log", "ab") as log:
            # Short intervals: the least lease that etcd grants is half as long again as an election.
            self.popen = subprocess.Popen(
                ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                 "--listen-metrics-urls", health, "--heartbeat-interval", "100", "--election-timeout", "1000", *self.options],
                stdout=log, stderr=log, preexec_fn=die_with_parent)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{health}/health", timeout=2) as answer:
                    if b'"true"' in answer.read():
                        return self
            except OSError:
                pass
            if self.popen.poll() is not None or time.monotonic() > end:
                raise RuntimeError("etcd does not start: " + (self.folder / "etcd.log").read_text()[-2000:])
            time.sleep(0.05)

    def __exit__(self, *_):
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def main():
    if not shutil.which("etcd"):
        print("there is no etcd: tools/setup test installs it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="heddle-etcd-") as folder, Etcd(folder) as etcd:
        return subprocess.run(sys.argv[1:], env=dict(os.environ, HEDDLE_ETCD=etcd.endpoint), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
