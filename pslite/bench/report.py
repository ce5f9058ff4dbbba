"""Results as tables of text, for terminals and, as Markdown, for documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pslite.bench.results import Measurement, Results
from pslite.bench.targets import NAMES, Verdict, thousands, where_of

Row = Sequence[str]
OVERLAP = "Where both sides work at once, what is left between the processes can be below zero."


class Table:
    """Rows of text under a heading."""

    def __init__(self, title: str, header: Row, rows: Sequence[Row], note: str = "") -> None:
        self.title, self.header, self.rows, self.note = title, header, rows, note

    def text(self) -> str:
        """In columns, the first one to the left, the others to the right."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.header))]
        shown = [
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *([self.note] if self.note else []), *shown, ""])

    def markdown(self) -> str:
        marks = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [f"| {' | '.join(line)} |" for line in (self.header, marks, *self.rows)]
        return "\n".join([f"### {self.title}", "", *([self.note, ""] if self.note else []), *lines])


def tables(results: Results, judged: Sequence[Verdict]) -> list[Table]:
    """All tables of a run; those without figures are left out."""
    found = [
        targets_table(judged),
        *_throughput(results),
        _grid(results, "latency", "One key there and back", _case_of),
        _grid(results, "repeats", "The same keys in each call, M keys/s", _case_of),
        _grid(results, "dense", "Whole arrays, GB/s", _case_of),
        _grid(results, "scale", "Two servers and two workers, M keys/s in total", _case_of),
        _efficiency(results),
        *_stages(results),
        _grid(results, "lookups", "Look-ups, M/s", _case_of),
        _grid(results, "optimisers", "Optimiser steps, M rows/s", _case_of),
        _grid(results, "growth", "Large tables", _case_of),
        _list(results, "start", "Starting"),
        failures_table(results),
    ]
    return [table for table in found if table.rows]


def targets_table(judged: Iterable[Verdict]) -> Table:
    """Each target: ours, the peer's, the ratio, met or missed."""
    rows = [
        [
            verdict.what,
            verdict.where,
            figure(verdict.figure, verdict.unit),
            _peer(verdict),
            _value(verdict),
            ("≤ " if verdict.at_most else "≥ ") + _value(verdict, verdict.target),
            "met" if verdict.is_met else "MISSED",
        ]
        for verdict in judged
    ]
    header = ["target", "worst case", "pslite", "beside", "value", "wanted", ""]
    return Table("Targets", header, rows)


def _peer(verdict: Verdict) -> str:
    if verdict.peer_figure is None:
        return "-"
    return f"{verdict.peer} {figure(verdict.peer_figure, verdict.unit)}"


def _value(verdict: Verdict, value: float | None = None) -> str:
    shown = verdict.value if value is None else value
    if verdict.peer:
        return f"{shown:.2f} x"
    return figure(shown, verdict.unit)


def _throughput(results: Results) -> list[Table]:
    found = []
    for optimizer in ("adagrad", "sgd"):
        for op in ("pull", "push", "push_pull"):
            if optimizer == "sgd" and op != "push":
                continue
            chosen = results.select(workload="tables", what=op, optimizer=optimizer)
            name = NAMES.get(op, op) if op == "pull" else f"{NAMES.get(op, op)} ({optimizer})"
            found.append(_grid_of(list(chosen), f"Tables: {name}, M keys/s", where_of))
    return found


def _grid(results: Results, workload: str, title: str, row_of: Any) -> Table:
    return _grid_of(list(results.select(workload=workload)), title, row_of)


def _grid_of(chosen: list[Measurement], title: str, row_of: Any) -> Table:
    """A row for each case, a column for each peer: the median and min to max.

    Rates are without their unit, which the title has.
    """
    peers = list(dict.fromkeys(found.peer for found in chosen))
    cells: dict[str, dict[str, str]] = {}
    for found in chosen:
        cells.setdefault(row_of(found), {})[found.peer] = spread(found, bare=found.is_rate)
    rows = [[case, *[of.get(peer, "-") for peer in peers]] for case, of in cells.items()]
    return Table(title, ["median (min to max)", *peers], rows)


def _case_of(found: Measurement) -> str:
    op, _, rest = found.what.partition(" p99")
    what = NAMES.get(op, op) + (", 99th percentile" if found.what != op else rest)
    return ", ".join(filter(None, [what, where_of(found)]))


