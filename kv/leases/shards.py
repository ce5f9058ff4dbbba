"""Who gets which piece of a data set: a pure state machine of leases.

A worker that asks gets a piece and has the lease of it until it says that it is done, dies or
leaves; in the latter cases the piece is free again, for whoever asks next. A piece's records count
when its holder says done, and once only: a lease names the worker's life, so that who was taken for
dead and is not can no longer count what others got in its place.

How much a worker gets follows from how fast it has been: about `seconds` worth of work, and towards
the end ever smaller shares of what is left, so that all end at about the same time and a slow
worker does not sit on a large rest (guided self-scheduling: Polychronopoulos and Kuck, 1987). The
only worker of a job gets pieces of one size, so that it does the same each time.

All that lasts is changed by events alone. Each is handed to `record` before it counts; the same
events make the same state again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kv.errors import LeaseError
from kv.leases.dealing import Dealt, by_speed
from kv.leases.events import Done, Event, Leased, Opened, Returned
from kv.leases.pieces import DataSet, Piece, Span, Spans

SECONDS = 3.0  # of work in a piece: what a death costs against what asking costs
FIRST_UNITS = 64  # of the first piece of a worker, whose speed is not known
SHARES = 2  # into how many pieces for each worker what is left is cut
GROWTH = 8  # how much larger than a worker's last piece its next may be
SMOOTHING = 0.5  # weight of the latest piece in a worker's speed

Deal = Callable[[DataSet, Spans, int], Dealt | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker hears: a piece; or that it is all done; or neither, so it should ask again."""

    piece: Piece | None = None
    is_over: bool = False
    is_silent: bool = False  # it is to hear nothing, and so to ask again


@dataclass(slots=True)
class Lease:
    """A piece that a worker's life has and has not done."""

    piece: Piece
    worker: int
    life: int
    since: float | None  # None: it was given before a restart of the desk
    seen: int = 0  # positions from its start of which gradients are pushed


@dataclass(slots=True)
class _Worker:
    life: int
    speed: float | None = None  # records a second
    size: int = 0  # records of its last piece


