"""The experiments' figures as tables."""

from __future__ import annotations

from collections.abc import Sequence

from convergence_data import Case
from convergence_results import Group, spread

from pslite.bench.report import Table
from pslite.simulate.outcome import mean_of, quantile

TARGET = 0.003  # of AUC that these modes may lose with most workers
BOUND = ("sync", "ssp:4", "dc_async")
NAMES = {
    "async": "async",
    "async:lr": "async, lr_by_staleness",
    "dc_async": "dc_async",
    "ssp:4": "ssp",
    "sync": "sync",
    "semi_sync:0.75": "semi_sync, quorum 0.75",
    "backup:1": "semi_sync, 1 backup worker",
}
HEAD = (
    "mode",
    "workers",
    "AUC",
    "against one worker",
    "log-loss",
    "staleness",
    "p50",
    "p99",
    "max",
    "waiting",
    "time / sync",
    "time / one worker",
)


def tables(cases: Sequence[Case], groups: Sequence[Group]) -> list[Table]:
    """Targets, then all figures case by case."""
    found = [targets(cases, groups)]
    for case in cases:
        own = [group for group in groups if group.case == case.name]
        rows = [_row(group) for group in sorted(own, key=lambda group: group.workers)]
        found.append(Table(case.title, HEAD, rows))
    return [table for table in found if table.rows]


def targets(cases: Sequence[Case], groups: Sequence[Group]) -> Table:
    """What each mode loses with most workers, and whether it may."""
    rows = []
    for case in (case for case in cases if case.has_target):
        most = max(group.workers for group in groups if group.case == case.name)
        own = [group for group in groups if (group.case, group.workers) == (case.name, most)]
        for group in own if most > 1 else ():
            gain = spread(group.gains)
            bound = f"{TARGET:g}" if group.mode in BOUND else ""
            is_met = gain is not None and not group.diverged and gain["mean"] >= -TARGET
            verdict = ("met" if is_met else "MISSED") if bound else ""
            rows.append([case.name, name_of(group.mode), str(most), _signed(group), bound, verdict])
    header = ["data", "mode", "workers", "AUC against one worker", "may lose", ""]
    return Table("What the modes lose", header, rows)


def name_of(mode: str) -> str:
    """What a mode is called in tables.

    >>> name_of("backup:1"), name_of("dc_async:16")
    ('semi_sync, 1 backup worker', 'dc_async, dc_lambda 16')
    """
    name, _, number = mode.partition(":")
    return NAMES.get(mode) or (f"dc_async, dc_lambda {number}" if name == "dc_async" else mode)


def _row(group: Group) -> list[str]:
    counts = group.staleness
    return [
        name_of(group.mode) if group.workers > 1 else "each",
        str(group.workers),
        _mean(group.aucs) + (f", {group.diverged} diverged" if group.diverged else ""),
        _signed(group) if group.workers > 1 else "",
        _mean(group.loglosses),
        f"{mean_of(counts):.1f}",
        *(str(quantile(counts, share)) for share in (0.5, 0.99, 1.0)),
        f"{group.waiting:.0%}",
        "" if group.rounds is None else f"{group.times_of(group.rounds):.2f}",
        f"{group.times_of(group.alone):.3f}",
    ]


def _mean(values: Sequence[float]) -> str:
    found = spread(values)
    return "–" if found is None else f"{found['mean']:.4f} ± {found['deviation']:.4f}"


def _signed(group: Group) -> str:
    found = spread(group.gains)
    return "–" if found is None else f"{found['mean']:+.4f} ± {found['deviation']:.4f}"
