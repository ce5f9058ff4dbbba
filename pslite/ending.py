"""How a job has ended, in words: its last lines, and what it has survived."""

from __future__ import annotations

from collections.abc import Sequence

from pslite.lifecycle import Failure, Lifecycle


def done(name: str, seconds: float, size: str, life: Lifecycle) -> str:
    """A job that has ended well, and what it has survived."""
    told = [
        f"{node} was restarted {times} time{'s' if times > 1 else ''}"
        for node, times in life.restarts.items()
    ]
    told += [f"{node} was lost ({failure.problem})" for node, failure in life.lost.items()]
    times = life.beginnings
    if times:
        told.append(f"the job began again {times} time{'s' if times > 1 else ''}")
    survived = f"; {', '.join(told)}" if told else ""
    return f"job {name} done in {seconds:.1f} s ({size}){survived}"


def stopped(name: str, seconds: float, failure: Failure) -> str:
    """A job that has not."""
    who = f"{failure.node}: " if failure.node else ""
    return f"job {name} stopped after {seconds:.1f} s: {who}{failure.problem}"


def last_lines(failure: Failure, lines: Sequence[str]) -> str:
    """What the node that failed has printed at the end."""
    block = "".join(f"\n    {line}" for line in lines)
    return f"the last lines of {failure.node}:{block}"
