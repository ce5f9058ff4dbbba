"""What the experiments found: kept line by line, so that a run can go on, and summed up."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convergence_cell import Found, Setting
from convergence_data import Case

from pslite.config import section_to_text
from pslite.simulate.outcome import mean_of, quantile

ONE = "async"  # the mode that stands for all where there is one worker


@dataclass(frozen=True)
class Cell:
    """An experiment that is to be made.

    Attributes:
        case: its name.
        rows: of the training data, one epoch.
        model: all settings of the model.
    """

    case: str
    setting: Setting
    rows: int
    model: dict[str, Any]

    def key(self) -> dict[str, Any]:
        """All that the outcome depends on, in types that JSON has."""
        fields = dataclasses.asdict(self.setting)
        fields["times"] = section_to_text("simulate", self.setting.times.resolved)
        return {"case": self.case, **fields, "rows": self.rows, "model": self.model}


class Journal:
    """Outcomes by what they depend on, in a file of one JSON object a line.

    A line that a killed run left unfinished is skipped, and its experiment made again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Found] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            self._known[_text(entry["cell"])] = Found(**entry["found"])

    def find(self, cell: Cell) -> Found | None:
        return self._known.get(_text(cell.key()))

    def add(self, cell: Cell, found: Found) -> None:
        """Keep an outcome."""
        self._known[_text(cell.key())] = found
        entry = {"cell": cell.key(), "found": dataclasses.asdict(found)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{_text(entry)}\n")  # after whatever a killed run has left


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


@dataclass(frozen=True)
class Group:
    """The experiments of a case, a mode and a number of workers, by seed; and those beside them.

    Attributes:
        test: what was tested on.
        alone: of one worker, with the same seeds.
        rounds: of mode `sync` with as many workers; None where it was not run.
    """

    case: Case
    test: str
    mode: str
    workers: int
    found: dict[int, Found]
    alone: dict[int, Found]
    rounds: dict[int, Found] | None

    @property
    def diverged(self) -> int:
        """How many ended without a model."""
        return sum(not one.quality for one in self.found.values())

    def quality(self, figure: str) -> list[float]:
        """`auc`, `logloss` or `calibration` of the models there are."""
        return list(self._by_seed(self.found, figure).values())

    @property
    def gains(self) -> list[float]:
        """AUC less that of one worker with the same seed."""
        alone = self._by_seed(self.alone, "auc")
        ours = self._by_seed(self.found, "auc")
        return [auc - alone[seed] for seed, auc in ours.items() if seed in alone]

    def _by_seed(self, found: dict[int, Found], figure: str) -> dict[int, float]:
        values = {seed: one.quality.get(self.test, {}).get(figure) for seed, one in found.items()}
        return {seed: value for seed, value in values.items() if value is not None}

    @property
    def staleness(self) -> Counter[int]:
        """Of all seeds together."""
        total: Counter[int] = Counter()
        for one in self.found.values():
            total.update({int(age): count for age, count in one.staleness.items()})
        return total

    @property
    def waiting(self) -> float:
        return statistics.fmean(one.waiting for one in self.found.values())

    def times_of(self, others: dict[int, Found]) -> float:
        """Virtual time to the end over that of others with the same seeds, the mean."""
        return statistics.fmean(
            one.seconds / others[seed].seconds for seed, one in self.found.items()
        )

    def curve(self) -> list[tuple[float, float]]:
        """Means over the seeds whose training did not break off."""
        whole = [one.curve for one in self.found.values() if one.quality]
        return [
            (statistics.fmean(p[0] for p in points), statistics.fmean(p[1] for p in points))
            for points in zip(*whole, strict=False)
        ]


def groups(case: Case, outcomes: Iterable[tuple[Cell, Found]]) -> list[Group]:
    """Outcomes of a case by test, workers and mode, in the order in which they come."""
    by_place: dict[tuple[int, str], dict[int, Found]] = {}
    for cell, found in outcomes:
        if cell.case == case.name:
            place = cell.setting.workers, cell.setting.mode
            by_place.setdefault(place, {})[cell.setting.seed] = found
    return [
        Group(
            case,
            test,
            mode,
            workers,
            found,
            by_place[1, ONE],
            by_place.get((workers, "sync")) if workers > 1 else found,
        )
        for test, _ in case.tests
        for (workers, mode), found in by_place.items()
    ]


def facts(group: Group) -> dict[str, Any]:
    """All figures of a group, in types that JSON has."""
    counts = group.staleness
    return {
        "case": group.case.name,
        "test": group.test,
        "workers": group.workers,
        "mode": group.mode,
        "auc": spread(group.quality("auc")),
        "auc_against_one_worker": spread(group.gains),
        "logloss": spread(group.quality("logloss")),
        "calibration": spread(group.quality("calibration")),
        "diverged": group.diverged,
        "staleness": {
            "mean": mean_of(counts),
            "p50": quantile(counts, 0.5),
            "p99": quantile(counts, 0.99),
            "max": quantile(counts, 1.0),
        },
        "waiting": group.waiting,
        "time_over_one_worker": group.times_of(group.alone),
        "time_over_sync": None if group.rounds is None else group.times_of(group.rounds),
        "runs": {str(seed): dataclasses.asdict(one) for seed, one in group.found.items()},
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and standard deviation (n - 1); None of nothing.

    >>> spread([1.0, 2.0, 3.0])
    {'mean': 2.0, 'deviation': 1.0}
    """
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation}


def lacking(cells: Iterable[Cell], journal: Journal) -> Iterator[Cell]:
    """Those that are still to be made."""
    return (cell for cell in cells if journal.find(cell) is None)
