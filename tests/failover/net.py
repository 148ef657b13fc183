# SPDX-License-Identifier: Apache-2.0
"""Two networks in namespaces of this test alone, `members` and `store`, and hosts that are on both: each can be cut off
either of them.  The test itself is on both.  What is cut off sends and gets nothing, and no connection is closed: as a cable
that is pulled.  All of it goes with the processes."""
import ctypes
import os
import pathlib
import subprocess
import sys
import threading

NETWORKS = {"members": "10.77.1", "store": "10.77.2"}
INSIDE = "HEDDLE_FAILOVER_INSIDE"
CLONE_NEWNET = 0x40000000


def sh(*words):
    subprocess.run([str(w) for w in words], check=True, stdin=subprocess.DEVNULL)


def enter():
    """Goes on in namespaces of its own.  -> whether it may"""
    if os.environ.get(INSIDE):
        return True
    probe = ["unshare", "--net", "--mount", "ip", "link", "add", "probe", "type", "bridge"]
    try:
        is_allowed = os.geteuid() == 0 and subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        is_allowed = False
    if is_allowed:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, "-B", *sys.argv])
    return False


def build():
    pathlib.Path("/run/netns").mkdir(parents=True, exist_ok=True)
    sh("mount", "-t", "sysfs", "sysfs", "/sys")  # of these namespaces: UCX looks there
    sh("mount", "-t", "tmpfs", "none", "/run/netns")
    sh("ip", "link", "set", "lo", "up")
    for name, network in NETWORKS.items():
        sh("ip", "link", "add", name, "type", "bridge")
        sh("ip", "addr", "add", f"{network}.1/24", "dev", name)
        sh("ip", "link", "set", name, "up")


class Host:
    """`inside`: what stands before a command that runs there."""

    def __init__(self, name, number):
        self.name, self.address, self.inside = name, f"{NETWORKS['members']}.{number}", ["ip", "netns", "exec", name]
        sh("ip", "netns", "add", name)
        sh("ip", "-n", name, "link", "set", "lo", "up")
        for network, address in NETWORKS.items():
            sh("ip", "link", "add", f"{name}-{network}", "type", "veth", "peer", "name", network, "netns", name)
            sh("ip", "-n", name, "addr", "add", f"{address}.{number}/24", "dev", network)
            sh("ip", "-n", name, "link", "set", network, "up")
            sh("ip", "link", "set", f"{name}-{network}", "up")
            self.mend(network)

    def cut(self, network):
        sh("ip", "link", "set", f"{self.name}-{network}", "nomaster")

    def mend(self, network):
        sh("ip", "link", "set", f"{self.name}-{network}", "master", network)

    def call(self, function):
        """-> what the function returns, of a thread of that host"""
        found = []

        def run():
            with open(f"/run/netns/{self.name}") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            found.append(function())
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]


class Loopback:
    """Where there are no namespaces."""
    address, inside = "127.0.0.1", []

    @staticmethod
    def call(function):
        return function()
