"""Leases of training data as a state machine: each record counts once, whoever dies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv.errors import LeaseError
from kv.leases.accounts import accounts_of
from kv.leases.book import LeaseBook
from kv.leases.events import Event, Opened, Returned, pack_event, unpack_event
from kv.leases.pieces import DataSet, Piece, Span, Spans
from kv.leases.shards import DataShards

WORKERS = 3


def read_all(shards: DataShards, worker: int, life: int = 1, now: float = 0.0) -> list[Piece]:
    """One worker reads until it is told that all is done."""
    found: list[Piece] = []
    while True:
        answer = shards.ask(worker, life, now)
        if answer.piece is None:
            assert answer.is_over
            return found
        found.append(answer.piece)
        assert shards.finish(worker, life, answer.piece.number, now)


def test_one_worker_reads_every_epoch_in_order() -> None:
    shards = DataShards(DataSet(name="d", records=1000, epochs=2, unit=7), workers=1)

    pieces = read_all(shards, 0)

    spans = [piece.span for piece in pieces]
    assert spans == sorted(spans)
    assert list(Spans(spans)) == [Span(1, 0, 0, 1000), Span(2, 0, 0, 1000)]
    assert all(span.start % 7 == 0 for span in spans)
    assert shards.is_over


def test_a_worker_that_asks_again_gets_the_piece_that_it_holds() -> None:
    shards = DataShards(DataSet(name="d", records=100), workers=2)

    first = shards.ask(0, 1, 0.0)

    assert shards.ask(0, 1, 1.0) == first
    assert shards.ask(1, 1, 1.0) != first


def test_what_a_dead_worker_held_goes_to_the_next_that_asks() -> None:
    shards = DataShards(DataSet(name="d", records=100, unit=10), workers=2)
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None
    shards.see(0, 1, piece.number, 5)

    shards.lose(0, "died", 1.0)
    others = read_all(shards, 1)

    assert others[0].start == piece.start
    assert sum(p.records for p in others) == 100
    assert (shards.returned, shards.doubles) == (1, 5)


def test_a_piece_that_went_to_another_no_longer_counts_for_who_was_taken_for_dead() -> None:
    shards = DataShards(DataSet(name="d", records=10), workers=2)
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None
    shards.lose(0, "died", 1.0)
    read_all(shards, 1)

    assert not shards.finish(0, 1, piece.number, 2.0)

    shards.validate()


def test_a_worker_started_again_does_not_hold_what_its_former_self_held() -> None:
    shards = DataShards(DataSet(name="d", records=10), workers=1)
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None

    again = shards.ask(0, 2, 1.0).piece

    assert again is not None
    assert (again.span, shards.returned) == (piece.span, 1)
    assert not shards.finish(0, 1, piece.number, 2.0)
    with pytest.raises(LeaseError, match="started again since"):
        shards.ask(0, 1, 2.0)


def test_a_repeated_word_that_a_piece_is_done_counts_once() -> None:
    shards = DataShards(DataSet(name="d", records=10), workers=1)
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None

    assert shards.finish(0, 1, piece.number, 1.0)
    assert shards.finish(0, 1, piece.number, 2.0)

    assert sum(shards.data.records_of(span) for span in shards.done) == piece.records


def test_nobody_is_told_that_all_is_done_while_another_may_die_over_the_rest() -> None:
    shards = DataShards(DataSet(name="d", records=1), workers=2)
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None

    waiting = shards.ask(1, 1, 0.0)
    shards.finish(0, 1, piece.number, 1.0)

    assert (waiting.piece, waiting.is_over) == (None, False)
    assert shards.ask(1, 1, 2.0).is_over


def test_a_slow_worker_gets_fewer_records_and_nobody_waits_long_for_it() -> None:
    """Worker 1 takes five times as long for each record."""
    shards = DataShards(DataSet(name="d", records=1_000_000, unit=100), workers=2)
    cost = {0: 1e-4, 1: 5e-4}
    ends = {0: 0.0, 1: 0.0}
    done = {0: 0, 1: 0}
    open_ends = set(ends)
    while open_ends:
        worker = min(open_ends, key=ends.__getitem__)
        answer = shards.ask(worker, 1, ends[worker])
        if answer.piece is None:
            open_ends.discard(worker)
            if not answer.is_over:  # it would ask again while the other works on its last piece
                continue
        else:
            ends[worker] += answer.piece.records * cost[worker]
            done[worker] += answer.piece.records
            shards.finish(worker, 1, answer.piece.number, ends[worker])

    assert done[0] + done[1] == 1_000_000
    assert 4 < done[0] / done[1] < 6
    assert abs(ends[0] - ends[1]) < 0.05 * max(ends.values())


def test_pieces_end_at_whole_row_groups_where_these_are_not_far() -> None:
    shards = DataShards(DataSet(name="d", records=100_000, unit=10, grain=500), workers=2)

    pieces = read_all(shards, 0)

    at_grain = [piece for piece in pieces if piece.stop % 500 == 0]
    assert len(at_grain) > len(pieces) // 2


def test_in_parts_each_worker_gets_its_part_of_every_unit() -> None:
    data = DataSet(name="d", records=1003, unit=100, epochs=2, parts=WORKERS)
    shards = DataShards(data, WORKERS)

    records = [sum(p.records for p in read_all(shards, rank)) for rank in range(WORKERS)]

    assert sum(records) == 2 * 1003
    assert records == [2 * (10 * 33 + 1), 2 * (10 * 33 + 1), 2 * (10 * 34 + 1)]


def test_who_describes_a_data_set_differently_is_told_how() -> None:
    book = LeaseBook(2)
    book.open(DataSet(name="d", records=10))

    with pytest.raises(LeaseError, match=r"records = 11 where it was 10"):
        book.open(DataSet(name="d", records=11))


@pytest.mark.parametrize("records", [-1, 1.5, True, None])
def test_a_description_that_makes_no_sense_is_refused(records: object) -> None:
    with pytest.raises(LeaseError, match="records of d"):
        DataSet(name="d", records=records)  # type: ignore[arg-type]


def test_an_event_that_cannot_be_recorded_does_not_count() -> None:
    def refuse(event: Event) -> None:
        raise LeaseError("the disk is full")

    shards = DataShards(DataSet(name="d", records=10), 1, refuse)

    with pytest.raises(LeaseError):
        shards.ask(0, 1, 0.0)

    assert not shards.leases
    shards.validate()


def test_a_resumed_job_gives_only_what_the_former_one_had_not_done() -> None:
    events: list[Event] = []
    former = LeaseBook(1)
    data = DataSet(name="d", records=1000, epochs=2, unit=3)
    shards = former.open(data)
    for _ in range(3):
        piece = shards.ask(0, 1, 0.0).piece
        assert piece is not None
        shards.finish(0, 1, piece.number, 0.0)
    lost = shards.ask(0, 1, 0.0).piece
    assert lost is not None

    book = LeaseBook(1, events.append)
    book.resume(former.read())
    pieces = read_all(book.open(data), 0)

    assert pieces[0].start == lost.start
    account = accounts_of(events)["d"]
    assert account.balances, account.problems
    assert account.resumed == lost.start


@given(st.data())
def test_sets_of_spans_are_sets(data: st.DataObject) -> None:
    inside: set[tuple[int, int]] = set()
    spans = Spans()
    for _ in range(data.draw(st.integers(0, 12))):
        epoch, start = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 20))
        span = Span(epoch, 0, start, start + data.draw(st.integers(1, 6)))
        records = {(epoch, i) for i in range(span.start, span.stop)}
        assert (spans.overlap(span) is not None) == bool(records & inside)
        if not records & inside:
            spans.add(span)
            inside |= records
        elif records <= inside:
            spans.take(span)
            inside -= records
        spans.validate()
        assert {(s.epoch, i) for s in spans for i in range(s.start, s.stop)} == inside


class Cluster(RuleBasedStateMachine):
    """Workers that ask, work, die and come again; repeated words; a desk that restarts."""

    @initialize(
        records=st.integers(0, 60),
        epochs=st.integers(1, 2),
        unit=st.integers(1, 5),
        grain=st.integers(1, 9),
        in_parts=st.booleans(),
    )
    def begin(self, records: int, epochs: int, unit: int, grain: int, in_parts: bool) -> None:
        parts = WORKERS if in_parts else 1
        data = DataSet(
            name="d", records=records, epochs=epochs, unit=unit, grain=grain, parts=parts
        )
        self.events: list[Event] = []
        self.book = LeaseBook(WORKERS, self.events.append)
        self.shards = self.book.open(data)
        self.life = dict.fromkeys(range(WORKERS), 1)
        self.held: dict[int, Piece] = {}
        self.over: set[int] = set()
        self.now = 0.0
        self.old: list[tuple[int, int, int]] = []  # words of former lives, under way
        self.said: list[tuple[int, int, int]] = []  # words that may come again

    @rule(worker=st.integers(0, WORKERS - 1), seconds=st.floats(0, 10))
    def asks(self, worker: int, seconds: float) -> None:
        self.now += seconds
        if worker in self.over:
            return
        answer = self.shards.ask(worker, self.life[worker], self.now)
        if worker in self.held:
            assert answer.piece == self.held[worker]
        elif answer.piece is not None:
            self.held[worker] = answer.piece
        elif answer.is_over:
            self.over.add(worker)

    @rule(worker=st.integers(0, WORKERS - 1), share=st.floats(0, 1))
    def works(self, worker: int, share: float) -> None:
        piece = self.held.get(worker)
        if piece is not None:
            seen = int(share * piece.records)
            self.shards.see(worker, self.life[worker], piece.number, seen)

    @rule(worker=st.integers(0, WORKERS - 1))
    def finishes(self, worker: int) -> None:
        piece = self.held.pop(worker, None)
        if piece is not None:
            assert self.shards.finish(worker, self.life[worker], piece.number, self.now)
            self.said.append((worker, self.life[worker], piece.number))

    @rule(worker=st.integers(0, WORKERS - 1), is_noticed=st.booleans())
    def dies_and_comes_again(self, worker: int, is_noticed: bool) -> None:
        piece = self.held.pop(worker, None)
        if piece is not None:
            self.old.append((worker, self.life[worker], piece.number))
        if is_noticed:
            self.shards.lose(worker, "died", self.now)
        self.life[worker] += 1
        self.over.discard(worker)

    @precondition(lambda self: bool(getattr(self, "old", None)))
    @rule(data=st.data())
    def a_former_life_speaks(self, data: st.DataObject) -> None:
        worker, life, number = data.draw(st.sampled_from(self.old))
        if number not in self.shards.leases:  # else it has not been found dead: it counts
            assert not self.shards.finish(worker, life, number, self.now)

    @precondition(lambda self: bool(getattr(self, "said", None)))
    @rule(data=st.data())
    def a_word_comes_again(self, data: st.DataObject) -> None:
        worker, life, number = data.draw(st.sampled_from(self.said))
        self.shards.finish(worker, life, number, self.now)
        self.shards.see(worker, life, number, 1)

    @rule()
    def the_desk_is_started_again(self) -> None:
        lines = [pack_event(event) for event in self.events]
        self.book = LeaseBook(WORKERS, self.events.append)
        for line in lines:
            self.book.apply(unpack_event(line))
        self.shards = self.book.get("d")

    @invariant()
    def every_record_is_in_one_place(self) -> None:
        if hasattr(self, "shards"):
            self.shards.validate()

    def teardown(self) -> None:
        if not hasattr(self, "shards"):
            return
        for worker, piece in self.held.items():
            assert self.shards.finish(worker, self.life[worker], piece.number, self.now)
        for worker in range(WORKERS):  # those that are thought to live and do not are found dead
            self.shards.lose(worker, "died", self.now)
        for worker in range(WORKERS):
            read_all(self.shards, worker, self.life[worker] + 1, self.now)
        assert self.shards.is_over
        account = accounts_of(self.events)["d"]
        assert account.balances, account.problems
        returned = [event for event in self.events if isinstance(event, Returned)]
        assert account.returned == len(returned)
        assert account.doubles == sum(event.seen for event in returned)
        assert isinstance(self.events[0], Opened)


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
