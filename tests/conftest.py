"""What tests of several packages share."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pslite.config import JobConfig
from pslite.prepare import preparation
from tests.jobs import ROOT, environment, free_port

# Processes that tests start keep what they print as those of users do.
os.environ.pop("PYTHONUNBUFFERED", None)

# Each process that shares the tests has kernels of its own: two that compile a kernel for different
# types at once may give one of them, in Numba's cache, the code of the other.
_worker = os.environ.get("PYTEST_XDIST_WORKER")
if _worker is not None:
    _kernels = ROOT / ".pytest_cache" / f"kernels-{_worker}"
    _kernels.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_kernels))

# The same few examples in each run; --hypothesis-profile=thorough: many, and others each time.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", _UNHURRIED, max_examples=50, derandomize=True)
settings.register_profile("thorough", _UNHURRIED, max_examples=1000)
settings.load_profile("steady")  # unless the command line names another

_LIMIT = 60.0  # seconds for a server to answer
_CLUSTERS = ("apps", "chaos", "kv", "pslite", "security")  # packages whose tests run some


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes that share the tests know them by name, so no name may hold an address."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: give its parameters ids")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile all kernels before a cluster starts, whose nodes would fall silent meanwhile.

    Not in a fixture: on a slow machine it takes longer than any test may, and would fail them all.
    """
    folders = [ROOT / "tests" / name for name in _CLUSTERS]
    if session.config.option.collectonly or not any(
        item.path.is_relative_to(folder) for item in session.items for folder in folders
    ):
        return
    arguments = preparation(JobConfig(), os.environ)
    if arguments:
        command = [sys.executable, "-m", "pslite.prepare", *arguments]
        # What cannot be compiled fails the tests that need it, which say more.
        subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=False)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    """The address of an etcd that is ours alone (Debian: etcd-server)."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("no etcd here; Debian's package is etcd-server")
    client, peer = free_port(), free_port()
    address = f"http://127.0.0.1:{client}"
    command = [program, "--data-dir", str(tmp_path / "etcd")]
    command += ["--listen-client-urls", address, "--advertise-client-urls", address]
    command += ["--listen-peer-urls", f"http://127.0.0.1:{peer}", "--log-level", "error"]
    command += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"]
    command += ["--initial-cluster", f"default=http://127.0.0.1:{peer}"]
    with (tmp_path / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await(client, process, tmp_path / "etcd.log")
        yield address
    finally:
        process.kill()
        process.wait()


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"etcd did not start: {log.read_text()[-500:]}")
