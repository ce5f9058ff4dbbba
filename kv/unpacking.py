"""Values that came compressed to a server or dispatcher, in their places, and those of its answers.

What a packet says is checked against the keys that came and the table's definition, so nobody
allocates more because of it than keys have promised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kv.compression.bases import Base
from kv.compression.coding import decode
from kv.compression.encoder import Counts, Encoder, saved_by
from kv.compression.packets import DELTA
from kv.compression.rehearsal import play
from kv.compression.settings import (
    DISPATCHER_SERVER,
    LINKS,
    PULL,
    WORKER_DISPATCHER,
    WORKER_SERVER,
    is_target,
)
from kv.errors import PacketError
from kv.kernels.jit import frozen
from kv.packed import PACKED, numbers_of
from kv.spec import TableSpec
from kv.table_messages import is_whole
from postoffice.node import Role, role_and_rank
from van.message import Message, Meta

_NO_NAMES = np.empty(0, np.uint64)

TO_SERVERS = {Role.WORKER: WORKER_SERVER, Role.DISPATCHER: DISPATCHER_SERVER}
TO_DISPATCHERS = {Role.WORKER: WORKER_DISPATCHER}


class PackedTable(Protocol):
    """What there is to know of a table whose values come compressed."""

    @property
    def id(self) -> int: ...

    @property
    def spec(self) -> TableSpec: ...

    @property
    def is_dense(self) -> bool: ...

    @property
    def names(self) -> NDArray[np.uint64]:
        """Of a dense table the numbers of its blocks here."""


PackedTables = Sequence[tuple[int, PackedTable, int]]
"""The tables of a request, as `kv.table_messages.Tables` has them."""


class Unpacker:
    """What one node does about compressed values, and what it has seen of them.

    Any thread may call it; of one sender's messages about one table one thread at a time.

    Args:
        links: on which values come, by the role of who sends them.

    Attributes:
        packs: whether any table's values are pulled compressed.
    """

    def __init__(self, links: Mapping[Role, str] = TO_SERVERS) -> None:
        self.packs, self._links = False, links
        self._when_busy: frozenset[str] = frozenset()
        self._is_busy = True
        self._by_need: dict[str, Encoder] = {}  # of pulled values, by table's name
        self._lock = threading.Lock()  # of the counts
        self._encoders: dict[int, Encoder] = {}  # of pulled values, by table
        self._bases: dict[tuple[int, int], tuple[int, Base]] = {}  # by sender and table; lives
        self._counts: dict[tuple[int, str], Counts] = {}

    def compress_when_busy(self, targets: Sequence[str]) -> None:
        """Let pulled values go plain until `switch`; as `kv.compressing.Encoders` has it."""
        self._when_busy, self._is_busy = frozenset(targets), False

    def switch(self, is_busy: bool) -> list[str]:
        """Compress pulled values that are to be so on a busy link, or no more; of which tables."""
        self._is_busy = is_busy
        changed = [name for name, encoder in self._by_need.items() if encoder.is_on != is_busy]
        for name in changed:
            self._by_need[name].is_on = is_busy
        return sorted(changed)

    def saved(self) -> int:
        """Bytes that compression has saved of pulled values."""
        return saved_by(list(self._encoders.values()))

    def define(self, spec: TableSpec, identity: int) -> None:
        """A table is defined here."""
        links = () if spec.compression is None else map(spec.compression.link, LINKS)
        for given in filter(None, links):
            play(given)
        chain = None if spec.compression is None else spec.compression.pull
        if chain is not None and identity not in self._encoders:
            encoder = Encoder(chain, spec.dim, by_row=spec.kind == "dense")
            if is_target(self._when_busy, spec.name, spec.kind):
                self._by_need[spec.name], encoder.is_on = encoder, self._is_busy
            self._encoders[identity] = encoder
            self.packs = True

    def unpack(self, message: Message, tables: PackedTables) -> None:
        """Bring keys and values of a push that has packets to what they would be without.

        Called again on such a message it changes nothing.

        Raises:
            PacketError: it has none such.
        """
        numbers = numbers_of(message.meta.body.pop(PACKED, []))
        arrays, place = message.arrays, 0
        for _, table, _ in tables:
            has_keys = not is_whole(message.meta, table)
            value = place + has_keys
            if value in numbers:
                numbers.remove(value)
                if value >= len(arrays):
                    raise PacketError(f"array {value} of a request that has {len(arrays)}")
                self._unpack_table(message, table, place if has_keys else None, value)
            place = value + 1
        if numbers:
            raise PacketError(f"values, not arrays {sorted(numbers)}")

    def _unpack_table(
        self, message: Message, table: PackedTable, keys: int | None, value: int
    ) -> None:
        arrays, frame = message.arrays, message.arrays[value]
        rows = table.names.size if keys is None else arrays[keys].size
        began = time.perf_counter()
        found = decode(frame, rows, table.spec.dim)
        if found.head.flags & DELTA:
            names = table.names.astype(np.uint64) if keys is None else arrays[keys]
            found = found.on(self._base(message.meta, table), names)
        found = found.whole()
        if found.kept is not None:
            if keys is None:
                raise PacketError(f"all blocks of table {table.spec.name}")
            arrays[keys] = frozen(arrays[keys][found.kept])
        arrays[value] = frozen(found.values)
        with self._lock:
            counts = self._counts_of(table, message)
            counts.add(rows, found.head.count, 4 * rows * table.spec.dim, frame.nbytes)
            counts.seconds += time.perf_counter() - began

    def _base(self, meta: Meta, table: PackedTable) -> Base:
        """The last updates of a table from the life of a sender."""
        life, base = self._bases.get((meta.sender, table.id), (0, None))
        if base is None or life != meta.incarnation:
            limit = table.spec.compression.memory if table.spec.compression else 0
            base = Base(table.spec.dim, limit)
            self._bases[meta.sender, table.id] = meta.incarnation, base
        return base

    def forget(self, sender: int) -> None:
        """Drop what is remembered of a sender that has gone."""
        for place in [place for place in list(self._bases) if place[0] == sender]:
            del self._bases[place]

    def _counts_of(self, table: PackedTable, message: Message) -> Counts:
        role, _ = role_and_rank(message.meta.sender)
        link = self._links.get(role, WORKER_SERVER)
        return self._counts.setdefault((table.id, link), Counts())

    def pack(self, answer: Message, tables: PackedTables) -> None:
        """Compress the values of an answer to a pull, where their tables say so."""
        packed = []
        for place, (_, table, _) in enumerate(tables if answer.arrays else ()):
            encoder = self._encoders.get(table.id)
            if encoder is not None and encoder.is_on:
                values = answer.arrays[place]
                coded = encoder.encode(_NO_NAMES, values)
                if coded.is_packed:
                    answer.arrays[place] = coded.array
                    packed.append(place)
        if packed:
            answer.meta.body = {**(answer.meta.body or {}), PACKED: packed}

    def stats(self, identity: int) -> dict[str, dict[str, float]]:
        """By link what came and went compressed of a table, `Counts` as numbers."""
        found = {
            link: c.to_dict()
            for (table, link), c in list(self._counts.items())
            if table == identity
        }
        if identity in self._encoders:
            found[PULL] = self._encoders[identity].counts.to_dict()
        return found
