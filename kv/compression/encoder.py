"""One table's values on one link, compressed: with what was kept back before, and counted.

    kept = KeptRows("user", dim=8, limit=64 << 20)
    encoder = Encoder(Chain.parse("topk:0.1+fp16"), dim=8, kept=kept)
    coded = encoder.encode(keys, grads)       # coded.array travels, with coded.names(keys)
    encoder.give_back(keys, grads, coded)     # only if it was not applied after all
    decode(coded.array, rows=len(keys), dim=8)

A message is encoded once, however often it is sent. What a scheme leaves out stays in `kept` and is
added to the next message about the same rows, and only those: a key's residual waits until the key
is pushed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.compression import packets
from kv.compression.bases import Base
from kv.compression.coding import NAMED, OUTRIGHT, WHOLE, Absent, Mask, decode, encode, kind_of
from kv.compression.kept import Kept, give_back
from kv.compression.schemes import Chain, Delta, Selective, TopK, Zstd
from kv.kernels import residuals
from kv.kernels.jit import frozen

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
SMALL = 256  # bytes of values; fewer go as they are: coding takes longer than they do


@dataclass(slots=True)
class Counts:
    """What one link of one table has saved, and what that has cost.

    Attributes:
        messages: that were to be compressed.
        skipped: of those, that would have become larger and went as they were.
        released: messages that took along what was kept back before, while nothing is compressed.
        plain_nbytes, nbytes: of their values before and after.
        rows, rows_sent: in them, and those of them that went.
        restarted: runs of differences that were given up, see `kv.compression.bases`.
        returned: messages that were not applied, whose residuals are as before.
        unsettled: messages of which nobody knows; theirs are as if they were applied.
        seconds: that passed over it.
    """

    messages: int = 0
    skipped: int = 0
    released: int = 0
    plain_nbytes: int = 0
    nbytes: int = 0
    rows: int = 0
    rows_sent: int = 0
    restarted: int = 0
    returned: int = 0
    unsettled: int = 0
    seconds: float = 0.0

    def add(self, rows: int, rows_sent: int, plain_nbytes: int, nbytes: int) -> None:
        """Note a message."""
        self.messages += 1
        self.rows += rows
        self.rows_sent += rows_sent
        self.plain_nbytes += plain_nbytes
        self.nbytes += nbytes

    def to_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, frozen=True)
class Coded:
    """Values of one message.

    Attributes:
        array: what travels: uint8, a packet, or float32 where that would be larger.
        kept: bool, shape (rows,): rows that are in it; None: all.
        absent: what it says of the others.
        updates: float32, shape (rows that are in it, dim): what its receiver makes of differences.
        stream, run: of differences.
    """

    array: NDArray[Any]
    kept: Mask | None
    absent: Absent
    shape: tuple[int, int]
    updates: Values | None = None
    stream: int = 0
    run: int = 0

    @property
    def is_packed(self) -> bool:
        return self.array.dtype == np.uint8

    def names(self, names: Keys) -> Keys:
        """The keys that travel with it, of those that it was made for."""
        return names if self.kept is None or self.absent != OUTRIGHT else names[self.kept]

    def plain(self) -> tuple[Mask | None, Values]:
        """What its receiver gets: which of the rows (None: all), and their values."""
        if not self.is_packed:
            return None, self.array
        values = self.values if self.updates is None else self.updates
        if self.kept is None or self.absent != WHOLE:
            return self.kept, values
        whole = np.zeros(self.shape, np.float32)
        whole[self.kept] = values
        return None, whole

    @property
    def values(self) -> Values:
        """What the packet itself says of the rows that are in it."""
        rows, dim = self.shape
        if self.kept is not None and self.absent == OUTRIGHT:
            rows = int(self.kept.sum())
        return decode(self.array, rows, dim).values


class Encoder:
    """Compresses one table's values on one link.

    Args:
        chain: how.
        dim: floats in a row.
        kept: residuals, which links of one sender share; None: nothing is kept.
        by_row: whether rows are blocks of a dense table.
        memory: bytes of last updates for each stream, where the chain has differences.

    Attributes:
        is_on: whether it compresses; else values go as they are, with what was kept back of them.
    """

    def __init__(
        self,
        chain: Chain,
        dim: int,
        kept: Kept | None = None,
        by_row: bool = False,
        memory: int = 0,
    ) -> None:
        self.chain, self.dim, self._by_row = chain, dim, by_row
        self._memory, self._bases = memory, dict[int, Base]()
        self._lock = threading.Lock()  # of the bases
        self.kept = kept if chain.keeps_errors else None
        self.counts, self.is_on = Counts(), True
        self._is_sized = not any(map(chain.find, (Selective, TopK, Zstd)))  # by shape alone
        self._is_delta = chain.find(Delta) is not None
        self._kind = kind_of(chain)

    @property
    def is_idle(self) -> bool:
        """Whether values may go past it: it does not compress, and nothing is kept back."""
        return not self.is_on and (self.kept is None or self.kept.is_empty)

    def encode(self, names: Keys, values: Values, absent: Absent = NAMED, stream: int = 0) -> Coded:
        """Compress values together with their residuals; what is lost is the new residual.

        Args:
            names: uint64, shape (n,): keys, or numbers of blocks.
            values: float32, shape (n, dim), finite; only read.
            absent: how rows that are left out are told of, see `kv.compression.coding`.
            stream: to whom it goes, where the chain has differences.
        """
        began, rows = time.perf_counter(), len(values)
        if not self.is_on:
            return self._released(names, values)
        if values.nbytes < SMALL:
            coded = Coded(values, None, NAMED, (rows, self.dim))
        elif self._is_delta:
            with self._lock:
                coded = self._encoded(names, values, absent, stream)
        else:
            coded = self._encoded(names, values, absent, None)
        sent = rows if coded.kept is None else int(coded.kept.sum())
        self.counts.add(rows, sent, values.nbytes, coded.array.nbytes)
        self.counts.skipped += not coded.is_packed
        self.counts.seconds += time.perf_counter() - began
        return coded

    def _released(self, names: Keys, values: Values) -> Coded:
        """Values as they are, with what was kept back of these rows, which is so no more."""
        kept, x = self.kept, values
        if kept is not None:
            with kept.lock:
                rows = kept.look(frozen(names))
                x = np.empty(values.shape, np.float32)
                residuals.add_residuals(frozen(values), kept.data, rows, x)
                kept.release(frozen(names), rows)
            self.counts.released += 1
        return Coded(x, None, NAMED, (len(values), self.dim))

    def _encoded(self, names: Keys, values: Values, absent: Absent, stream: int | None) -> Coded:
        kept, base = self.kept, None
        if stream is not None:
            base = self._base(stream, names.size)
        shape = values.shape[0], self.dim
        if kept is None:
            coded, _ = self._coded(lambda x: np.copyto(x, values), shape, names, absent, base)
        else:
            with kept.lock:
                rows = kept.find(frozen(names))

                def fill(x: Values) -> None:
                    residuals.add_residuals(frozen(values), kept.data, rows, x)

                coded, errors = self._coded(fill, shape, names, absent, base)
                lost = residuals.put_residuals(kept.data, rows, frozen(errors))
                kept.losses.magnitude += lost
        return coded if stream is None else replace(coded, stream=stream)

    def _coded(
        self,
        fill: Callable[[Values], None],
        shape: tuple[int, int],
        names: Keys,
        absent: Absent,
        base: Base | None,
    ) -> tuple[Coded, Values]:
        """What `fill` puts into an array, as it travels, and what that does not say."""
        x = np.empty(shape, np.float32)
        fill(x)
        if not self._is_sized or self._sized_nbytes(shape) < x.nbytes:
            with_names = None if base is None else (base, names)
            packet = encode(self.chain, x, absent, self._by_row, with_names)
            if packet.frame.nbytes < x.nbytes:
                coded = Coded(packet.frame, packet.kept, packet.absent, shape)
                if base is not None:
                    fill(x)
                    coded = self._advanced(coded, names, x, base)
                return coded, x
            fill(x)
        return Coded(x, None, NAMED, shape), np.zeros(shape, np.float32)

    def _base(self, stream: int, rows: int) -> Base | None:
        """The last updates of a stream; None where there is no room for those of a message."""
        base = self._bases.setdefault(stream, Base(self.dim, self._memory))
        if not base.has_room(rows):
            base.begin()
        return base if base.has_room(rows) else None

    def _advanced(self, coded: Coded, names: Keys, x: Values, base: Base) -> Coded:
        """Note differences as sent; `x` becomes the error."""
        run, updates, kept = base.run, coded.values, coded.kept
        base.advance(names if kept is None else names[kept], updates)
        which = slice(None) if kept is None else kept
        limits = np.finfo(np.float32)
        with np.errstate(over="ignore"):
            x[which] = np.clip(x[which] - updates, limits.min, limits.max)
        return replace(coded, updates=updates, run=run)

    def restart(self, coded: Coded) -> None:
        """A receiver does not know what differences refer to: the next ones refer to nothing."""
        with self._lock:
            base = self._bases.get(coded.stream)
            if base is not None and base.run == coded.run:
                base.begin()
                self.counts.restarted += 1

    def _sized_nbytes(self, shape: tuple[int, int]) -> int:
        rows, dim = shape
        flags = packets.BY_ROW if self._by_row and self._kind == packets.SIGNS else 0
        flags |= packets.DELTA if self._is_delta else 0
        head = packets.Head(self._kind, flags, rows, dim, rows, rows * dim)
        return head.nbytes + head.fixed_nbytes

    def give_back(
        self, names: Keys, values: Values, coded: Coded, some: Mask | None = None
    ) -> None:
        """A message was refused, or failed: residuals become what they were without it.

        Its values are lost, as those of a push that fails without compression are; the error says
        so to whom pushed. Arguments as of `encode`, what that returned, and which of the rows are
        meant: bool, shape (n,); None: all.
        """
        self.counts.returned += 1
        if self.kept is None:
            return
        which, sent = coded.plain()
        if which is not None:
            whole = np.zeros(coded.shape, np.float32)
            whole[which] = sent
            sent = whole
        if some is not None:
            names, sent, values = names[some], sent[some], values[some]
        give_back(self.kept, frozen(names), sent, values)

    def give_back_rows(self, names: Keys, values: Values, sent: Values) -> None:
        """The same of some rows: the values that were pushed, and what was sent of them."""
        if self.kept is not None:
            give_back(self.kept, frozen(names), sent, values)


def saved_by(encoders: Iterable[Encoder | None]) -> int:
    """Bytes of values that these have saved together."""
    counts = [encoder.counts for encoder in encoders if encoder is not None]
    return sum(one.plain_nbytes - one.nbytes for one in counts)
