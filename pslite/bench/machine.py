"""What a run should say about the machine and the software it ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslite import __version__

if TYPE_CHECKING:
    from pslite.bench.run import Sizes

PACKAGES = ("numpy", "numba", "pyzmq", "msgpack", "torch", "grpcio", "ray")


def facts(sizes: Sizes, transports: Sequence[str], peers: Sequence[str]) -> dict[str, Any]:
    """Date, machine, versions, settings and who takes part, for the JSON and the tables."""
    return {
        **software(),
        "transports": list(transports),
        "peers": list(peers),
        "sizes": asdict(sizes),
    }


def software() -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(memory("MemTotal") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "pslite": __version__,
        "versions": _versions(),
    }


def memory(name: str) -> int:
    """Bytes of an entry of /proc/meminfo, such as MemAvailable; 0 where there is none."""
    for line in _lines("/proc/meminfo"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _processor() -> str:
    names = [
        line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line
    ]
    return names[0] if names else platform.processor() or platform.machine()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:  # another system
        return []


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
