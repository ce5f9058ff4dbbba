"""What faults do to a job of real processes: noticed and recovered after, lost, applied twice.

For each fault a cluster of two servers and two workers is started by `pslite local --chaos …`. Its
workers add ones to the same rows all the time and note in a file of their own, before and after
each push, how many they have sent and how many were acknowledged; so also what a killed worker did
is known. At the end the rows say whether an acknowledged push is missing (lost) or there are more
than were sent (applied twice).

Then the same job without faults, with resending, copies and keys on and off: what they cost.

    python bench/reliability.py
    python bench/reliability.py --only "server killed, copied" --seconds 40
    python bench/reliability.py --json reliability.json --markdown docs/reliability.md
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pslite.config import own_sections

ROOT = Path(__file__).resolve().parents[1]
ROWS, COUNTS = 1000, struct.Struct("<qq")
LIMIT = 600.0  # seconds; no run should come near
BEGIN, END = "<!-- reliability: begin -->", "<!-- reliability: end -->"

WORKER = """
import os, struct, sys, time
import numpy as np
import pslite

seconds, rows, copies = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "copies"
with pslite.connect() as worker:
    table = worker.sparse_table("ones", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
    keys, ones = np.arange(rows), np.full((rows, 1), -1.0)
    counts = os.open(f"life-{worker.rank}-{os.getpid()}", os.O_CREAT | os.O_WRONLY)
    worker.wait(table.push(keys, ones * 0))
    if not os.path.exists("begun"):  # else this is a later life, and nobody waits for it
        worker.barrier("all are there")
        while copies and sum(server["copies"] for server in table.stats()) < rows:
            time.sleep(0.05)
        worker.barrier("all have copies")
        open("begun", "w").close()
        worker.barrier("ready")
    began = os.stat("begun").st_mtime
    done, start = 0, time.monotonic()
    while time.time() < began + seconds:
        os.pwrite(counts, struct.pack("<qq", done + 1, done), 0)
        table.pull(keys)
        worker.wait(table.push(keys, ones))
        worker.step()
        done += 1
        os.pwrite(counts, struct.pack("<qq", done, done), 0)
    rate = done / (time.monotonic() - start)
    worker.barrier("all is pushed")
    found = table.pull(keys)
    worker.barrier("all have looked")
    print("found", int(found.min()), int(found.max()), rate)
"""


@dataclass(frozen=True)
class Case:
    """A fault, and the settings of the job that meets it.

    Attributes:
        name: for the table.
        plan: of the fault; it comes where a third of the time is over.
        settings: of the job.
        has_copies: the job waits until all rows are copied.
    """

    name: str
    plan: str
    settings: tuple[str, ...] = ()
    has_copies: bool = False


COPIED = ("cluster.replicas=1", "cluster.on_server_failure=restart")
RETURNING = ("cluster.on_worker_failure=restart",)
CASES = (
    Case("worker killed, restarted", "kill worker:1@{when}", RETURNING),
    Case(
        "worker killed, others go on",
        "kill worker:1@{when}",
        ("cluster.on_worker_failure=continue",),
    ),
    Case("server killed, copied", "kill server:1@{when}", COPIED, True),
    Case("scheduler killed, restarted", "restart scheduler@{when}", ("cluster.journal=journal",)),
    Case("server stopped for 3 s", "stop server:1@{when} for 3s"),
    Case("worker stopped for 3 s", "stop worker:1@{when} for 3s"),
    Case("scheduler stopped for 3 s", "stop scheduler@{when} for 3s"),
    Case("server cut from worker for 3 s", "partition server:1 from worker:0@{at} for 3s"),
    Case("2 % of messages lost", "drop 2% from {at}"),
    Case("2 % repeated", "duplicate 2% from {at}"),
    Case("2 % late, up to 500 ms", "delay 2% from {at}"),
    Case("20 % overtaken", "reorder 20% from {at}"),
)
COSTS = (
    ("nothing sent again (resend = off)", ("van.resend=off",), False),
    ("as by default (resend = on)", (), False),
    ("each row copied (replicas = 1)", COPIED, True),
)


@dataclass(frozen=True)
class Outcome:
    """How a job with a fault went; times in seconds, rates in steps a second of all workers."""

    name: str
    command: str
    exit_code: int
    noticed: float | None
    recovered: float | None
    lost: int | None
    twice: int | None
    before: float | None
    after: float | None


def run_case(case: Case, seconds: float, interval: str) -> Outcome:
    """Run one job with its fault."""
    # Partitions and message faults count from the meeting of the nodes, when workers begin to load.
    plan = case.plan.format(when=f"barrier:3+{round(seconds / 3)}s", at=f"{round(seconds / 2)}s")
    settings = (*case.settings, f"cluster.heartbeat_interval={interval}")
    with tempfile.TemporaryDirectory(prefix="pslite-reliability-") as name:
        folder = Path(name)
        ended = launch(folder, seconds, case.has_copies, "--chaos", plan, *set_of(settings))
        report = json.loads((folder / "run" / "chaos.json").read_text())
        lost, twice = balance(folder, ended.stdout)
    dents = [dent for dent in report["work"]["dents"] if dent["clause"] == plan]
    dent = dents[0] if dents else {"suffered": None, "after": None}
    shown = " ".join(["--chaos", f'"{plan}"', *set_of(settings)])
    return Outcome(
        case.name,
        f"pslite local INI {shown} …",
        ended.returncode,
        noticed_after(report),
        dent["suffered"],
        lost,
        twice,
        report["work"]["before"],
        dent["after"],
    )


def launch(
    folder: Path, seconds: float, has_copies: bool, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run the job of two servers and two workers in `folder`."""
    (folder / "local.ini").write_text("[run]\nname = reliability\n")
    (folder / "worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "pslite", "local", "local.ini", *options]
    command += ["--servers", "2", "--workers", "2", "--", "python", "worker.py"]
    command += [f"{seconds:g}", str(ROWS), "copies" if has_copies else "none"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def set_of(settings: tuple[str, ...]) -> list[str]:
    """Settings as options."""
    return [part for setting in settings for part in ("--set", setting)]


def noticed_after(report: dict[str, Any]) -> float | None:
    """Seconds until the scheduler held the node for dead; else until the launcher saw its end."""
    for what in ("died", "ended"):
        for seen in report["noticed"]:
            if seen["what"] == what and seen["after"] is not None:
                return float(seen["after"])
    return None


def found_in(out: str) -> list[tuple[int, int, float]]:
    """Least and greatest row and the rate, as each worker printed them."""
    lines = [line.partition("] found ")[2].split() for line in out.splitlines()]
    return [(int(line[0]), int(line[1]), float(line[2])) for line in lines if len(line) == 3]


def balance(folder: Path, out: str) -> tuple[int | None, int | None]:
    """Acknowledged pushes that the rows lack, and pushes that they have beyond those sent."""
    found = found_in(out)
    if not found:
        return None, None
    lives = [
        COUNTS.unpack(path.read_bytes()) for path in folder.glob("life-*") if path.stat().st_size
    ]
    sent, acked = sum(life[0] for life in lives), sum(life[1] for life in lives)
    return max(0, acked - min(f[0] for f in found)), max(0, max(f[1] for f in found) - sent)


def cost_of(settings: tuple[str, ...], has_copies: bool, seconds: float) -> float:
    """Steps a second of all workers without faults."""
    with tempfile.TemporaryDirectory(prefix="pslite-reliability-") as name:
        ended = launch(Path(name), seconds, has_copies, *set_of(settings))
        if ended.returncode:
            raise SystemExit(f"a job without faults failed:\n{ended.stdout}{ended.stderr}")
        return sum(rate for *_, rate in found_in(ended.stdout))


def costs(seconds: float, rounds: int) -> dict[str, float]:
    """The rate of each setting beside that without resending: medians of interleaved rounds."""
    with tempfile.TemporaryDirectory(prefix="pslite-keys-") as keys:
        kinds = list(COSTS)
        if "security" in own_sections():
            make_keys(Path(keys))
            secure = ("security.curve=on", f"security.keys={keys}")
            kinds.append(("each connection encrypted (curve = on)", secure, False))
        rates: dict[str, list[float]] = {name: [] for name, _, _ in kinds}
        for _ in range(rounds):
            for name, settings, has_copies in kinds:
                rates[name].append(cost_of(settings, has_copies, seconds))
    base = rates[COSTS[0][0]]
    return {
        name: statistics.median(rate / least for rate, least in zip(found, base, strict=True))
        for name, found in rates.items()
    }


def make_keys(folder: Path) -> None:
    """Keys of two servers and two workers."""
    command = [sys.executable, "-m", "pslite", "keygen", "--cluster", str(folder)]
    subprocess.run(
        [*command, "--servers", "2", "--workers", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )


def tables(outcomes: list[Outcome], ratios: dict[str, float]) -> str:
    """Both tables as Markdown."""
    lines = [
        "| fault | noticed after | recovered after | lost | applied twice | steps/s before | after"
        " |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in outcomes:
        failed = f" (exit code {one.exit_code})" if one.exit_code else ""
        cells = [
            one.name + failed,
            cell(one.noticed, " s"),
            cell(one.recovered, " s"),
            cell(one.lost),
            cell(one.twice),
            cell(one.before),
            cell(one.after),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"    {one.name}: {one.command}" for one in outcomes)]
    if ratios:
        lines += ["", "| without faults | step rate |", "| --- | ---: |"]
        lines += [f"| {name} | {ratio:.2f} |" for name, ratio in ratios.items()]
    return "\n".join(lines)


def cell(value: float | None, unit: str = "") -> str:
    """A figure of the table."""
    if value is None:
        return "–"
    return f"{value}{unit}" if isinstance(value, int) else f"{value:,.1f}{unit}"


def into_page(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the tables between the marks of a page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, also_found, after = rest.partition(end)
    if not found or not also_found:
        raise SystemExit(f"{page} has no {begin} … {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each job")
    parser.add_argument("--interval", default="250ms", help="[cluster] heartbeat_interval")
    parser.add_argument("--only", action="append", help="a fault's name; may be repeated")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of what nothing failing costs; 0: no"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="page that gets the tables")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only is None or case.name in options.only]
    if not chosen and options.only != ["none"]:
        parser.error(f"--only takes {', '.join(repr(case.name) for case in CASES)}, or none")
    outcomes = []
    for case in chosen:
        outcomes.append(run_case(case, options.seconds, options.interval))
        print(outcomes[-1], file=sys.stderr, flush=True)
    ratios = costs(options.seconds / 3, options.rounds) if options.rounds else {}
    text = tables(outcomes, ratios)
    print(text)
    if options.json:
        facts = {"faults": [dataclasses.asdict(one) for one in outcomes], "ratios": ratios}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")
    if options.markdown:
        into_page(options.markdown, text)


if __name__ == "__main__":
    main()
