"""Training goes on when a server dies: from its copies, or again from the last checkpoint."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslite.audit import audit
from tests.jobs import ROOT, node_of, start_here

ROWS, EPOCHS = 5000, 6
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
COPIES = ("cluster.replicas=1",)
CHECKPOINTS = (
    "cluster.on_server_failure=restart",
    "checkpoint.dir=kept",
    "checkpoint.every_steps=20",
)


@pytest.fixture
def final(tmp_path: Path, generate: Callable[..., Any]) -> Path:
    folder = tmp_path / "features"
    folder.mkdir()
    generate(rows=ROWS, seed=1).write_parquet(folder / "final_train.parquet", row_group_size=500)
    generate(rows=2000, seed=2).write_parquet(folder / "final_test.parquet")
    return folder


def train(folder: Path, final: Path, *settings: str, kill_at: int = 0) -> tuple[float, str]:
    """Train in a cluster, and kill server 1 after so many reports; the AUC, and what was said."""
    (folder / "model.ini").write_text(MODEL)
    command = [sys.executable, "-m", "apps.ctr", "train", "--conf", "model.ini", "--async"]
    command += ["--data", str(final), "--cluster", str(ROOT / "conf/local.ini"), "--out", "run"]
    command += ["--mode", "cluster", "--servers", "2", "--workers", "2"]
    for setting in settings:
        command += ["--set", setting]
    said: list[str] = []
    reports = 0
    with start_here(folder, command) as job:
        assert job.stdout is not None
        for line in job.stdout:
            said.append(line)
            reports += line.startswith("[worker 0] epoch")
            if kill_at and reports == kill_at:
                node_of(job.pid, "server", 1).send_signal(signal.SIGKILL)
                kill_at = 0
        job.wait(timeout=240)
    text = "".join(said)
    print(text)
    assert job.returncode == 0
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert metrics["test_rows"] == 2000
    return metrics["test_auc"], text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param(COPIES, "server 1 was restarted 1 time", marks=pytest.mark.soak),
        pytest.param(CHECKPOINTS, "the job began again 1 time", marks=pytest.mark.slow),
    ],
)
def test_a_killed_server_costs_no_record_and_no_quality(
    settings: tuple[str, ...], told: str, final: Path, tmp_path: Path
) -> None:
    (tmp_path / "calm").mkdir()
    undisturbed, _ = train(tmp_path / "calm", final)

    auc, said = train(tmp_path, final, *settings, kill_at=6)

    assert told in said
    assert abs(auc - undisturbed) < 0.02
    account = audit(tmp_path / "run")["train"]
    assert account.balances, account.problems
    assert account.expected == EPOCHS * ROWS
