"""What `[train] pipeline_depth` gains and costs: samples a second, staleness, quality, by depth.

The same training on a cluster of processes, with each depth in turn, and all of that several times.

    python bench/steps_in_flight.py --conf conf/fnn.ini --data out/features
    python bench/steps_in_flight.py --conf conf/fnn.ini --data out/features --mode sync --depth 0 2

`--data` is what `pslite-ctr train --data` takes, with features (`./run_taobao_ctr.sh` leaves some).
Figures are medians of the rounds; the rate is beside that of the first depth in the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1800.0  # seconds of one training


def train(given: argparse.Namespace, depth: int, out: Path) -> dict[str, Any]:
    """The figures of one training."""
    command = [sys.executable, "-m", "apps.ctr", "train", "--mode", "cluster", "--out", str(out)]
    command += ["--conf", str(given.conf), "--data", str(given.data)]
    command += ["--servers", str(given.servers), "--workers", str(given.workers)]
    settings = [f"param_sync.mode={given.mode}", f"train.pipeline_depth={depth}", *given.settings]
    command += [part for text in settings for part in ("--set", text)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    found: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return found


def mean_staleness(figures: dict[str, Any]) -> float:
    """Updates, of all pushes; of a range its middle."""
    total = weighed = 0.0
    for label, pushes in figures["staleness"].items():
        low, _, high = label.partition("-")
        weighed += pushes * (int(low) + int(high or low)) / 2
        total += pushes
    return weighed / total if total else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conf", type=Path, required=True, help="a model ini")
    parser.add_argument("--data", type=Path, required=True, help="a folder of features")
    parser.add_argument("--mode", default="async", help="of consistency")
    parser.add_argument("--depth", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    given = parser.parse_args()
    found: dict[int, list[dict[str, Any]]] = {depth: [] for depth in given.depth}
    for number in range(given.rounds):
        for depth in given.depth:
            with tempfile.TemporaryDirectory() as folder:
                found[depth].append(train(given, depth, Path(folder) / "run"))
            print(f"round {number + 1}, depth {depth} done", file=sys.stderr, flush=True)
    print(
        f"{'depth':>5} {'samples/s':>10} {'ratio':>6} {'staleness':>10} {'AUC':>8} {'log-loss':>9}"
    )
    first = [run["samples_per_second"] for run in found[given.depth[0]]]
    for depth, runs in found.items():
        rates = [run["samples_per_second"] for run in runs]
        ratio = statistics.median(rate / base for rate, base in zip(rates, first, strict=True))
        stale = statistics.median(map(mean_staleness, runs))
        tested = [run for run in runs if run["test_auc"] is not None]
        auc = statistics.median(run["test_auc"] for run in tested) if tested else float("nan")
        loss = statistics.median(run["test_logloss"] for run in tested) if tested else float("nan")
        rate = statistics.median(rates)
        print(f"{depth:>5} {rate:>10,.0f} {ratio:>6.2f} {stale:>10.2f} {auc:>8.4f} {loss:>9.5f}")


if __name__ == "__main__":
    main()
