"""From raw logs to a tested model: the stages of `run_taobao_ctr.sh`, one after the other.

Each stage is a command that a user could give as well; what it prints goes into a log. `plan` says
which, `run_stages` runs them, `summary` puts their figures side by side. Standard library and
`pslite` only, so that `--help` works before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pslite import environ
from pslite.lifecycle import NodeName, describe_status
from pslite.processes import Child, Family
from pslite.signals import SignalInbox
from van.errors import ConfigError, PsliteError

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "pslite-sample": "sample",
    "pslite-features": "feature_extract",
    "pslite-ctr": "apps.ctr",
}
COUNTS = ("--servers", "--workers")
EPILOG = """
Examples:
  ./run_taobao_ctr.sh
  ./run_taobao_ctr.sh --impressions 20000 --behaviors 100000 --out run/small
  ./run_taobao_ctr.sh --raw /data/taobao --conf conf/dssm.ini --sync --out run/real

OUT gets raw/ (generated logs), samples/, features/, local/ and cluster/ (models and figures),
predictions.txt and logs/.
"""


@dataclass(frozen=True)
class Stage:
    """One step: its name and the command, of which `pslite-*` are our own."""

    name: str
    command: Sequence[str]

    def arguments(self) -> list[str]:
        """What is started: our own commands as modules, so that no PATH is needed."""
        program, *rest = self.command
        return [sys.executable, "-m", MODULES[program], *rest]


class StageError(Exception):
    """A stage did not end with 0; a negative status is minus the signal that ended it."""

    def __init__(self, stage: Stage, status: int, tail: Sequence[str]) -> None:
        self.stage, self.status, self.tail = stage, status, tail
        super().__init__(f"{stage.name}: {describe_status(status)}")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line; exits with 2 and a message where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="run_taobao_ctr.sh",
        description="Make or take raw Taobao advertising logs, join them into samples, extract "
        "features, train a click model in one process and on a cluster of processes, test both, "
        "predict.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    conf = ROOT / "conf"
    add("--raw", type=Path, metavar="DIR", help="real raw logs; without it they are generated")
    add(
        "--conf",
        type=Path,
        metavar="INI",
        default=conf / "fnn.ini",
        help="model; default conf/fnn.ini",
    )
    add(
        "--features",
        type=Path,
        metavar="INI",
        default=conf / "features_taobao.ini",
        help="features; default conf/features_taobao.ini",
    )
    add(
        "--cluster",
        type=Path,
        metavar="INI",
        default=conf / "local.ini",
        help="cluster; default conf/local.ini",
    )
    add("--impressions", type=int, metavar="N", default=200_000, help="generated; default 200000")
    add("--behaviors", type=int, metavar="M", default=1_000_000, help="generated; default 1000000")
    add("--seed", type=int, default=1, help="of logs and model; default 1")
    add("--servers", type=int, metavar="S", default=2, help="server processes; default 2")
    add("--workers", type=int, metavar="W", default=2, help="worker processes; default 2")
    add(
        "--sync",
        action="store_true",
        help="workers on the cluster wait for each other in each "
        "step; default: as [param_sync] mode of the cluster ini says, which is async in "
        "conf/local.ini",
    )
    add("--out", type=Path, metavar="DIR", default=Path("run/taobao"), help="default run/taobao")
    given = parser.parse_args(arguments)
    for name in ("conf", "features", "cluster"):
        if not getattr(given, name).is_file():
            parser.error(f"--{name}: there is no file {getattr(given, name)}")
    if given.raw is not None and not given.raw.is_dir():
        parser.error(f"--raw: there is no folder {given.raw}")
    least_of = {"impressions": 1, "behaviors": 0, "seed": 0, "servers": 1, "workers": 1}
    for name, least in least_of.items():
        if getattr(given, name) < least:
            parser.error(f"--{name}: expected {least} or more, got {getattr(given, name)}")
    return given


def check_settings(given: argparse.Namespace) -> None:
    """Read the three ini files, so that a mistake does not end the run after a minute of stages.

    Raises:
        ConfigError: one of them is wrong.
    """
    from apps.ctr.modelconf import load_model_config  # with their packages, which --help lacks
    from feature_extract.conf import read_conf
    from feature_extract.errors import FeatureError
    from pslite.config import read_job

    size = {option: f"cluster.{option[2:]}={getattr(given, option[2:])}" for option in COUNTS}
    read_job(given.cluster, options=size)
    try:
        read_conf(given.features)
    except FeatureError as error:
        raise ConfigError(str(error)) from error
    load_model_config(given.conf, warn=lambda line: print(f"warning: {line}", file=sys.stderr))


def plan(given: argparse.Namespace) -> list[Stage]:
    """The stages that the options ask for, in order."""
    out = given.out
    raw, samples, features = given.raw or out / "raw", out / "samples", out / "features"
    files = ["--train", samples / "train.tsv", "--test", samples / "test.tsv", "--out", features]
    train = ["pslite-ctr", "train", "--conf", given.conf, "--features", given.features]
    train += ["--data", features, "--set", f"run.seed={given.seed}"]
    size = ["--cluster", given.cluster, "--servers", given.servers, "--workers", given.workers]
    size += ["--sync"] if given.sync else []
    test = ["--data", features / "final_test.parquet", "--out", out / "predictions.txt"]
    stages: dict[str, list[Any]] = {}
    if given.raw is None:
        amount = ["--impressions", given.impressions, "--behaviors", given.behaviors]
        amount += ["--seed", given.seed]
        stages["generate"] = ["pslite-sample", "generate", "--out", raw, *amount]
    stages |= {
        "join": ["pslite-sample", "join", "--raw", raw, "--out", samples],
        "extract": ["pslite-features", "extract", "--conf", given.features, *files],
        "train-local": [*train, "--mode", "local", "--out", out / "local"],
        "train-cluster": [*train, "--mode", "cluster", *size, "--out", out / "cluster"],
        "predict": ["pslite-ctr", "predict", "--run", out / "cluster", *test],
    }
    return [Stage(name, [str(word) for word in command]) for name, command in stages.items()]


def run_stages(stages: Sequence[Stage], logs: Path, env: Mapping[str, str]) -> None:
    """Run the stages, a line for each with its time; what they print goes to files in `logs`.

    Raises:
        StageError: a stage ended with another code than 0, or a signal came.
    """
    with SignalInbox() as inbox, Family(_drop, env, logs) as family:
        family.watch(inbox.fileno())
        for number, stage in enumerate(stages, 1):
            begun = time.monotonic()
            print(f"{stage.name:<14}", end="", flush=True)
            child = family.start(NodeName(f"{number}-{stage.name}"), stage.arguments())
            status = _follow(family, inbox)
            print(f" {time.monotonic() - begun:7.1f} s", flush=True)
            if status:
                raise StageError(stage, status, child.tail.text())


def _follow(family: Family, inbox: SignalInbox) -> int:
    """Wait for the one child of the family; its status, or minus the signal that ended all."""
    while True:
        family.turn(0.1)
        for signum in inbox.take():
            family.end()
            return -signum
        for _, status in family.reap(time.monotonic()):
            return status


def _drop(child: Child, block: bytes) -> None:
    """The lines of a stage are in its log; the screen stays clear."""


def summary(out: Path, raw: Path) -> str:
    """The figures of both ways of training side by side, and where everything lies."""
    best = _read_json(raw / "truth.json").get("best_auc_test")
    head = ("mode", "samples/s", "train loss", "test log-loss", "test AUC", "best AUC")
    rows = [head]
    for mode in ("local", "cluster"):
        figures = _read_json(out / mode / "metrics.json")
        rows.append(
            (
                " ".join([mode, figures["param_sync"]] if "param_sync" in figures else [mode]),
                _figure(figures.get("samples_per_second"), ",.0f"),
                _figure(figures.get("train_logloss"), ".5f"),
                _figure(figures.get("test_logloss"), ".5f"),
                _figure(figures.get("test_auc"), ".5f"),
                _figure(best, ".5f"),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    table = "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    places = [
        ("models and figures", f"{out / 'local'}, {out / 'cluster'}"),
        ("predictions", f"{out / 'predictions.txt'}"),
        ("samples, features", f"{out / 'samples'}, {out / 'features'}"),
        ("raw logs", f"{raw}"),
        ("output of stages", f"{out / 'logs'}"),
    ]
    return table + "\n\n" + "\n".join(f"{what:<18}  {where}" for what, where in places)


def _figure(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _read_json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; the exit code."""
    given = options_of(arguments)
    begun = time.monotonic()
    try:
        check_settings(given)
        for mode in ("local", "cluster"):  # the table must not show the figures of an earlier run
            (given.out / mode / "metrics.json").unlink(missing_ok=True)
        run_stages(plan(given), given.out / "logs", environ.current())
    except StageError as failed:
        signum = -failed.status
        if signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            print(f"stopped by {signal.Signals(signum).name}", file=sys.stderr)
        else:
            tail = "".join(f"    {line}\n" for line in failed.tail)
            print(
                f"{failed.stage.name} failed: {describe_status(failed.status)}; its last lines "
                f"(all: {given.out / 'logs'}):\n{tail}the command was:\n"
                f"    {shlex.join(failed.stage.command)}",
                file=sys.stderr,
            )
        return failed.status if failed.status > 0 else 128 + signum
    except PsliteError as error:
        print(f"run_taobao_ctr.sh: error: {error}", file=sys.stderr)
        return 2
    print(f"{'all':<14} {time.monotonic() - begun:7.1f} s\n")
    print(summary(given.out, given.raw or given.out / "raw"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
