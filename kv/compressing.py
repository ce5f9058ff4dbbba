"""A worker's gradients compressed: one encoder a table, and what becomes of each message.

A message is encoded once, when the push is made, and is sent again as it is. Its residuals count
as sent from then on. If it is answered by an error they become what they were before: the push is
lost, as it is without compression, but nothing that was kept back before is. A message cut anew
for other owners carries what was encoded, outright.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.compression.coding import NAMED, OUTRIGHT, WHOLE, Absent, Mask
from kv.compression.encoder import Coded, Encoder, saved_by
from kv.compression.kept import Kept, KeptBlocks, KeptRows, magnitude_of
from kv.compression.rehearsal import play
from kv.compression.settings import ALL, KINDS, Rules, is_target
from kv.cutting import Cut, Piece, Range
from kv.delivery.recutting import Recut, Root
from kv.dense import BlockShare
from kv.packed import PACKED
from kv.placement import slot_of
from kv.pushing import EmptyFor, Writing
from kv.spec import TableSpec, dense_keys
from kv.table_protocol import Command, table_id
from van.buffers import Buffers

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class Encoders:
    """The encoders of one sender, by table and link; those of one table share its residuals.

    Args:
        rules: of tables that are defined without compression.
        is_open: whether answers to a request are to come.

    Attributes:
        are_used: whether there is any.
    """

    def __init__(self, rules: Rules, is_open: Callable[[int], bool]) -> None:
        self.rules, self._is_open, self.are_used = rules, is_open, False
        self._defined: dict[str, str] = {}  # kinds of tables, by name
        self._followed: list[tuple[int, Settling]] = []
        self._lock = threading.Lock()
        self._kept: dict[int, Kept] = {}
        self._encoders: dict[tuple[int, str], Encoder | None] = {}
        self._names: dict[int, str] = {}
        self._when_busy: frozenset[str] = frozenset()
        self._is_busy = True

    def compress_when_busy(self, targets: Sequence[str]) -> None:
        """Let tables go plain until `switch` says that the link is busy; before any is defined.

        Args:
            targets: names of tables, `sparse`, `dense`, or `*`.
        """
        self._when_busy, self._is_busy = frozenset(targets), False

    def switch(self, is_busy: bool) -> list[str]:
        """Compress what is to be so on a busy link, or no more; the names of those tables."""
        with self._lock:
            self._is_busy = is_busy
            changed = set()
            for (identity, _), encoder in self._encoders.items():
                name = self._names[identity]
                if encoder is not None and self._is_by_need(name) and encoder.is_on != is_busy:
                    encoder.is_on = is_busy
                    changed.add(name)
        return sorted(changed)

    def saved(self) -> int:
        """Bytes of values that compression has saved so far."""
        return saved_by(list(self._encoders.values()))

    def _is_by_need(self, table: str) -> bool:
        return is_target(self._when_busy, table, self._defined.get(table, ""))

    def resolve(self, spec: TableSpec) -> TableSpec:
        """The definition with the job's compression, where it has none of its own."""
        self._defined[spec.name] = spec.kind
        found = spec.compression or self.rules.of(spec.name, spec.kind)
        return replace(spec, compression=None if found is None or found.is_none else found)

    def unused(self) -> list[str]:
        """Settings that name a table which was not defined."""
        known = {*self._defined, *KINDS, ALL}
        by_need = sorted(target for target in self._when_busy if target not in known)
        rules = [f"[compression] {key}" for key in self.rules.unused(self._defined)]
        return [*rules, *(f"[balance] when_busy: {target}" for target in by_need)]

    def of(self, spec: TableSpec, link: str) -> Encoder | None:
        """The encoder of a resolved definition on a link; None: values go as they are."""
        if spec.compression is None:
            return None
        chain, identity = spec.compression.link(link), table_id(spec.name)
        if chain is None:
            return None
        self._defined[spec.name] = spec.kind
        with self._lock:
            place = identity, link
            if place not in self._encoders:
                play(chain)
                kept = self._residuals(spec, identity) if chain.keeps_errors else None
                encoder = self._encoders[place] = Encoder(
                    chain, spec.dim, kept, spec.kind == "dense", spec.compression.memory
                )
                encoder.is_on = self._is_busy or not self._is_by_need(spec.name)
            self._names[identity], self.are_used = spec.name, True
            return self._encoders[place]

    def _residuals(self, spec: TableSpec, identity: int) -> Kept:
        if identity not in self._kept:
            assert spec.compression is not None
            self._kept[identity] = (
                KeptBlocks(dense_keys(spec).blocks.size, spec.dim)
                if spec.kind == "dense"
                else KeptRows(f"{spec.name}, residuals", spec.dim, spec.compression.memory)
            )
        return self._kept[identity]

    def follow(self, request: int, settling: Settling) -> None:
        """Note what becomes of a push, also if it ends without all answers."""
        with self._lock:
            followed, self._followed = self._followed, [(request, settling)]
        for first, other in followed:
            if other.is_open and self._is_open(first):
                self._followed.append((first, other))
            else:
                other.end()

    def stats(self) -> dict[str, dict[str, dict[str, float]]]:
        """By table and link what was saved, `Counts` as numbers; `residuals` of it what is kept."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (identity, link), encoder in list(self._encoders.items()):
            if encoder is not None:
                found.setdefault(self._names[identity], {})[link] = encoder.counts.to_dict()
        for identity, kept in list(self._kept.items()):
            found[self._names[identity]]["residuals"] = {
                "rows": kept.in_use,
                "nbytes": kept.nbytes,
                "magnitude": magnitude_of(kept),
                "dropped_rows": kept.losses.rows,
                "dropped_magnitude": kept.losses.magnitude,
            }
        return found

    def kept_back(self) -> tuple[int, float]:
        """Rows of all residuals, and about the sum of their absolute values."""
        kept = list(self._kept.values())
        return sum(one.in_use for one in kept), sum(map(magnitude_of, kept))


class CodedWrite:
    """A write whose values travel compressed; fits `kv.question.Entry`.

    Args:
        write: the values as they are, which are kept until the messages are answered.
        encoder: of its table on the link it goes.
        buffers: memory for the values.
    """

    __slots__ = ("_buffers", "_coded", "_encoder", "_write", "cut")

    def __init__(self, write: Writing, encoder: Encoder, buffers: Buffers) -> None:
        self._write, self._encoder, self._buffers = write, encoder, buffers
        self.cut: Cut = write.cut
        self._coded: dict[tuple[int, int], Coded] = {}

    @property
    def has_keys(self) -> bool:
        return self._write.has_keys

    def pack(self, server: int, part: Range, empty: EmptyFor) -> None:
        """As `kv.pushing` packs, in memory that nobody else needs to see."""
        self._write.pack(server, part, lambda _, shape, dtype: self._buffers.empty(shape, dtype))

    def compress(self, server: int, part: Range, absent: Absent) -> int:
        """Encode what was packed, once, after everything that may refuse the push; bytes saved."""
        if not self.has_keys:
            absent = WHOLE  # blocks have no names that could be left out
        names, values = self._parts(server, part)
        coded = self._encoder.encode(names, values, absent, server)
        self._coded[server, part.start] = coded
        return values.nbytes - coded.array.nbytes

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """What is sent about a range of a server's rows."""
        coded = self._coded[server, part.start]
        names = [coded.names(self._parts(server, part)[0])] if self.has_keys else []
        return [*names, coded.array]

    def plain(self, server: int, part: Range) -> list[NDArray[Any]]:
        """The same as if there were no compression, with the values that a server gets."""
        which, values = self._coded[server, part.start].plain()
        if not self.has_keys:
            return [values]
        names = self._parts(server, part)[0]
        return [names if which is None else names[which], values]

    def kept(self, server: int, part: Range) -> Mask | None:
        """Which rows of a range are sent: bool, shape (rows,); None: all."""
        return self._coded[server, part.start].kept

    def is_packed(self, server: int, part: Range) -> bool:
        """Whether it is sent as a packet."""
        return self._coded[server, part.start].is_packed

    def share(self, server: int) -> BlockShare | None:
        return self._write.share(server)

    def restart(self, server: int, part: Range) -> None:
        """The server does not know what differences in the message refer to."""
        self._encoder.restart(self._coded[server, part.start])

    def give_back(self, server: int, part: Range, failed: Mask | None = None) -> None:
        """A message was not applied, or its rows of these slots were not."""
        names, values = self._parts(server, part)
        coded, which = self._coded[server, part.start], None
        if failed is not None:
            share = self.share(server)
            which = failed[slot_of(names if share is None else share.keys_of())]
        self._encoder.give_back(names, values, coded, which)

    def give_back_some(self, server: int, part: Range, names: Keys, sent: Values) -> None:
        """Some of the rows of a message, which went again in others, were not applied."""
        known, values = self._parts(server, part)
        self._encoder.give_back_rows(names, values[np.searchsorted(known, names)], sent)

    def leave(self) -> None:
        """Nobody knows whether a message was applied."""
        self._encoder.counts.unsettled += 1

    def _parts(self, server: int, part: Range) -> tuple[Keys, Values]:
        share = self._write.share(server)
        *names, values = self._write.arrays(server, part)
        return (names[0] if share is None else share.blocks.astype(np.uint64)), values


