"""What each compression scheme saves, costs and changes: the command `pslite bench compression`."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pslite.bench.errors import BenchError
from pslite.bench.links import LINKS
from pslite.bench.report import Table
from pslite.bench.training import Outcome, Setting, train

VERSION = 1  # of the JSON
NONE = "none"
SAVED_MORE, AUC_BAND = 40.0, 0.002  # percent of traffic, and how far the AUC may be


@dataclass(frozen=True)
class Case:
    """A way to compress.

    Attributes:
        name: what the tables call it.
        rules: as in `[compression]`.
        reported: percent of traffic saved and of extra compute, as reported for the system that
            this design follows.
    """

    name: str
    rules: Mapping[str, str]
    reported: tuple[float, float] | None = None


def _all(chain: str, reported: tuple[float, float] | None = None) -> Case:
    return Case(chain, {"*": chain}, reported)


CASES = (
    _all("fp16", (50, 5)),
    _all("bf16"),
    _all("int8"),
    _all("onebit", (98, 15)),
    _all("topk:0.1", (87, 8)),
    _all("delta+int8", (65, 12)),
    _all("selective:relative=0.5"),
    Case("sparse topk:0.1, dense fp16", {"sparse": "topk:0.1", "dense": "fp16"}),
    Case("the same with fp16 pulls", {"sparse": "topk:0.1", "dense": "fp16", "*@pull": "fp16"}),
    Case(
        "sparse selective:relative=0.5+topk:0.1+fp16, dense fp16",
        {"sparse": "selective:relative=0.5+topk:0.1+fp16", "dense": "fp16"},
    ),
)
ZSTD_CASES = (_all("zstd"), _all("fp16+zstd"))
COMPRESSED = Case("compression alone: fp16 both ways", {"*": "fp16", "*@pull": "fp16"})
SELECTIVE = Case(
    "with sparse selective:relative=0.8+fp16",
    {**COMPRESSED.rules, "sparse": "selective:relative=0.8+fp16"},
)
ONLY_SELECTIVE = Case(
    "selective update alone: sparse selective:relative=0.8", {"sparse": "selective:relative=0.8"}
)
BOTH = Case("both: with sparse selective:relative=0.8+fp16", SELECTIVE.rules)
QUICK = Setting(rows=20_480, test_rows=8_192, batch=256)


@dataclass(frozen=True)
class Measured:
    """A case and its outcomes, one a round; AUC and bytes are the same in each."""

    case: Case
    outcomes: tuple[Outcome, ...]

    @property
    def first(self) -> Outcome:
        return self.outcomes[0]

    def extra_compute(self, plain: Measured) -> float:
        """Percent of the processor's time more than without, the median of the rounds."""
        pairs = zip(self.outcomes, plain.outcomes, strict=True)
        return 100 * (statistics.median(own.cpu_seconds / p.cpu_seconds for own, p in pairs) - 1)

    @property
    def coding(self) -> float:
        """Percent of the processor's time that coding takes, the median of the rounds."""
        return 100 * statistics.median(o.coding_seconds / o.cpu_seconds for o in self.outcomes)


Tell = Callable[[str], None]


def measure(setting: Setting, cases: Sequence[Case], rounds: int, tell: Tell) -> list[Measured]:
    """Train with each case, the plain one first, in turn, `rounds` times."""
    data = setting.data()
    all_cases = [Case(NONE, {}), *cases]
    found: dict[str, list[Outcome]] = {case.name: [] for case in all_cases}
    for number in range(rounds):
        for case in all_cases:
            label = f"round {number + 1} of {rounds}, {case.name}"

            def tell_step(done: int, steps: int, label: str = label) -> None:
                tell(f"{label}: step {done} of {steps}")

            found[case.name].append(train(setting, data, case.rules, tell_step))
    return [Measured(case, tuple(found[case.name])) for case in all_cases]


def saved(nbytes: float, plain: float) -> float:
    """Percent that are not sent.

    >>> saved(25, 100)
    75.0
    """
    return 100 * (1 - nbytes / plain) if plain else 0.0


def table(measured: Sequence[Measured]) -> Table:
    """One row a case; the plain one is what the others are compared with."""
    plain = measured[0]
    header = [
        "gradients by",
        "gradients",
        "all traffic",
        "compute",
        "of it coding",
        "AUC",
        "change",
    ]
    header += ["reported: traffic", "compute"]
    rows = []
    for one in measured:
        own, reported = one.first, one.case.reported
        is_plain = one is plain
        rows.append(
            [
                one.case.name,
                "-" if is_plain else f"{-saved(own.value_nbytes, own.plain_nbytes):+.1f} %",
                "-" if is_plain else f"{-saved(own.all_nbytes, plain.first.all_nbytes):+.1f} %",
                "-" if is_plain else f"{one.extra_compute(plain):+.0f} %",
                f"{one.coding:.1f} %",
                f"{own.auc:.4f}",
                "-" if is_plain else f"{own.auc - plain.first.auc:+.4f}",
                "-" if reported is None else f"-{reported[0]:.0f} %",
                "-" if reported is None else f"+{reported[1]:.0f} %",
            ]
        )
    note = "reported: of the system that this design follows, on its own data and machines"
    return Table("What compression saves, costs and changes", header, rows, note)