class DataShards:
    """The leases of one data set.

    Args:
        data: its description.
        workers: how many workers are expected to read it.
        record: called with each event before it counts; what it raises undoes the event.
        done: what a former job has read of it.
        seconds: of work that a piece should be.
        deal: decides in the place of speeds, see `Dealing.deal`; where there are parts nobody need.
    """

    def __init__(
        self,
        data: DataSet,
        workers: int,
        record: Callable[[Event], None] = lambda event: None,
        *,
        done: Iterable[Span] = (),
        seconds: float = SECONDS,
        deal: Deal = by_speed,
    ) -> None:
        self.data = data
        self.leases: dict[int, Lease] = {}
        self.done = Spans(done)
        self.returned = self.doubles = 0  # pieces that came back; their records seen before
        self._expected, self._record, self._seconds = max(1, workers), record, seconds
        self._deal = deal
        self._workers: dict[int, _Worker] = {}
        self._gone: set[int] = set()
        self._finished: dict[
            int, tuple[int, int]
        ] = {}  # worker -> life, its last piece that counts
        self._free = Spans(data.spans())
        for span in self.done:
            self._free.take(span)
        self._left = sum(data.records_of(span) for span in self._free)
        self._next = 0

    @property
    def has_begun(self) -> bool:
        """Whether a piece was ever given away, here or by a former job."""
        return self._next > 0 or len(self.done) > 0

    @property
    def is_over(self) -> bool:
        """Whether all is done."""
        return not self.leases and not len(self._free)

    # -- what workers say -----------------------------------------------------------------

    def ask(self, worker: int, life: int, now: float) -> Answer:
        """A piece for a worker, the one that it holds if there is one: the answer may be lost.

        Args:
            worker: its rank; where there are parts, that of the part it gets.
            life: grows from start to start of this worker. What a former one held is free again.
            now: in seconds.
        Raises:
            LeaseError: a former life asks, or a rank that has no part.
        """
        asker = self._meet(worker, life, now)
        for lease in self.leases.values():
            if (lease.worker, lease.life) == (worker, life):
                return Answer(lease.piece)
        dealt = self._deal(self.data, self._free, worker) if self.data.parts == 1 else None
        if dealt is not None and dealt.span is None:
            return Answer(is_over=dealt.is_over, is_silent=dealt.is_silent)
        span = self._choose(worker, asker) if dealt is None else dealt.span
        if span is None:
            is_over = not any(self._concerns(lease, worker) for lease in self.leases.values())
            return Answer(is_over=is_over)
        piece = Piece(self._next, span, self.data.records_of(span))
        self._happen(Leased(self.data.name, piece, worker, life), now)
        asker.size = piece.records
        return Answer(piece)

    def see(self, worker: int, life: int, piece: int, seen: int) -> None:
        """The holder has pushed the gradients of `seen` positions from the start of the piece.

        Of these, its part. They never get fewer again.
        """
        lease = self._held(worker, life, piece)
        if lease is not None:
            lease.seen = max(lease.seen, min(seen, lease.piece.stop - lease.piece.start))

    def finish(self, worker: int, life: int, piece: int, now: float) -> bool:
        """The holder has done the piece; False if it has not got it (any more): it does not count.

        Of a repeat it is said again whether the piece counted.
        """
        lease = self._held(worker, life, piece)
        if lease is None:
            return self._finished.get(worker) == (life, piece)
        self._happen(Done(self.data.name, piece, worker, life), now)
        self._measure(lease, now)
        return True

    def lose(self, worker: int, why: str, now: float, *, before: int | None = None) -> None:
        """A worker died or left: what it holds is free again.

        Args:
            before: only what its lives below this one hold.
        """
        for number, lease in list(self.leases.items()):
            if lease.worker == worker and (before is None or lease.life < before):
                seen = self._records_seen(lease)
                self._happen(Returned(self.data.name, number, worker, lease.life, seen, why), now)
        if before is None:
            self._gone.add(worker)

    # -- events ---------------------------------------------------------------------------

    def _happen(self, event: Event, now: float) -> None:
        self._record(event)
        self.apply(event, now)

    def apply(self, event: Event, now: float | None = None) -> None:
        """Let an event count; with those of a ledger, in order, the state is what it was.

        Raises:
            LeaseError: it does not follow from those before.
        """
        if isinstance(event, Leased):
            self._free.take(event.piece.span)
            self._left -= event.piece.records
            self._next = max(self._next, event.piece.number + 1)
            lease = Lease(event.piece, event.worker, event.life, now)
            self.leases[event.piece.number] = lease
        elif isinstance(event, Done | Returned):
            held = self.leases.pop(event.piece, None)
            if held is None or (held.worker, held.life) != (event.worker, event.life):
                problem = f"worker {event.worker} does not hold piece {event.piece}"
                raise LeaseError(f"data set {self.data.name}: {problem}, or not in that life")
            if isinstance(event, Done):
                self.done.add(held.piece.span)
                self._finished[event.worker] = (event.life, event.piece)
            else:
                self._free.add(held.piece.span)
                self._left += held.piece.records
                self.returned += 1
                self.doubles += event.seen
        else:
            assert isinstance(event, Opened), event

    # -- deciding -------------------------------------------------------------------------

    def _meet(self, worker: int, life: int, now: float) -> _Worker:
        if not 0 <= worker < max(self.data.parts, 1 << 20) or (
            self.data.parts > 1 and worker >= self.data.parts
        ):
            raise LeaseError(f"data set {self.data.name} has no part for worker {worker}")
        known = self._workers.get(worker)
        if known is not None and life < known.life:
            raise LeaseError(f"worker {worker} was started again since; its former self gets none")
        if known is None or life > known.life:
            self.lose(worker, "started again", now, before=life)
            known = self._workers[worker] = _Worker(life)
            self._gone.discard(worker)
        return known

    def _held(self, worker: int, life: int, piece: int) -> Lease | None:
        lease = self.leases.get(piece)
        return lease if lease is not None and (lease.worker, lease.life) == (worker, life) else None

    def _records_seen(self, lease: Lease) -> int:
        span = lease.piece.span
        stop = span.start + lease.seen
        return self.data.records_of(Span(span.epoch, span.part, span.start, stop))

    def _part(self, worker: int) -> int:
        return worker if self.data.parts > 1 else 0

    def _concerns(self, lease: Lease, worker: int) -> bool:
        """Whether the lease's piece might yet come to this worker."""
        return lease.piece.span.part == self._part(worker)

    def _choose(self, worker: int, asker: _Worker) -> Span | None:
        first = self._free.first(self._part(worker))
        if first is None:
            return None
        if self._expected == 1:  # a clock must not choose where a batch is not asked for ahead
            size = FIRST_UNITS * self.data.unit
            stop = (first.start // size + 1) * size
            return Span(first.epoch, first.part, first.start, min(first.stop, stop))
        stop = min(first.stop, first.start + self._size(asker))
        grain = self.data.grain
        if stop < first.stop and stop // grain * grain - first.start >= (stop - first.start) // 2:
            stop = stop // grain * grain  # whole row groups are read, where that is not far
        units = max(1, -(-(stop - first.start) // self.data.unit))
        return Span(
            first.epoch,
            first.part,
            first.start,
            min(first.stop, first.start + units * self.data.unit),
        )

    def _size(self, asker: _Worker) -> int:
        """How many positions of an epoch this worker should get."""
        if self.data.parts > 1:  # nobody else could do them: only what a restart repeats counts
            return FIRST_UNITS * self.data.unit
        living = [
            known.speed
            for worker, known in self._workers.items()
            if worker not in self._gone and known.speed is not None
        ]
        team = max(self._expected - len(self._gone), 1)
        mean = sum(living) / len(living) if living else None
        relative = asker.speed / mean if asker.speed and mean else 1.0
        cuts = SHARES * team if team > 1 else 1  # alone it does all anyway
        share = int(self._left / cuts * min(relative, 1.0))
        if asker.speed is None:
            return min(share, FIRST_UNITS * self.data.unit)
        wanted = min(int(asker.speed * self._seconds), GROWTH * max(asker.size, self.data.unit))
        return min(share, wanted)

    def _measure(self, lease: Lease, now: float) -> None:
        known = self._workers.get(lease.worker)
        if known is None or lease.since is None or now <= lease.since:
            return
        speed = lease.piece.records / (now - lease.since)
        known.speed = (
            speed if known.speed is None else SMOOTHING * speed + (1 - SMOOTHING) * known.speed
        )

    # -- what others want to know ---------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """The state in figures, msgpack types."""
        return {
            "data": self.data.pack(),
            "left": self._left,
            "leased": [
                [lease.worker, lease.piece.pack(), self._records_seen(lease)]
                for lease in self.leases.values()
            ],
            "done": [span.pack() for span in self.done],
            "returned": self.returned,
            "doubles": self.doubles,
        }

    def validate(self) -> None:
        """Check that each record is free, leased or done, and only one of these."""
        self._free.validate()
        self.done.validate()
        everything = Spans()
        leased = [lease.piece.span for lease in self.leases.values()]
        for span in (*self._free, *leased, *self.done):
            everything.add(span)
        assert sorted(everything) == sorted(Spans(self.data.spans()))
        assert self._left == sum(self.data.records_of(span) for span in self._free)
