"""Hosts of one machine's own: network namespaces whose lines the kernel holds to a rate.

A bridge with a namespace for each host, in a network namespace of its own that nothing else sees. A
token-bucket filter (tc tbf) on each end of a host's cable limits what it sends and what it
receives. All of it, and every process, lives in process, mount and network namespaces that end
with the process that made them, however it ends: the kernel cleans up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

SKIPPED = 77  # the exit code of what cannot be run here, as Automake has it
_INSIDE = "PSLITE_BENCH_INSIDE"
_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
_AS_ROOT = ["--user", "--map-root-user"]
_QUEUE = "50ms"  # what a filter lets wait; more is dropped, as by a switch
_SHORTEST = 64 * 1024  # bytes of a bucket; the kernel hands on packets of so much


class NoNamespacesError(Exception):
    """This machine does not allow what is needed; the text is its own words."""


def enter() -> None:
    """Go on in namespaces of our own: the program is started again inside.

    Raises:
        NoNamespacesError: they are not allowed, or a tool is missing.
    """
    if os.environ.get(_INSIDE):
        _prepare()
        return
    for tool in ("unshare", "ip", "tc"):
        if shutil.which(tool) is None:
            raise NoNamespacesError(f"{tool} is missing (Debian: apt-get install iproute2)")
    start = [*_UNSHARE, *([] if os.geteuid() == 0 else _AS_ROOT)]
    _run([*start, "true"])
    os.environ[_INSIDE] = "1"
    sys.stdout.flush()
    os.execvp(start[0], [*start, sys.executable, *sys.argv])


def _prepare() -> None:
    """Let `ip netns` keep its names where nobody else sees them, and try the filter."""
    os.makedirs("/run/netns", exist_ok=True)
    _run(["mount", "-t", "tmpfs", "none", "/run/netns"])
    _run(["ip", "link", "set", "lo", "up"])
    _run(["ip", "link", "add", "lines", "type", "bridge"])
    _run(["ip", "link", "set", "lines", "up"])
    _run(["tc", "qdisc", "add", "dev", "lines", "root", *_filter(1e8)])
    _run(["tc", "qdisc", "del", "dev", "lines", "root"])


def _filter(rate: float) -> list[str]:
    burst = max(_SHORTEST, int(rate / 8 / 100))  # what passes between two ticks of the kernel
    return ["tbf", "rate", f"{rate:.0f}bit", "burst", f"{burst}", "latency", _QUEUE]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(command)
        raise NoNamespacesError(f"`{words}` says: {done.stderr.strip() or done.returncode}")


class Host:
    """A namespace with one cable to the bridge.

    Attributes:
        address: of the host.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address, self._cable = name, f"10.77.0.{number}", f"cable{number}"
        ip = ["ip", "-n", name]
        _run(["ip", "netns", "add", name])
        ends = ["type", "veth", "peer", "name", "eth0", "netns", name]
        _run(["ip", "link", "add", self._cable, *ends])
        _run(["ip", "link", "set", self._cable, "master", "lines", "up"])
        _run([*ip, "addr", "add", f"{self.address}/24", "dev", "eth0"])
        _run([*ip, "link", "set", "eth0", "up"])
        _run([*ip, "link", "set", "lo", "up"])

    def limit(self, rate: float) -> None:
        """Hold what it sends, and what it receives, to `rate` bits a second."""
        _run(["tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root", *_filter(rate)])
        _run(["tc", "qdisc", "replace", "dev", self._cable, "root", *_filter(rate)])

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a process on this host; all it says can be read from its stdout."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
