"""What a checkpoint says has been read: nothing that was not, and the rest is read once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.errors import LeaseError
from kv.leases.accounts import accounts_of
from kv.leases.book import LeaseBook
from kv.leases.events import Event
from kv.leases.pieces import DataSet, Span
from kv.leases.reading import ranges_read, records_in, spans_of
from kv.leases.shards import DataShards


def read_some(shards: DataShards, draw: st.DataObject) -> dict[int, set[tuple[int, int]]]:
    """Workers read pieces and stop amid some; what each part has read of which epoch."""
    workers = range(max(2, shards.data.parts))
    read: dict[int, set[tuple[int, int]]] = {part: set() for part in range(shards.data.parts)}
    for _ in range(draw.draw(st.integers(0, 12))):
        worker = draw.draw(st.sampled_from(workers))
        piece = shards.ask(worker, 1, 0.0).piece
        if piece is None:
            continue
        seen = draw.draw(st.integers(0, piece.stop - piece.start))
        shards.see(worker, 1, piece.number, seen)
        is_done = draw.draw(st.booleans())
        if is_done:
            shards.finish(worker, 1, piece.number, 0.0)
        stop = piece.stop if is_done else piece.start + seen
        read[piece.span.part] |= {(piece.epoch, at) for at in range(piece.start, stop)}
    return read


@given(
    draw=st.data(),
    records=st.integers(1, 700),
    epochs=st.integers(1, 2),
    unit=st.integers(1, 9),
    parts=st.integers(1, 3),
    again=st.integers(1, 3),
)
def test_a_job_of_any_shape_reads_the_rest_and_nothing_twice(
    draw: st.DataObject, records: int, epochs: int, unit: int, parts: int, again: int
) -> None:
    data = DataSet(name="d", records=records, epochs=epochs, unit=unit, parts=parts)
    former = LeaseBook(max(2, parts))
    read = read_some(former.open(data), draw)

    ranges = former.read()["d"]
    events: list[Event] = []
    book = LeaseBook(again, events.append)
    book.resume({"d": ranges})
    other = DataSet(name="d", records=records, epochs=epochs, unit=unit, parts=again)
    shards = book.open(other)
    for part in range(again):
        while (piece := shards.ask(part, 1, 0.0).piece) is not None:
            assert piece.start % unit == 0
            shards.finish(part, 1, piece.number, 0.0)

    counted = {(epoch, at) for epoch, start, stop in ranges for at in range(start, stop)}
    assert all(counted <= positions for positions in read.values())
    account = accounts_of(events)["d"]
    assert account.balances, account.problems
    assert account.resumed == sum(other.records_of(span) for span in spans_of(other, ranges))


def test_all_that_all_parts_have_seen_counts_where_they_keep_step() -> None:
    data = DataSet(name="d", records=1000, unit=10, parts=3)
    shards = DataShards(data, workers=3)
    for part, seen in enumerate((50, 30, 40)):
        piece = shards.ask(part, 1, 0.0).piece
        assert piece is not None
        shards.see(part, 1, piece.number, seen)

    assert ranges_read(shards) == [[1, 0, 30]]
    assert records_in(ranges_read(shards)) == 30


def test_a_batch_that_was_begun_is_read_again() -> None:
    shards = DataShards(DataSet(name="d", records=100, unit=10), workers=2)
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None

    shards.see(0, 1, piece.number, 17)

    assert ranges_read(shards) == [[1, 0, 10]]


def test_epochs_that_a_shorter_job_has_not_are_left_out() -> None:
    data = DataSet(name="d", records=100, epochs=1)

    assert spans_of(data, [[1, 0, 100], [2, 0, 50]]) == (Span(1, 0, 0, 100),)


@pytest.mark.parametrize("ranges", [[[1, 0, 101]], [[1, 5]], [[1, 7, 3]], [["1", 0, 5]], [3]])
def test_ranges_that_the_data_has_not_are_refused(ranges: list[list[int]]) -> None:
    with pytest.raises(LeaseError):
        spans_of(DataSet(name="d", records=100), ranges)


def test_what_was_read_of_a_set_that_is_not_opened_yet_is_kept() -> None:
    book = LeaseBook(1)

    book.resume({"d": [[1, 0, 20]]})

    assert book.read() == {"d": [[1, 0, 20]]}
    assert book.begun() == []