def selective_table(measured: Sequence[Measured]) -> Table:
    """Compression and selective update beside neither and beside compression alone."""
    plain, compressed, selective = measured
    rows = []
    for what, beside in (("neither", plain), ("compression alone", compressed)):
        own, other = selective.first, beside.first
        pushes = saved(own.pushed_nbytes, other.pushed_nbytes)
        everything = saved(own.all_nbytes, other.all_nbytes)
        counts = everything if beside is plain else pushes
        is_met = counts >= SAVED_MORE and abs(own.auc - other.auc) <= AUC_BAND
        change = f"{own.auc - other.auc:+.4f}"
        verdict = "met" if is_met else "MISSED"
        rows.append([what, f"-{pushes:.1f} %", f"-{everything:.1f} %", change, verdict])
    note = (
        f"wanted: {SAVED_MORE:.0f} % less traffic than with neither, pushes {SAVED_MORE:.0f} % "
        f"smaller than with compression alone, AUC within {AUC_BAND}"
    )
    header = ["beside", "pushes", "all traffic", "AUC", ""]
    return Table("Compression and selective update", header, rows, note)


def dispatcher_table(measured: Sequence[Measured]) -> Table:
    """What each part brings between workers, dispatchers and servers; the plain one is first."""
    plain = measured[0].first
    rows = []
    for one in measured:
        own = one.first
        less = saved(own.all_nbytes, plain.all_nbytes)
        change = own.auc - plain.auc
        is_met = less >= SAVED_MORE and abs(change) <= AUC_BAND
        of_links = [f"{own.links[link] / 1e6:.1f}" for link in LINKS]
        verdict = "" if one is not measured[-1] else "met" if is_met else "MISSED"
        compared = ["-", "-"] if own is plain else [f"-{less:.1f} %", f"{change:+.4f}"]
        rows.append([one.case.name, *of_links, f"{own.all_nbytes / 1e6:.1f}", *compared, verdict])
    note = (
        f"MB of arrays, keys and questions included, as the dispatchers' vans sent and received "
        f"them; wanted: {SAVED_MORE:.0f} % less than with neither, AUC within {AUC_BAND}"
    )
    header = ["through dispatchers", *LINKS, "all", "less", "AUC", ""]
    return Table("Compression and selective update through dispatchers", header, rows, note)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command, as its help describes them."""

    is_quick: bool = False
    is_selective: bool = False
    chains: tuple[str, ...] = ()
    workers: int | None = None
    dispatchers: int = 0
    rounds: int = 1
    json: Path | None = None
    png: Path | None = None


def run_command(request: Request, say: Tell, tell: Tell) -> None:
    """Do what the options ask for.

    Args:
        say: gets the tables; tell: what is under way.
    Raises:
        BenchError: a file cannot be written; SettingError, ConfigError: a chain is none.
    """
    for option, path in (("--json", request.json), ("--png", request.png)):
        place = None if path is None else path if path.exists() else path.resolve().parent
        if place is not None and not os.access(place, os.W_OK):
            raise BenchError(f"{option} {path} cannot be written")
    if request.png is not None and importlib.util.find_spec("matplotlib") is None:
        raise BenchError("--png needs Matplotlib: pip install matplotlib")
    setting = QUICK if request.is_quick else Setting()
    if request.is_selective:
        setting = replace(setting, workers=12, rows=2 * setting.rows)
    if request.workers is not None:
        setting = replace(setting, workers=request.workers)
    if request.dispatchers > setting.workers:
        problem = f"--dispatchers {request.dispatchers}: there are {setting.workers} workers"
        raise BenchError(f"{problem}, and each dispatcher is to have one at least")
    setting = replace(setting, dispatchers=request.dispatchers)
    measured = measure(setting, _cases(request), request.rounds, tell)
    say(_heading(setting, request.rounds))
    say(table(measured).text())
    if request.is_selective and request.dispatchers:
        say(dispatcher_table(measured).text())
    elif request.is_selective:
        say(selective_table(measured).text())
    if request.json is not None:
        request.json.write_text(to_json(setting, measured), encoding="utf-8")
    if request.png is not None:
        from pslite.bench.compression_plot import draw

        draw(measured, request.png)


def _cases(request: Request) -> Sequence[Case]:
    if request.is_selective and request.dispatchers:
        return COMPRESSED, ONLY_SELECTIVE, BOTH
    if request.is_selective:
        return COMPRESSED, SELECTIVE
    if request.chains:
        reported = {case.name: case.reported for case in CASES}
        return [_all(chain, reported.get(chain)) for chain in request.chains]
    has_zstd = importlib.util.find_spec("zstandard") is not None
    return (*CASES, *ZSTD_CASES) if has_zstd else CASES


def _heading(setting: Setting, rounds: int) -> str:
    return (
        f"{setting.rows} made-up clicks, {setting.workers} workers of {setting.batch} rows a step, "
        f"{setting.dispatchers} dispatchers, {setting.servers} servers, all in one process; "
        f"embeddings of {setting.shape.dim} floats; "
        f"rounds: {rounds}\n"
    )


def to_json(setting: Setting, measured: Sequence[Measured]) -> str:
    """Everything as JSON."""
    from pslite.bench.machine import software

    cases: list[dict[str, Any]] = [
        {
            "name": one.case.name,
            "rules": dict(one.case.rules),
            "reported": one.case.reported,
            "outcomes": [asdict(outcome) for outcome in one.outcomes],
        }
        for one in measured
    ]
    document = {"version": VERSION, "facts": software(), "setting": asdict(setting), "cases": cases}
    return json.dumps(document, indent=1) + "\n"
