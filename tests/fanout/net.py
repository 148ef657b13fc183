# SPDX-License-Identifier: Apache-2.0
"""Hosts on one network: a namespace each, a bridge between them, and links with a rate both ways.

What is made has the process id of its maker in its name.  remove_all() removes it; what a killed maker left
goes when the next Net begins."""
import os
import pathlib
import re
import subprocess

# Smaller than a chunk of 64 KiB: a larger burst passes a chunk at once, and hides what a hop costs.
BURST = 34816
GSO_MAX = 32768
LATENCY = "100ms"    # how long the queue of a link may become
TAG = "hfo"          # interface names have 15 characters


def sh(*command, check=True):
    return subprocess.run([str(c) for c in command], check=check, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


def names(*command):
    return re.findall(rf"\b{TAG}(\d+)([a-z]\d*)\b", sh(*command).stdout)


def left_of(pid):
    """Names of namespaces and of interfaces that the process has made."""
    hosts = {f"{TAG}{p}{n}" for p, n in names("ip", "netns", "list") if int(p) == pid}
    links = {f"{TAG}{p}{n}" for p, n in names("ip", "-o", "link") if int(p) == pid}
    return hosts, links


def remove(pid):
    hosts, links = left_of(pid)
    for host in hosts:
        sh("ip", "netns", "del", host, check=False)
    for link in left_of(pid)[1] if hosts else links:
        sh("ip", "link", "del", link, check=False)


def remove_all():
    """-> names of what could not be removed."""
    remove(os.getpid())
    return [name for kind in left_of(os.getpid()) for name in sorted(kind)]


def sweep():
    for pid in {int(p) for p, _ in names("ip", "netns", "list") + names("ip", "-o", "link")}:
        if pid == os.getpid() or not pathlib.Path(f"/proc/{pid}").exists():
            remove(pid)


class Host:
    def __init__(self, net, name, address):
        self.name, self.address = name, address
        self.space = self.link = f"{TAG}{os.getpid()}{name}"
        sh("ip", "netns", "add", self.space)
        sh("ip", "link", "add", self.link, "gso_max_size", GSO_MAX, "type", "veth", "peer", "name", "eth0",
           "netns", self.space)
        sh("ip", "link", "set", self.link, "master", net.bridge, "up")
        sh("ip", "-n", self.space, "addr", "add", f"{address}/16", "dev", "eth0")
        sh("ip", "-n", self.space, "link", "set", "eth0", "gso_max_size", GSO_MAX, "up")
        sh("ip", "-n", self.space, "link", "set", "lo", "up")
        sh(*self.inside(), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={net.congestion}")

    def inside(self):
        """What stands before a command that runs there, under the same process id."""
        return "ip", "netns", "exec", self.space

    def limit(self, bytes_per_s):
        """Both ways: what it sends, and what the bridge sends to it; in place of an earlier limit."""
        rate = f"{8 * bytes_per_s}bit"
        for where, device in (["-n", self.space], "eth0"), ([], self.link):
            sh("tc", *where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", BURST,
               "latency", LATENCY)

    def sent(self):
        """Bytes; large packets count with one header each."""
        return self.counter("rx_bytes")

    def received(self):
        return self.counter("tx_bytes")

    def counter(self, name):
        """Of the bridge's end of its link."""
        return int(pathlib.Path(f"/sys/class/net/{self.link}/statistics/{name}").read_text())


class Net:
    def __init__(self, congestion):
        self.congestion, self.hosts = congestion, []
        sweep()
        self.bridge = f"{TAG}{os.getpid()}s"
        sh("ip", "link", "add", self.bridge, "type", "bridge", "mcast_snooping", "0")
        sh("ip", "link", "set", self.bridge, "up")

    def host(self, name, bytes_per_s=0):
        """0: without a limit."""
        number = len(self.hosts) + 1
        host = Host(self, name, f"10.231.{number >> 8}.{number & 255}")
        self.hosts.append(host)
        if bytes_per_s:
            host.limit(bytes_per_s)
        return host
