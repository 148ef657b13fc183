#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemons tell a service manager when they serve and when they end; this program is the manager."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

BIN = pathlib.Path(os.environ["HEDDLE_BIN_DIR"])


class Service:
    """One daemon with a notification socket of its own."""

    def __init__(self, name, *args):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0heddle-test-{os.getpid()}-{name}")
        self.socket.settimeout(20)
        env = dict(os.environ, NOTIFY_SOCKET=f"@heddle-test-{os.getpid()}-{name}")
        self.process = subprocess.Popen([BIN / name, *args], env=env, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def hears(self):
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        heard = self.hears()
        assert heard == {"STOPPING": "1"}, heard
        assert self.process.wait(20) == 0, self.process.returncode


with tempfile.TemporaryDirectory() as work:
    os.environ["HEDDLE_KEYS"] = f"{work}/keys"   # never the user's own
    started = []
    try:
        late = Service("heddle-worker", "--broker", f"ipc://{work}/broker", "--adapter", "policy", "--name",
                       "w1")
        started.append(late)
        heard = late.hears()
        assert "READY" not in heard and "no broker" in heard["STATUS"], heard
        broker = Service("heddle-broker", "--listen", f"ipc://{work}/broker", "--data", f"{work}/data")
        started.append(broker)
        heard = broker.hears()
        assert heard == {"READY": "1", "STATUS": f"ipc://{work}/broker"}, heard
        assert json.loads(broker.process.stdout.readline())["kind"] == "ready"
        heard = late.hears()
        assert heard == {"READY": "1", "STATUS": "w1"}, heard
        late.stop()
        broker.stop()
    finally:
        for service in started:
            if service.process.poll() is None:
                service.process.kill()
                service.process.wait()
print("notify: both daemons said READY and STOPPING, and the worker what it waits for")
sys.exit(0)
