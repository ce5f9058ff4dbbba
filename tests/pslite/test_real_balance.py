"""Real processes: one worker pushes more than its dispatcher sends on, and goes elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 200.0  # seconds; no job should come near

WORKER = """
    import subprocess, sys, time
    from pathlib import Path
    import numpy as np, pslite

    log, end = Path("run/balance.jsonl"), time.monotonic() + 120
    keys, pushes, under_way = np.arange(500), 0, []

    def has(what):
        return f'"{what}"' in (log.read_text() if log.exists() else "")

    with pslite.connect() as worker:
        table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        while worker.rank == 0 and time.monotonic() < end and not has("home"):
            under_way.append(table.push(keys, np.ones((500, 2))))
            pushes += 1
            if len(under_way) > 100:
                worker.wait(under_way.pop(0))
            time.sleep(0.01)
        worker.barrier("all have pushed")
        rows = set(table.pull(keys).ravel().tolist())
        if worker.rank == 0:
            print("values are right:", rows == {-pushes}, flush=True)
            for command in ("metrics", "status"):
                subprocess.run([sys.executable, "-m", "pslite", command, "--run", "run"])
        worker.barrier("worker 0 has looked")
"""


def test_a_worker_leaves_a_dispatcher_that_does_not_keep_up_and_comes_home(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(WORKER))
    settings = {
        "cluster.servers": "1",
        "cluster.workers": "4",
        "cluster.dispatchers": "2",
        "cluster.heartbeat_interval": "250ms",
        "dispatcher.flush_interval": "1s",  # the others do not push, so a buffer waits as long
        "balance.overflow": "yes",
        "balance.check_interval": "100ms",
        "balance.queue_high": "20",
        "balance.queue_low": "10",
        "balance.patience": "0s",
        "balance.hold": "300ms",
        "balance.move_after": "300ms",
        "balance.calm": "1s",
    }
    command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf/local.ini")]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    command += ["--run", "run", "--", sys.executable, str(program)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )

    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert "values are right: True" in out
    lines = (tmp_path / "run" / "balance.jsonl").read_text().splitlines()
    decisions = [json.loads(line) for line in lines]
    whats = [decision["what"] for decision in decisions]
    assert whats.index("spill") < whats.index("move") < whats.index("home")
    first = decisions[0]
    assert (first["metric"], first["workers"], first["about"]) == ("queue", [0], "dispatcher 0")
    assert len(decisions) < 40
    assert "decided by scheduler: worker 0 to come back to dispatcher 0: queue" in out  # status
    assert 'pslite_dispatcher_queue{node="dispatcher 0",table="t"} 0' in out
    assert 'pslite_network_tx_bytes{node="worker 3"}' in out
