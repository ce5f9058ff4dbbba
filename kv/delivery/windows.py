"""What a server remembers of the requests that it has had, so that each counts once.

A stream is a maker of requests: (sender, customer) in one life. Its watermark is the oldest
timestamp without an answer, as the maker says with each request; below it copies are late and mean
nothing. From the watermark on there is an entry by timestamp for each request that changed
something: `None`, all of this server's slots have it, which is nearly always so; or an `Entry`,
that says which, why it failed, or what was answered.

The slots of an entry are written out only when slots move: then "all of mine" would change its
meaning. A server applies all tables of a request or none; but who has copies hears of them one by
one, and may have to take over in the midst: what came so is kept by table. `export` gives what is
known of some slots to their next owner or to a backup, `adopt` takes it.

`kv.requests.windows` is the same with every slot of every push written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgpack
import numpy as np
from numpy.typing import NDArray

from kv.dispatcher.constituents import Constituent
from kv.placement import NUM_SLOTS
from van.message import Message, Meta

Mask = NDArray[np.bool_]
"""Which slots, bool (1024,)."""

Failure = tuple[str, str, int]
"""Type, text and node of what was raised."""

_FORMAT = 2


def no_mask() -> Mask:
    return np.zeros(NUM_SLOTS, np.bool_)


@dataclass(slots=True)
class Entry:
    """One request that changed something, or failed for good.

    Args:
        applied: packed bits of the slots that have it.
        failed: packed bits of the slots on which it failed.
        failure: why.
        answer: what was answered, where that cannot be made again.
        tables: by id, packed bits of the slots where that table alone has it.
        ahead: by id of a table, the keys whose rows it has had already: uint64, increasing.
    """

    applied: bytes = b""
    failed: bytes = b""
    failure: Failure | None = None
    answer: Message | None = None
    tables: dict[int, bytes] = field(default_factory=dict)
    ahead: dict[int, NDArray[np.uint64]] = field(default_factory=dict)


class Stream:
    """One life of a maker of requests.

    Attributes:
        watermark: copies below it are late.
        entries: by timestamp.
        in_hand: (timestamp, piece) of the requests that are held or worked on.
    """

    __slots__ = ("entries", "in_hand", "incarnation", "watermark")

    def __init__(self, incarnation: int, watermark: int = 0) -> None:
        self.incarnation, self.watermark = incarnation, watermark
        self.entries: dict[int, Entry | None] = {}
        self.in_hand: set[tuple[int, int]] = set()

    def advance(self, oldest: int) -> None:
        """The maker has the answers of all that lies below `oldest`."""
        self.watermark = oldest
        if self.entries:
            for timestamp in [t for t in list(self.entries) if t < oldest]:
                self.entries.pop(timestamp, None)

    def has_come(self, timestamp: int, piece: int) -> bool:
        """Whether a request has been applied or refused for good, or is in hand."""
        return (
            timestamp < self.watermark
            or timestamp in self.entries
            or (timestamp, piece) in self.in_hand
        )


class Windows:
    """The streams of all makers. Called by the thread that drives the van, except `record`.

    Attributes:
        owned: the slots of this server; None: it has no slots, or they never move.
        streams: by sender, app and customer.
    """

    def __init__(self, owned: Mask | None = None) -> None:
        self.owned = owned
        self.streams: dict[tuple[int, int, int], Stream] = {}  # sender, app, customer
        self._floors: dict[int, int] = {}  # sender -> lowest incarnation that is heard

    def stream(self, meta: Meta) -> Stream | None:
        """The stream of a request, its watermark brought forward; None: that life is over."""
        stream = self.streams.get((meta.sender, meta.app, meta.customer))
        if stream is None or stream.incarnation != meta.incarnation:
            stream = self._meet(meta.sender, meta.incarnation, meta.app, meta.customer)
            if stream is None:
                return None
        if meta.oldest > stream.watermark:
            stream.advance(meta.oldest)
        return stream

    def _meet(self, sender: int, incarnation: int, app: int, customer: int) -> Stream | None:
        if incarnation < self._floors.get(sender, 0):
            return None
        self.fence(sender, incarnation - 1)
        name = (sender, app, customer)
        if name not in self.streams:
            self.streams[name] = Stream(incarnation)
        return self.streams[name]

    def fence(self, sender: int, incarnation: int) -> None:
        """Hear `sender` no more up to this life, and forget what it asked."""
        if incarnation + 1 > self._floors.get(sender, 0):
            self._floors[sender] = incarnation + 1
        for name in [n for n, s in self.streams.items() if n[0] == sender]:
            if self.streams[name].incarnation < self._floors[sender]:
                del self.streams[name]

    def find(self, meta: Meta) -> Stream | None:
        """The stream of a request that was taken; None: that life is over. Any thread."""
        stream = self.streams.get((meta.sender, meta.app, meta.customer))
        return stream if stream is not None and stream.incarnation == meta.incarnation else None

    def record(
        self,
        stream: Stream,
        meta: Meta,
        slots: Mask | None = None,
        failure: Failure | None = None,
        answer: Message | None = None,
        table: int | None = None,
    ) -> None:
        """Remember that a request was applied, or with `failure` failed for good. Any thread.

        Args:
            slots: on these; None: on all of this server's.
            answer: what is answered, if that cannot be made again.
            table: id of the one table in which it was applied; None: in all that it is about.
        """
        timestamp, entries = meta.timestamp, stream.entries
        is_known = timestamp in entries
        entry = entries.get(timestamp)
        if slots is None and failure is None and answer is None and entry is None:
            entries[timestamp] = None
            return
        if entry is None:
            entry = Entry(_packed(self._all()) if is_known else b"", answer=answer)
        where = self._all() if slots is None else slots
        if table is not None:
            entry.tables[table] = _packed(_unpacked(entry.tables.get(table, b"")) | where)
        elif failure is None:
            entry.applied = _packed(self.applied(entry) | where)
        else:
            entry.failed, entry.failure = _packed(self.failed(entry) | where), failure
        entries[timestamp] = entry

    def inside(self, one: Constituent) -> Stream | None:
        """The stream of a push inside a merged one; None: that life is over."""
        stream = self._meet(one.sender, one.incarnation, one.app, one.customer)
        if stream is not None and one.oldest > stream.watermark:
            stream.advance(one.oldest)
        return stream

    def record_inside(
        self,
        one: Constituent,
        slots: Mask | None,
        failure: Failure | None = None,
        table: int | None = None,
    ) -> None:
        """As `record`, of a push inside a merged one; nothing, if that life is over."""
        stream = self.inside(one)
        if stream is not None and one.timestamp >= stream.watermark:
            self.record(stream, Meta(timestamp=one.timestamp), slots, failure, table=table)

    def record_ahead(self, one: Constituent, table: int, keys: NDArray[np.uint64]) -> None:
        """Remember that these rows of a push inside a merged one were applied ahead of the rest."""
        stream = self.inside(one)
        if stream is None or one.timestamp < stream.watermark or not keys.size:
            return
        entry = stream.entries.setdefault(one.timestamp, Entry())
        if entry is not None:  # else all of it is
            entry.ahead[table] = keys

    def applied(self, entry: Entry | None, table: int | None = None) -> Mask:
        """The slots that have it, in all tables or at least in that one."""
        if entry is None:
            return self._all()
        applied = _unpacked(entry.applied)
        if table is not None and table in entry.tables:
            applied |= _unpacked(entry.tables[table])
        return applied

    def failed(self, entry: Entry | None) -> Mask:
        """The slots on which it failed."""
        return no_mask() if entry is None else _unpacked(entry.failed)

    # -- slots that move ------------------------------------------------------------------------

    def own(self, owned: Mask) -> None:
        """Have other slots from now on. What all of the former had is written out."""
        for stream in self.streams.values():
            for timestamp, entry in stream.entries.items():
                if entry is None:
                    stream.entries[timestamp] = Entry(_packed(self._all()))
        self.owned = owned

    def export(self, slots: Mask) -> bytes:
        """What is known of `slots`, for their next owner, a backup or a checkpoint."""
        streams = []
        for (sender, app, customer), stream in list(self.streams.items()):
            entries = []
            for timestamp, entry in list(stream.entries.items()):
                applied, failed = self.applied(entry) & slots, self.failed(entry) & slots
                tables = _tables_within(entry, slots)
                if applied.any() or failed.any() or tables:
                    failure = entry.failure if entry is not None and failed.any() else None
                    named = [list(item) for item in tables.items()]
                    entries.append([timestamp, _packed(applied), _packed(failed), failure, named])
            name = [sender, stream.incarnation, app, customer, stream.watermark]
            streams.append([*name, entries])
        floors = [list(item) for item in self._floors.items()]
        packed: bytes = msgpack.packb([_FORMAT, floors, streams])
        return packed

    def adopt(self, slots: Mask, blob: bytes, *, keep: bool = False) -> None:
        """Take over what `export` gave for `slots`.

        Lives and watermarks only rise; what was known of the slots from an earlier stay here is
        replaced, since their rows are, unless with `keep` it is about the same stay.

        Raises:
            ValueError: `blob` is of another format.
        """
        version, floors, streams = msgpack.unpackb(blob)
        if version != _FORMAT:
            raise ValueError(f"windows of format {version} came; this release has {_FORMAT}")
        if not keep:
            self.forget(slots)
        for sender, floor in floors:
            self.fence(sender, floor - 1)
        for sender, incarnation, app, customer, watermark, entries in streams:
            stream = self._meet(sender, incarnation, app, customer)
            if stream is None:  # that life is known to be over
                continue
            if watermark > stream.watermark:
                stream.advance(watermark)
            for timestamp, applied, failed, failure, tables in entries:
                self._adopt(stream, timestamp, _unpacked(applied) & slots)
                if failure is not None:
                    self._adopt(stream, timestamp, _unpacked(failed) & slots, tuple(failure))
                for table, bits in tables:
                    self._adopt(stream, timestamp, _unpacked(bits) & slots, table=table)

    def _adopt(
        self,
        stream: Stream,
        timestamp: int,
        slots: Mask,
        failure: Failure | None = None,
        table: int | None = None,
    ) -> None:
        if slots.any():
            self.record(stream, Meta(timestamp=timestamp), slots, failure, table=table)

    def forget(self, slots: Mask) -> None:
        """Drop what is known of `slots`, which have left."""
        for stream in self.streams.values():
            for timestamp, entry in list(stream.entries.items()):
                applied, failed = self.applied(entry) & ~slots, self.failed(entry) & ~slots
                tables = _tables_within(entry, ~slots)
                if applied.any() or failed.any() or tables:
                    failure = None if entry is None else entry.failure
                    answer = None if entry is None else entry.answer
                    stream.entries[timestamp] = Entry(
                        _packed(applied), _packed(failed), failure, answer, tables
                    )
                else:
                    del stream.entries[timestamp]

    # -- helping ----------------------------------------------------------------------------------

    def _all(self) -> Mask:
        return np.ones(NUM_SLOTS, np.bool_) if self.owned is None else self.owned

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self.streams.values()))

    def __len__(self) -> int:
        """How many entries are kept."""
        return sum(len(stream.entries) for stream in self.streams.values())

    def validate(self) -> None:
        """Assert what must always hold."""
        for (sender, *_), stream in self.streams.items():
            assert stream.incarnation >= self._floors.get(sender, 0), f"{sender} is over"
            for timestamp, entry in stream.entries.items():
                assert timestamp >= stream.watermark, f"{timestamp} is past"
                if entry is not None:
                    assert (entry.failure is None) == (not self.failed(entry).any())


def _tables_within(entry: Entry | None, slots: Mask) -> dict[int, bytes]:
    """An entry's slots by table, those among `slots`."""
    if entry is None or not entry.tables:
        return {}
    within = {table: _unpacked(bits) & slots for table, bits in entry.tables.items()}
    return {table: _packed(mask) for table, mask in within.items() if mask.any()}


def _packed(mask: Mask) -> bytes:
    return np.packbits(mask).tobytes()


def _unpacked(bits: bytes) -> Mask:
    if not bits:
        return no_mask()
    return np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.bool_)