def compress(
    writes: Sequence[Writing | CodedWrite],
    pieces: Sequence[Piece],
    command: int,
    is_named: bool,
    counts: Counter[str],
) -> Settling | None:
    """Encode all messages of a push that are to be compressed; None: none is.

    Args:
        is_named: whether its key lists are remembered, so that all keys are told.
        counts: of `value_bytes_saved`.
    """
    if not any(isinstance(write, CodedWrite) for write in writes):
        return None
    absent = WHOLE if command == Command.PUSH_PULL else NAMED if is_named else OUTRIGHT
    for piece in pieces:
        for part in piece.ranges:
            write = writes[part.place]
            if isinstance(write, CodedWrite):
                counts["value_bytes_saved"] += write.compress(piece.server, part, absent)
    return Settling(writes, pieces)


class Settling:
    """Which messages of a compressed push have no answer; any thread.

    Args:
        entries: of the push, by place.
    """

    def __init__(self, entries: Sequence[Writing | CodedWrite], pieces: Sequence[Piece]) -> None:
        self._entries = entries
        self._lock = threading.Lock()
        self._open = dict.fromkeys(pieces)
        self._restarted: set[Piece] = set()
        self._roots: list[tuple[Root, Piece]] = []

    @property
    def is_open(self) -> bool:
        """Whether a message as it was first cut has no answer."""
        return bool(self._open)

    def settle(self, piece: Piece, is_applied: bool, failed: Mask | None = None) -> None:
        """A message has its answer; a second one changes nothing.

        Args:
            failed: bool, shape (NUM_SLOTS,): where some servers have applied it, the others' slots.
        """
        with self._lock:
            if piece not in self._open:
                return
            del self._open[piece]
        if not is_applied:
            for write, part in self._writes(piece):
                write.give_back(piece.server, part, failed)

    def mark(self, piece: Piece, body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The body of a message, with the numbers of arrays that are packets, all keys counted."""
        packed, place = [], 0
        for part in piece.ranges:
            write = self._entries[part.place]
            place += write.has_keys
            if isinstance(write, CodedWrite) and write.is_packed(piece.server, part):
                packed.append(place)
            place += 1
        return {**(body or {}), PACKED: packed} if packed else body

    def restart(self, piece: Piece) -> bool:
        """A server does not know what differences refer to; False: it has said so before."""
        with self._lock:
            if piece in self._restarted or piece not in self._open:
                return False
            self._restarted.add(piece)
        for write, part in self._writes(piece):
            write.restart(piece.server, part)
        return True

    def recut(self, piece: Piece, root: Root) -> None:
        """A message was cut anew: those in its place, of that root, are settled by themselves."""
        with self._lock:
            self._open.pop(piece, None)
            self._roots.append((root, piece))

    def give_back_recut(self, recut: Recut) -> None:
        """Rows of a message that was cut anew were not applied."""
        piece = next(piece for root, piece in self._roots if root is recut.root)
        for write, part in self._writes(piece):
            for _, rows in recut.parts:
                if rows.place == part.place and rows.values is not None:
                    write.give_back_some(piece.server, part, rows.names, rows.values)

    def end(self, unsent: Sequence[Piece] = ()) -> None:
        """No more answers come; of `unsent` messages none was to come."""
        for piece in unsent:
            self.settle(piece, is_applied=False)
        with self._lock:
            left, self._open = list(self._open), {}
        for piece in left:
            for write, _ in self._writes(piece):
                write.leave()

    def _writes(self, piece: Piece) -> list[tuple[CodedWrite, Range]]:
        found = [(self._entries[part.place], part) for part in piece.ranges]
        return [(write, part) for write, part in found if isinstance(write, CodedWrite)]
