"""What tells a process from all others, so that a later one knows whether it still lives.

A process id alone may be another process' some time later: with it go the host, the boot of its
system, and when the process was started.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 19  # of the fields of /proc/PID/stat behind the name: when it was started, since boot


def this_process() -> dict[str, Any]:
    """This process, as JSON types: `host`, `boot`, `pid`, `start`."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "start": _started(pid)}


def lives(process: Any) -> bool | None:
    """Whether a process that `this_process` has described is there; None: nobody here can tell."""
    if not isinstance(process, dict) or type(process.get("pid")) is not int:
        return None
    if process.get("host") != socket.gethostname() or process.get("start") is None:
        return None
    return process.get("boot") == _boot() and process["start"] == _started(process["pid"])


def _boot() -> str | None:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None: it is not there."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    is_there = state not in (b"Z", b"X") and len(fields) >= _START
    return int(fields[_START - 1]) if is_there else None
