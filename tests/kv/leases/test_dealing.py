"""Pieces that speed does not deal: by rank, and as an earlier run did."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.leases.book import LeaseBook
from kv.leases.dealing import ByRank, Dealing, Dealt
from kv.leases.pieces import DataSet, Span
from kv.replay.errors import DivergenceError, RecordError
from kv.replay.leases import RecordedLeases, ReplayedLeases

SETS = st.builds(
    DataSet,
    name=st.just("d"),
    records=st.integers(0, 3000),
    epochs=st.integers(0, 3),
    unit=st.integers(1, 30),
    grain=st.integers(1, 100),
)
Got = dict[int, list[Span]]


def read(data: DataSet, workers: int, dealing: Dealing, order: list[int]) -> Got:
    """What each worker gets that asks, and does its piece, in that order, then all in turn."""
    book = LeaseBook(workers, dealing=dealing)
    dealing.opened(data)
    shards = book.open(data)
    got: Got = {rank: [] for rank in range(workers)}
    open_ranks = set(got)
    for number, rank in enumerate([*order, *list(range(workers)) * 10_000]):
        if rank not in open_ranks:
            if not open_ranks:
                break
            continue
        answer = shards.ask(rank, 1, number * 0.7)
        if answer.is_silent:
            continue
        dealing.dealt("d", rank, Dealt(answer.piece and answer.piece.span, answer.is_over))
        if answer.piece is not None:
            got[rank].append(answer.piece.span)
            assert shards.finish(rank, 1, answer.piece.number, number * 0.7 + 0.1 * (1 + rank))
        elif answer.is_over:
            open_ranks.remove(rank)
    shards.validate()
    assert shards.is_over
    return got


@given(SETS, st.integers(1, 5), st.lists(st.integers(0, 4), max_size=40))
def test_by_rank_each_worker_gets_the_same_pieces_whoever_asks_when(
    data: DataSet, workers: int, order: list[int]
) -> None:
    asked = [rank for rank in order if rank < workers]

    one = read(data, workers, ByRank(workers), asked)
    other = read(data, workers, ByRank(workers), [])

    assert one == other
    assert all(span.start % data.unit == 0 for spans in one.values() for span in spans)


def test_by_rank_all_workers_have_work_in_a_small_data_set() -> None:
    data = DataSet(name="d", records=100, unit=10, epochs=2)

    got = read(data, 3, ByRank(3), [])

    assert [sum(s.stop - s.start for s in got[rank]) for rank in range(3)] == [80, 60, 60]


def test_by_rank_what_a_former_job_has_read_is_not_read_again() -> None:
    data = DataSet(name="d", records=100, unit=10)
    book = LeaseBook(2, dealing=ByRank(2))
    book.resume({"d": [[1, 0, 30]]})

    pieces = [book.open(data).ask(rank, 1, 0.0).piece for rank in (0, 1)]

    assert [(piece.start, piece.stop) for piece in pieces if piece] == [(40, 60), (30, 40)]


@given(
    SETS,
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_a_replay_deals_as_the_recorded_run_did_whoever_asks_when(
    tmp_path_factory: pytest.TempPathFactory,
    data: DataSet,
    workers: int,
    order: list[int],
    later: list[int],
) -> None:
    path = tmp_path_factory.mktemp("record") / "leases.record"
    recorded = RecordedLeases(path)
    first = read(data, workers, recorded, [rank for rank in order if rank < workers])
    recorded.close()

    again = read(data, workers, ReplayedLeases(path), [r for r in later if r < workers])

    assert again == first


def record(path: Path, *told: tuple[int, Dealt]) -> ReplayedLeases:
    writer = RecordedLeases(path)
    writer.opened(DataSet(name="d", records=100, unit=10))
    for worker, dealt in told:
        writer.dealt("d", worker, dealt)
    writer.close()
    return ReplayedLeases(path)


def test_a_piece_that_is_not_free_yet_is_waited_for_in_silence(tmp_path: Path) -> None:
    whole = Dealt(Span(1, 0, 0, 100))
    replayed = record(tmp_path / "r", (0, whole), (1, whole))
    book = LeaseBook(2, dealing=replayed)
    shards = book.open(DataSet(name="d", records=100, unit=10))

    assert shards.ask(1, 1, 0.0).piece is not None  # what both get, worker 1 gets first here
    assert shards.ask(0, 1, 0.0).is_silent
    shards.lose(1, "left", 0.0)

    assert shards.ask(0, 1, 0.0).piece is not None


def test_what_a_worker_heard_again_and_again_is_written_once(tmp_path: Path) -> None:
    waits, over = Dealt(), Dealt(is_over=True)
    replayed = record(tmp_path / "r", (0, waits), (0, waits), (0, over), (0, over))
    data = DataSet(name="d", records=100, unit=10)
    free = LeaseBook(1).open(data)._free

    assert [replayed.deal(data, free, 0) for _ in range(3)] == [waits, over, over]


def test_a_worker_that_asks_beyond_its_record_or_for_other_data_hears_so(tmp_path: Path) -> None:
    replayed = record(tmp_path / "r", (0, Dealt(is_over=True)))
    data = DataSet(name="d", records=100, unit=10)

    with pytest.raises(DivergenceError, match="worker 1 asks for a piece of d where the record"):
        LeaseBook(2, dealing=replayed).open(data).ask(1, 1, 0.0)
    with pytest.raises(DivergenceError, match="data set d has records = 90 where it was 100"):
        replayed.opened(DataSet(name="d", records=90, unit=10))
    with pytest.raises(DivergenceError, match="data set e was not read"):
        replayed.opened(DataSet(name="e", records=90))


def test_a_record_of_leases_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leases.record"
    record(path, (0, Dealt(Span(1, 0, 0, 100))))
    content = path.read_bytes()

    for fake in (content[:-4], content[:60], content.replace(b"100", b"101", 1), b""):
        path.write_bytes(fake)
        with pytest.raises(RecordError, match=r"leases\.record"):
            ReplayedLeases(path)
