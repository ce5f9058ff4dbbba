"""Whose turn it is by a record: any order of arrival becomes the recorded one, or an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.replay.entry import ENTRY, Entry
from kv.replay.errors import DivergenceError
from kv.replay.recordfile import Head, Record
from kv.replay.script import Script
from kv.table_protocol import Command
from van.message import Message, Meta

HEAD = Head(server=1, servers=2, workers=3, mode="async", seed=4, threads=1)
LISTS = [["user", "w"], []]
SPECS = {"user": {"name": "user", "dim": 8, "lr": 0.1}}
LIMIT = 60.0


def entry(
    timestamp: int, rank: int = 0, digest: int = 0, tables: int = 0, command: int = Command.PUSH
) -> Entry:
    return Entry(timestamp, digest, rank, tables, command)


def script_of(entries: list[Entry], ended: str = "") -> Script:
    array = np.array([tuple(one) for one in entries], ENTRY)
    return Script(Record(Path("r"), HEAD, LISTS, SPECS, array, ended), LIMIT)


def come(
    script: Script, one: Entry, *, tables: list[str] | None = None, body: object = None
) -> None:
    names = LISTS[one.tables] if tables is None else tables
    meta = Meta(sender=9 + 2 * one.rank, timestamp=one.timestamp, cmd=one.command, body=body)
    script.come(Message(meta), one, names)


def gone(script: Script, now: float = 0.0) -> list[tuple[int, int]]:
    """Those whose turn it is by now: (rank, timestamp)."""
    found = []
    while (message := script.next(now)) is not None:
        found.append(((message.meta.sender - 9) // 2, message.meta.timestamp))
    return found


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Entry], list[int]]:
    """A record, in which requests may come again, and an order of arrival.

    The same request in the record twice is one that had to wait or was refused for now: it comes
    again after its first turn.
    """
    made = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=15))
    entries = [entry(timestamp, rank) for rank, timestamp in made]
    return entries, draw(st.permutations(range(len(entries))))


@given(runs())
def test_requests_go_in_the_recorded_order_however_they_come(
    run: tuple[list[Entry], list[int]],
) -> None:
    entries, arrivals = run
    script, went = script_of(entries), []

    for place in arrivals:
        come(script, entries[place])
        went += gone(script)

    assert went == [(one.rank, one.timestamp) for one in entries]
    assert script.is_over
    script.check_end()
    script.check_time(1e9)


def test_nothing_goes_before_its_turn() -> None:
    script = script_of([entry(0), entry(0, rank=1), entry(1)])

    come(script, entry(1))
    come(script, entry(0, rank=1))
    assert gone(script) == []
    come(script, entry(0))

    assert gone(script) == [(0, 0), (1, 0), (0, 1)]


def test_an_unknown_request_is_named_with_the_expected_one() -> None:
    script = script_of([entry(5, rank=2, command=Command.PULL)])

    with pytest.raises(DivergenceError) as caught:
        come(script, entry(6, rank=2))

    assert caught.value.node == "server 1"
    assert "the push of worker 2 (its request 6) about user, w" in str(caught.value)
    assert "expected is the pull of worker 2 (its request 5) about user, w" in str(caught.value)


def test_a_request_that_comes_more_often_than_recorded_is_unknown() -> None:
    script = script_of([entry(5), entry(5), entry(6)])
    come(script, entry(5))
    come(script, entry(5))

    with pytest.raises(DivergenceError, match="does not know the push of worker 0"):
        come(script, entry(5))


@pytest.mark.parametrize(
    ("came", "tables", "problem"),
    [
        (entry(0, command=Command.PULL), None, "expected was the push .* there came the pull"),
        (entry(0), ["item", "w"], "about user, w, and there came .* about item, w"),
        (entry(0, digest=1), None, "another one than it was: its worker computes"),
    ],
)
def test_a_request_that_is_another_one_is_told_apart(
    came: Entry, tables: list[str] | None, problem: str
) -> None:
    with pytest.raises(DivergenceError, match=problem):
        come(script_of([entry(0)]), came, tables=tables)


def test_a_table_that_is_defined_otherwise_is_named_with_what_differs() -> None:
    script = script_of([entry(0, command=Command.DEFINE)])
    spec = {"name": "user", "dim": 16, "lr": 0.1}

    with pytest.raises(DivergenceError, match="table user has dim = 16 where it was 8"):
        come(script, entry(0, digest=1, command=Command.DEFINE), tables=["user", "w"], body=spec)


def test_the_end_of_a_record_is_an_error_for_whatever_comes_then() -> None:
    script = script_of([entry(0)], ended="worker 1: ValueError")
    come(script, entry(0))
    assert gone(script) == [(0, 0)]

    with pytest.raises(DivergenceError, match=r"ends after 1 requests \(.*worker 1: ValueError"):
        come(script, entry(1))


def test_a_request_that_does_not_come_is_an_error_after_the_limit() -> None:
    script = script_of([entry(n) for n in range(6)])
    script.check_time(100.0)  # the clock begins
    come(script, entry(0))
    assert gone(script, now=150.0) == [(0, 0)]
    for timestamp in range(2, 6):
        come(script, entry(timestamp))

    script.check_time(150.0 + LIMIT - 1)
    with pytest.raises(DivergenceError) as caught:
        script.check_time(150.0 + LIMIT)

    assert "for 60 s" in str(caught.value)
    assert "push of worker 0 (its request 1) about user, w has not come" in str(caught.value)
    assert "held back are push of worker 0 (its request 2)" in str(caught.value)
    assert "and 1 more" in str(caught.value)


def test_a_run_that_ends_before_its_record_is_an_error() -> None:
    script = script_of([entry(0), entry(1, tables=1, command=Command.STEP)])
    come(script, entry(0))
    gone(script)

    with pytest.raises(DivergenceError, match="1 requests did not come, first the end of a step"):
        script.check_end()
