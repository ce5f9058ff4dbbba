"""What simulations found, as a table for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pslite.config import section_to_text
from pslite.simulate.config import SimulateConfig
from pslite.simulate.outcome import Outcome, Repeated, mean, mean_of, quantile

HEAD = ("workers", "mode", "nodes", "steps/s", "idle", "staleness", "p50", "p99", "max", "dropped")


def table(found: Sequence[Repeated]) -> str:
    """One line a mode and number of workers; means where there are repeats."""
    rows = [HEAD, *map(_row, found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEAD))]
    return "\n".join("  ".join(_cells(row, widths)) for row in rows)


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names at the left, numbers at the right."""
    return [
        cell.ljust(width) if HEAD[place] in ("mode", "nodes") else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _row(one: Repeated) -> tuple[str, ...]:
    first = one.first
    counts = one.staleness
    return (
        str(first.workers),
        first.mode,
        first.nodes,
        f"{one.steps_per_second:.1f}",
        f"{one.idle_share:.1%}",
        f"{mean_of(counts):.2f}",
        *(str(quantile(counts, share)) for share in (0.5, 0.99, 1.0)),
        f"{mean(outcome.dropped for outcome in one.outcomes):.0f}",
    )


def to_json(config: SimulateConfig, found: Sequence[Repeated]) -> str:
    """All settings and figures; equal settings give equal bytes."""
    body = {
        "settings": section_to_text("simulate", config.resolved),
        "simulations": [
            {
                "mode": one.first.mode,
                "workers": one.first.workers,
                "nodes": one.first.nodes,
                "steps_per_second": one.steps_per_second,
                "idle_share": one.idle_share,
                "runs": [_facts(outcome) for outcome in one.outcomes],
            }
            for one in found
        ],
    }
    return json.dumps(body, indent=1) + "\n"


def _facts(one: Outcome) -> dict[str, Any]:
    return {
        "steps_per_second": one.steps_per_second,
        "idle_share": one.idle_share,
        "seconds": max(one.lasting),
        "staleness": {
            "mean": mean_of(one.staleness),
            "p50": quantile(one.staleness, 0.5),
            "p99": quantile(one.staleness, 0.99),
            "max": quantile(one.staleness, 1.0),
            "counts": {str(age): one.staleness[age] for age in sorted(one.staleness)},
        },
        "dropped": one.dropped,
        "messages": one.messages,
        "nbytes": one.nbytes,
    }