def _list(results: Results, workload: str, title: str) -> Table:
    chosen = results.select(workload=workload)
    return Table(title, ["", "median (min to max)"], [[f.what, spread(f)] for f in chosen])


def _efficiency(results: Results) -> Table:
    """The parts and the whole of each case, and the share."""
    rows = []
    for share in results.select(workload="efficiency", unit=""):
        op = share.what.split()[0]
        parts = [
            f"{part.peer} {part.median * 1e3:.2f}"
            for part in results.select(workload="efficiency", what=op, **share.case)
        ]
        rows.append([f"{op}, {where_of(share)}", ", ".join(parts), spread(share)])
    return Table("Efficiency over tcp", ["", "ms", "parts / whole"], rows)


def _stages(results: Results) -> list[Table]:
    found = []
    for op in ("pull", "push"):
        chosen = list(results.select(workload="stages", op=op))
        counts = list(dict.fromkeys(one.case["count"] for one in chosen))
        stages: dict[str, dict[int, str]] = {}
        for one in chosen:
            cell = f"{one.median * 1e6:.0f}"
            stages.setdefault(one.what, {})[one.case["count"]] = cell
        last = ["between the processes", "end to end"]
        ordered = [stage for stage in stages if stage not in last]
        rows = [
            [stage, *[stages[stage].get(count, "-") for count in counts]]
            for stage in (*ordered, *last)
            if stage in stages
        ]
        header = ["µs a request", *[f"K = {thousands(count)}" for count in counts]]
        found.append(Table(f"Where the time of a {op} goes (dim 16)", header, rows, OVERLAP))
    return found


def failures_table(results: Results) -> Table:
    rows = [[one.workload, one.peer, one.problem] for one in results.failures]
    return Table("Not measured", ["workload", "who", "why"], rows)


def spread(found: Measurement, *, bare: bool = False) -> str:
    """Median (min to max), in the unit of tables, which `bare` leaves out.

    >>> spread(Measurement(workload="", what="", peer="", unit="s", case={}, values=(1, 2, 3)))
    '2 s (1 to 3)'
    """
    scale, unit, digits = _unit(found.median, found.unit)
    low, middle, high = (
        f"{value * scale:.{digits}f}" for value in (found.low, found.median, found.high)
    )
    shown = middle if bare else f"{middle} {unit}".strip()
    return f"{shown} ({low} to {high})"


def figure(value: float, unit: str) -> str:
    """A figure with its unit.

    >>> figure(12.3e6, "keys/s"), figure(0.000127, "s"), figure(3.2e9, "B/s"), figure(0.71, "")
    ('12.3 M/s', '127 µs', '3.20 GB/s', '0.71')
    """
    scale, name, digits = _unit(value, unit)
    return f"{value * scale:.{digits}f} {name}".strip()


def _unit(value: float, unit: str) -> tuple[float, str, int]:
    """Factor, name and digits to show a figure of about `value` with."""
    if unit == "B/s":
        return 1e-9, "GB/s", 2
    if unit.endswith("/s"):
        return 1e-6, "M/s", 1 if value >= 10e6 else 2
    if unit == "s":
        if value < 1e-3:
            return 1e6, "µs", 0
        return (1e3, "ms", 1) if value < 1 else (1.0, "s", 0 if value == round(value) else 2)
    return 1.0, unit, 2


def heading(results: Results) -> str:
    """Machine, versions and date in a few lines."""
    facts = results.facts
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    sizes = facts["sizes"]
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB; "
        f"{facts['system']}; load before the run {facts['load_before']}\n"
        f"{facts['date']}, Python {facts['python']}, pslite {facts['pslite']}, {versions}\n"
        f"rounds: {sizes['rounds']}; {thousands(sizes['rows'])} rows resident; "
        f"transports: {', '.join(facts['transports'])}\n"
    )


def text(results: Results, judged: Sequence[Verdict]) -> str:
    """The whole report for a terminal."""
    found = tables(results, judged)
    return "\n".join([heading(results), *[table.text() for table in found]])


def markdown(results: Results, judged: Sequence[Verdict]) -> str:
    """The whole report as Markdown, for between two marks of a page."""
    found = tables(results, judged)
    return "\n\n".join([heading(results).strip(), *[table.markdown() for table in found]]) + "\n"
