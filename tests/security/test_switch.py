"""Keys switched on for whole clusters of processes, as users do it; and where nodes listen."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from postoffice.config import ClusterConfig
from postoffice.node import Role
from pslite.cli import main
from pslite.config import JobConfig, parse_job
from pslite.environ import NodeSettings
from pslite.keyring import keys_of_job
from pslite.launcher import LaunchOptions, run_local
from pslite.vans import check_open, make_van
from van.config import SecurityConfig, VanConfig
from van.courier import ZmqVan
from van.errors import ConfigError
from van.message import Message, Meta

LIMIT = 30.0
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, subprocess, sys
import numpy as np, pslite
with pslite.connect() as worker:
    table = worker.sparse_table("t", 1, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
    worker.wait(table.push(np.arange(9), np.ones((9, 1))))
    worker.barrier()
    assert (table.pull(np.arange(9)) == -worker.num_workers).all()
    worker.barrier()
    if worker.rank == 0:
        status = [sys.executable, "-m", "pslite", "status", "--run", sys.argv[1]]
        print(subprocess.run(status, capture_output=True, text=True, check=True).stdout)
"""


def run_with(folder: Path, settings: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (folder / "worker.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "worker.py"), str(folder / "run")]
    job = parse_job(f"[cluster]\nservers = 1\nworkers = 2\n{settings}")
    options = LaunchOptions(run_dir=folder / "run", out=sys.stdout, err=sys.stderr)
    code = run_local(job, command, options)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_one_switch_gives_a_local_cluster_keys_for_the_time_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run_with(tmp_path, "[security]\ncurve = on\n", capsys)

    assert code == 0, output
    assert "worker 1" in output
    assert "running, epoch" in output
    assert "false key" not in output
    assert json.loads((tmp_path / "run" / "cluster.json").read_text())["keys"]
    assert not (tmp_path / "run" / "keys").exists()


@pytest.mark.slow
def test_a_cluster_runs_with_the_keys_of_keygen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = str(tmp_path / "keys")
    arguments = ["keygen", "--cluster", keys, "--servers", "1", "--workers", "2"]
    assert CliRunner().invoke(main, arguments).exit_code == 0

    code, output = run_with(tmp_path, f"[security]\ncurve = on\nkeys = {keys}\n", capsys)

    assert code == 0, output
    assert "running, epoch" in output


def test_keygen_says_what_it_made_and_how_to_switch_it_on(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    for expected in ("6 keys made, 0 kept", "0 keys made, 6 kept"):
        result = CliRunner().invoke(
            main, ["keygen", "--cluster", str(folder), "--servers", "2", "--workers", "2"]
        )
        assert result.exit_code == 0
        assert expected in result.output
        assert f"--set security.curve=on --set security.keys={folder}" in result.output


def test_keygen_can_make_one_key_a_role(tmp_path: Path) -> None:
    folder = tmp_path / "keys"

    result = CliRunner().invoke(main, ["keygen", "--cluster", str(folder), "--per-role"])

    assert result.exit_code == 0
    secrets = sorted(file.stem for file in folder.glob("*.secret"))
    assert secrets == ["observer", "scheduler", "server", "worker"]


def test_missing_keys_are_named_before_any_node_starts(tmp_path: Path, keys: Path) -> None:
    job = JobConfig(
        cluster=ClusterConfig(servers=3, workers=4),
        security=SecurityConfig(curve=True, keys=str(keys)),
    )

    with (
        pytest.raises(
            ConfigError,
            match=r"no keys for server-2, worker-3; .*keygen.*--servers 3 --workers 4",
        ),
        keys_of_job(job, tmp_path),
    ):
        pass


def test_keys_made_for_a_job_are_deleted_even_if_it_fails(tmp_path: Path) -> None:
    job = JobConfig(security=SecurityConfig(curve=True))
    for run in (tmp_path, None):
        with contextlib.suppress(ZeroDivisionError), keys_of_job(job, run) as keyed:
            folder = Path(keyed.security.keys)
            assert (folder / "worker-0.secret").exists()
            raise ZeroDivisionError
        assert not folder.exists()


def settings_of(text: str, role: Role = Role.SERVER) -> NodeSettings:
    return NodeSettings(role=role, rank=0, job=parse_job(text))


def test_a_node_listens_in_one_place_and_is_reached_at_another() -> None:
    text = "[cluster]\nbind = 127.0.0.1\nadvertise = localhost\n[van]\ntransport = tcp\n"
    van, peer = make_van(settings_of(text), background=False), ZmqVan(VanConfig(transport="tcp"))
    got: list[Message] = []
    van.receiver = got.append

    address = van.bind("tcp://localhost:0")
    peer.bind("tcp://127.0.0.1:0")
    peer.connect(8, address)
    peer.send(Message(Meta(recipient=8)))

    assert van.wait(lambda: bool(got), LIMIT)
    assert address.startswith("tcp://localhost:")
    assert not address.endswith(":0")
    peer.close()
    van.close()


def test_a_scheduler_may_listen_everywhere_and_be_reached_by_its_name() -> None:
    text = "[cluster]\nscheduler = localhost:0\nbind = 0.0.0.0\n[security]\nopen = yes\n"
    van = make_van(settings_of(text, Role.SCHEDULER), background=False)

    assert van.bind("tcp://localhost:0").startswith("tcp://localhost:")
    van.close()


def test_nobody_is_reached_at_every_address() -> None:
    with pytest.raises(ConfigError, match=r"\[cluster\] advertise: .*use bind to listen"):
        parse_job("[cluster]\nadvertise = 0.0.0.0\n")


@pytest.mark.parametrize("host", ["10.0.0.5", "0.0.0.0", "node7", "::"])
def test_listening_beyond_this_host_without_keys_is_warned_of_or_refused(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    for security in (SecurityConfig(open="yes"), SecurityConfig(curve=True)):
        check_open(security, host)
    assert not caplog.records

    with caplog.at_level(logging.WARNING):
        check_open(SecurityConfig(), host)
    assert f"listens on {host} without keys" in caplog.records[0].message
    with pytest.raises(ConfigError, match=rf"\[security\] open: no node listens on {host}"):
        check_open(SecurityConfig(open="no"), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_listening_to_this_host_only_needs_no_word(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_open(SecurityConfig(open="no"), host)

    assert not caplog.records


def test_the_addresses_are_loopback_unless_the_ini_says_otherwise() -> None:
    cluster = ClusterConfig()

    assert cluster.scheduler_host == "127.0.0.1"
    assert cluster.listening_host(cluster.advertised_host) == "127.0.0.1"
    named = ClusterConfig(host="10.0.0.7", advertise="node7")
    assert named.advertised_host == "node7"
    assert named.listening_host("node7") == "10.0.0.7"
    assert ClusterConfig(host="10.0.0.7", bind="0.0.0.0").listening_host("10.0.0.7") == "0.0.0.0"
