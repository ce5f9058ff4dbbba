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
QUALITY = ("mode", "workers", "AUC", "against one worker", "log-loss", "calibration")
HEAD = (
    *QUALITY,
    "staleness",
    "p50",
    "p99",
    "max",
    "waiting",
    "time / sync",
    "time / one worker",
)


def tables(groups: Sequence[Group]) -> list[Table]:
    """Targets, then all figures by case and test; what depends on no test stands once."""
    found, by_test = [targets(groups)], _by_test(groups)
    for (case, test), own in by_test.items():
        width = len(HEAD) if test == case.tests[0][0] else len(QUALITY)
        rows = [_row(group)[:width] for group in sorted(own, key=lambda group: group.workers)]
        title = f"{case.title}, tested on {dict(case.tests)[test]}"
        found.append(Table(title, HEAD[:width], rows))
    return [table for table in found if table.rows]


def _by_test(groups: Sequence[Group]) -> dict[tuple[Case, str], list[Group]]:
    found: dict[tuple[Case, str], list[Group]] = {}
    for group in groups:
        found.setdefault((group.case, group.test), []).append(group)
    return found


def targets(groups: Sequence[Group]) -> Table:
    """What each mode loses with most workers, and whether it may."""
    rows = []
    for (case, test), own in _by_test(groups).items():
        most = max(group.workers for group in own)
        for group in own if case.has_target and most > 1 else ():
            if group.workers < most:
                continue
            gain = spread(group.gains)
            bound = f"{TARGET:g}" if group.mode in BOUND else ""
            is_met = gain is not None and not group.diverged and gain["mean"] >= -TARGET
            verdict = ("met" if is_met else "MISSED") if bound else ""
            data = f"{case.name}, {dict(case.tests)[test]}"
            rows.append([data, name_of(group.mode), str(most), _signed(group), bound, verdict])
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
        _mean(group.quality("auc")) + (f", {group.diverged} diverged" if group.diverged else ""),
        _signed(group) if group.workers > 1 else "",
        _mean(group.quality("logloss")),
        _mean(group.quality("calibration"), 2),
        f"{mean_of(counts):.1f}",
        *(str(quantile(counts, share)) for share in (0.5, 0.99, 1.0)),
        f"{group.waiting:.0%}",
        "" if group.rounds is None else f"{group.times_of(group.rounds):.2f}",
        f"{group.times_of(group.alone):.3f}",
    ]


def _mean(values: Sequence[float], digits: int = 4) -> str:
    found = spread(values)
    if found is None:
        return "–"
    return f"{found['mean']:.{digits}f} ± {found['deviation']:.{digits}f}"


def _signed(group: Group) -> str:
    found = spread(group.gains)
    return "–" if found is None else f"{found['mean']:+.4f} ± {found['deviation']:.4f}"
