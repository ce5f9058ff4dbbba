"""What was measured: one figure a round, for each peer and case; as JSON and back."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

VERSION = 1  # of the JSON

Case = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure in each round.

    Attributes:
        workload, what: where it comes from, such as `tables` and `push`.
        peer: whose figure it is.
        unit: `keys/s`, `rows/s`, `B/s`, `s`, or empty for a plain number.
        case: sizes and settings that tell it from others.
        values: one a round, in the order of the rounds.
    """

    workload: str
    what: str
    peer: str
    unit: str
    case: Case
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")

    def fits(self, wanted: Mapping[str, Any]) -> bool:
        """Whether fields or parts of the case are as `wanted` says."""
        own = {"workload": self.workload, "what": self.what, "peer": self.peer, "unit": self.unit}
        own |= self.case
        return all(own.get(name) == value for name, value in wanted.items())


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A peer that could not be measured, and why."""

    workload: str
    peer: str
    problem: str


@dataclass
class Results:
    """All of a run.

    Attributes:
        facts: machine, versions, settings; text by name.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def add(
        self,
        workload: str,
        what: str,
        peer: str,
        unit: str,
        case: Case,
        values: Iterable[float],
    ) -> None:
        """Note a figure; one without any round is left out."""
        if figures := tuple(values):
            self.measurements.append(
                Measurement(
                    workload=workload,
                    what=what,
                    peer=peer,
                    unit=unit,
                    case=dict(case),
                    values=figures,
                )
            )

    def select(self, **wanted: Any) -> Iterator[Measurement]:
        """The measurements whose fields or case are as wanted."""
        return (found for found in self.measurements if found.fits(wanted))

    def find(self, **wanted: Any) -> Measurement | None:
        """The first measurement that is as wanted."""
        return next(self.select(**wanted), None)

    def to_json(self, verdicts: Iterable[Any] = ()) -> str:
        """Everything as JSON, with the verdicts on the targets."""
        measurements = [
            {**asdict(found), "median": found.median, "min": found.low, "max": found.high}
            for found in self.measurements
        ]
        document = {
            "version": VERSION,
            "facts": self.facts,
            "targets": [verdict.to_dict() for verdict in verdicts],
            "measurements": measurements,
            "failures": [asdict(failure) for failure in self.failures],
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; the verdicts follow from the measurements."""
        document = json.loads(text)
        derived = ("median", "min", "max")
        found = cls(document["facts"])
        for entry in document["measurements"]:
            found.add(**{name: value for name, value in entry.items() if name not in derived})
        found.failures += [Failure(**entry) for entry in document["failures"]]
        return found


def ratio(ours: Measurement, theirs: Measurement) -> float:
    """How many times as fast `ours` is: the median over rounds, each round by itself.

    A machine that slows down for a while slows both figures of a round, and so not their ratio.
    """
    pairs = list(zip(ours.values, theirs.values, strict=False))
    if len(ours.values) != len(theirs.values):
        pairs = [(ours.median, theirs.median)]
    quotients = [a / b if ours.is_rate else b / a for a, b in pairs]
    return statistics.median(quotients)
