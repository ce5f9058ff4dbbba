"""A click model trained with and without dispatchers: its quality, and what servers receive.

Logs are generated, joined and extracted once, as `run_taobao_ctr.sh` does it. Then the same model
is trained by `pslite-ctr --mode cluster` without dispatchers and with them. In each server a hook
([server] app) counts the messages and bytes of pushes and pulls that come and go; in each
dispatcher the rows that come and go give the merge ratio.

    python bench/dispatchers.py
    python bench/dispatchers.py --servers 2 --dispatchers 3 --workers 5 --mode sync --mode async
    python bench/dispatchers.py --data DIR     # features made before, with final_train.parquet
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1800.0  # seconds; no run should come near
FIGURES = {"pushes": "push messages", "push_bytes": "push MB", "pull_bytes": "pulled MB"}


def count(office: Any) -> None:
    """Called with each server's node before it starts: count what comes and goes."""
    from kv.table_protocol import TABLES_APP
    from van.message import Flag, Message

    totals: Counter[str] = Counter()
    receive, send = office.van.receiver, office.van.send

    def received(message: Message) -> None:
        meta = message.meta
        if meta.app == TABLES_APP and meta.flags & Flag.PUSH and message.arrays:
            totals["pushes"] += 1
            totals["push_bytes"] += message.nbytes
        receive(message)

    def sent(message: Message) -> None:
        meta = message.meta
        if meta.app == TABLES_APP and meta.flags & Flag.PULL and message.arrays:
            totals["pulls"] += 1
            totals["pull_bytes"] += message.nbytes
        send(message)

    def write() -> None:
        path = Path(os.environ["PSLITE_BENCH"]) / f"server{office.rank}.json"
        path.write_text(json.dumps(totals))

    office.van.receiver, office.van.send = received, sent
    office.before_goodbye.append(write)


def run(*command: object, env: dict[str, str] | None = None, log: Path) -> None:
    """Run one of our commands; raises SystemExit with its last lines if it fails."""
    words = [sys.executable, "-m", *map(str, command)]
    with open(log, "w") as out:
        done = subprocess.run(
            words, cwd=ROOT, env=env or _environ(), stdout=out, stderr=out, timeout=LIMIT
        )
    if done.returncode:
        tail = log.read_text(errors="replace").splitlines()[-15:]
        raise SystemExit("\n".join([f"{' '.join(words)} failed:", *tail]))


def _environ(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def make_features(folder: Path, impressions: int, behaviors: int) -> Path:
    """Generated logs as features; the folder that holds them."""
    raw, samples, features = folder / "raw", folder / "samples", folder / "features"
    size = ["--impressions", impressions, "--behaviors", behaviors, "--seed", 1]
    run("sample", "generate", "--out", raw, *size, log=folder / "generate.log")
    run("sample", "join", "--raw", raw, "--out", samples, log=folder / "join.log")
    conf = ["--conf", ROOT / "conf/features_taobao.ini"]
    files = ["--train", samples / "train.tsv", "--test", samples / "test.tsv", "--out", features]
    run("feature_extract", "extract", *conf, *files, log=folder / "extract.log")
    return features


def train(
    data: Path, out: Path, servers: int, dispatchers: int, workers: int, mode: str, sets: list[str]
) -> dict[str, float]:
    """Train once; test AUC, seconds, and what the servers and dispatchers have counted."""
    out.mkdir(parents=True)
    command = ["apps.ctr", "train", "--conf", ROOT / "conf/fnn.ini", "--data", data]
    command += ["--features", ROOT / "conf/features_taobao.ini"]
    command += ["--cluster", ROOT / "conf/local.ini", "--mode", "cluster", "--out", out / "run"]
    command += ["--servers", servers, "--workers", workers]
    settings = [f"cluster.dispatchers={dispatchers}", f"param_sync.mode={mode}"]
    settings += ["server.app=dispatchers:count", *sets]
    for setting in settings:
        command += ["--set", setting]
    run(*command, env=_environ(PSLITE_BENCH=str(out)), log=out / "train.log")
    metrics = json.loads((out / "run" / "metrics.json").read_text())
    found: Counter[str] = Counter()
    for path in [*out.glob("server*.json"), *(out / "run").glob("dispatcher*.json")]:
        found.update(
            {k: v for k, v in json.loads(path.read_text()).items() if isinstance(v, int | float)}
        )
    return {"auc": metrics["test_auc"], "seconds": metrics["seconds"], **found}


def line(name: str, figures: dict[str, float]) -> str:
    mb = [figures.get("push_bytes", 0) / 1e6, figures.get("pull_bytes", 0) / 1e6]
    ratio = figures["rows_in"] / figures["rows_out"] if figures.get("rows_out") else 1.0
    return (
        f"{name:<24}{figures['auc']:8.4f}{figures['seconds']:9.1f} s"
        f"{figures.get('pushes', 0):10.0f}{mb[0]:11.1f}{figures.get('pulls', 0):9.0f}{mb[1]:11.1f}"
        f"{ratio:12.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--servers", type=int, default=2)
    add("--dispatchers", type=int, default=3)
    add("--workers", type=int, default=5)
    add("--mode", action="append", help="consistency mode; default async and sync")
    add("--impressions", type=int, default=400_000)
    add("--behaviors", type=int, default=1_000_000)
    add("--data", type=Path, help="features made before")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    add("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = given.data or make_features(folder, given.impressions, given.behaviors)
        heads = ["AUC", "time", "pushes", "push MB", "pulls", "pull MB", "merge ratio"]
        widths = [8, 11, 10, 11, 9, 11, 12]
        print(" " * 24 + "".join(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)))
        found: dict[str, dict[str, float]] = {}
        for mode in given.mode or ["async", "sync"]:
            for dispatchers in (0, given.dispatchers):
                key = f"{mode}, {dispatchers} dispatchers"
                size = given.servers, dispatchers, given.workers
                out = folder / f"{mode}{dispatchers}"
                found[key] = train(data, out, *size, mode, given.set)
                print(line(key, found[key]), flush=True)
            plain, merged = (found[f"{mode}, {d} dispatchers"] for d in (0, given.dispatchers))
            fall = plain["push_bytes"] / merged["push_bytes"]
            ratio = merged["rows_in"] / merged["rows_out"]
            difference = merged["auc"] - plain["auc"]
            print(f"{mode}: servers receive {fall:.2f} times less, rows are merged {ratio:.2f} "
                  f"times, AUC differs by {difference:+.4f}")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
