"""Training goes on when workers die: what they had not done is done by others, all is tested."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.ctr.command import check_failures
from kv.checkpoint.places import place_of
from kv.checkpoint.shelf import Shelf
from kv.leases.reading import records_in
from pslite.audit import audit
from pslite.config import JobConfig, parse_job
from tests.jobs import ROOT, node_of, start_here
from van.errors import ConfigError

EPOCHS = 60  # so many that who is started again still finds work
MODEL = f"""
[sparse_dict]
emb_dim = 4
[net]
layers = fc:8,tanh:-1,fc:1,sigmoid:-1
[train]
epoch = {EPOCHS}
batch_size = 100
shuffle = true
[debug]
interval = 5
"""


@pytest.fixture
def final(tmp_path: Path, generate: Callable[..., Any]) -> Path:
    folder = tmp_path / "features"
    folder.mkdir()
    generate(rows=5000, seed=1).write_parquet(folder / "final_train.parquet", row_group_size=500)
    generate(rows=333, seed=2).write_parquet(folder / "final_test.parquet")
    return folder


def steps_of(job: subprocess.Popen[str], said: list[str]) -> Iterator[str]:
    """What worker 0 reports of its steps."""
    assert job.stdout is not None
    for line in job.stdout:
        said.append(line.rstrip())
        if line.startswith("[worker 0] epoch"):
            yield line


@pytest.mark.parametrize(
    ("what", "rank", "kind"),
    [
        pytest.param("restart", 1, "", marks=pytest.mark.soak),
        pytest.param("restart", 0, "", marks=pytest.mark.soak),
        pytest.param("continue", 1, "", marks=pytest.mark.soak),
        pytest.param("restart", 1, "step", marks=pytest.mark.soak),
        pytest.param("restart", 0, "step", marks=pytest.mark.slow),
        pytest.param("restart", 0, "fuzzy", marks=pytest.mark.soak),
        pytest.param("continue", 1, "step", marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_costs_no_record_and_no_test_row(
    what: str, rank: int, kind: str, final: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.ini").write_text(MODEL)
    command = [sys.executable, "-m", "apps.ctr", "train", "--conf", "model.ini", "--async"]
    command += ["--data", str(final), "--cluster", str(ROOT / "conf/local.ini"), "--out", "run"]
    command += ["--mode", "cluster", "--servers", "1", "--workers", "2"]
    command += ["--set", f"cluster.on_worker_failure={what}"]
    if kind:
        where = ("dir=checkpoints", "every_steps=20", f"kind={kind}")
        command += [part for setting in where for part in ("--set", f"checkpoint.{setting}")]
    said: list[str] = []
    with start_here(tmp_path, command) as job:
        steps = steps_of(job, said)
        for _ in range(3):
            next(steps)
        node_of(job.pid, "worker", rank).send_signal(signal.SIGKILL)
        for _ in steps:
            pass
        job.wait(timeout=240)
    print("\n".join(said))

    assert job.returncode == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    account = audit(tmp_path / "run")["train"]
    assert account.balances, account.problems
    assert account.expected == EPOCHS * 5000
    assert account.returned == 1
    assert metrics["test_rows"] == 333
    assert metrics["test_auc"] > 0.6
    reports = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first = [json.loads(report)["rows"] == 500 for report in reports]
    assert first.count(True) == (2 if rank == 0 else 1)  # one that is started again carries on
    if kind:
        shelf = Shelf(place_of(str(tmp_path / "checkpoints")))
        last = shelf.verify(shelf.names()[-1])[-1]
        assert last.number > 3
        assert records_in(last.reading["train"]) > EPOCHS * 5000 * 0.8


@pytest.mark.parametrize("what", ["continue", "restart"])
def test_in_sync_mode_the_death_of_a_worker_must_stop_the_job(what: str) -> None:
    job = parse_job(f"[cluster]\non_worker_failure = {what}\n[param_sync]\nmode = sync\n")

    with pytest.raises(ConfigError, match=f"on_worker_failure: {what} needs async mode"):
        check_failures(job, Path("local.ini"))


@pytest.mark.parametrize("mode", ["ssp", "semi_sync"])
def test_modes_that_count_steps_go_on_without_a_worker_but_not_with_it_started_again(
    mode: str,
) -> None:
    def settings(what: str) -> JobConfig:
        return parse_job(f"[cluster]\non_worker_failure = {what}\n[param_sync]\nmode = {mode}\n")

    check_failures(settings("continue"), None)
    with pytest.raises(ConfigError, match=f"restart needs async or dc_async mode: {mode} counts"):
        check_failures(settings("restart"), Path("local.ini"))
