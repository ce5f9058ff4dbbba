"""Compressed values at a dispatcher: unpacked as they come, compressed anew as they go on.

    worker-dispatcher   gradients are plain from here on, so that they can be added up
    dispatcher-server   what they have become, with residuals and last updates of the dispatcher's
    pull                rows are kept as they came, float32, and packed for each worker that asks

Packing the same rows twice loses nothing more: a scheme for pulls gives what it has made the same
codes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv.compressing import Encoders
from kv.compression.encoder import Encoder
from kv.compression.settings import DISPATCHER_SERVER
from kv.dispatcher.known_tables import KnownTable
from kv.packed import PACKED
from kv.spec import TableSpec
from kv.table_protocol import WITH_VALUES, table_id
from kv.unpacking import TO_DISPATCHERS, Unpacker
from van.message import Message

_VALUED = frozenset(map(int, WITH_VALUES))


class Packing:
    """What one dispatcher does about compressed values.

    Args:
        encoders: of what it sends to servers.
    """

    def __init__(self, encoders: Encoders) -> None:
        self.encoders, self._unpacker = encoders, Unpacker(TO_DISPATCHERS)

    def compress_when_busy(self, targets: Sequence[str]) -> None:
        """Let these go plain until `switch`, to servers and to workers."""
        self.encoders.compress_when_busy(targets)
        self._unpacker.compress_when_busy(targets)

    def switch(self, is_busy: bool) -> list[str]:
        """Compress them on a busy link, or no more; of which tables."""
        return sorted({*self.encoders.switch(is_busy), *self._unpacker.switch(is_busy)})

    def saved(self) -> int:
        """Bytes of values that compression has saved so far."""
        return self.encoders.saved() + self._unpacker.saved()

    def define(self, spec: TableSpec) -> Encoder | None:
        """Make ready for a table, which takes a while; what encodes its merged gradients."""
        self._unpacker.define(spec, table_id(spec.name))
        return self.encoders.of(spec, DISPATCHER_SERVER)

    def unpack(self, message: Message, tables: Sequence[KnownTable]) -> None:
        """Bring a push to what it would be without compression; its key lists are complete.

        Raises:
            PacketError: it has something else where packets should be.
            UnknownBaseError: it has differences from an update that is not known here.
        """
        meta = message.meta
        if meta.body and PACKED in meta.body and meta.cmd in _VALUED:
            self._unpacker.unpack(message, _numbered(tables))

    def pack(self, answer: Message, tables: Sequence[KnownTable]) -> None:
        """Compress the values of an answer to a pull, where their tables say so."""
        if self._unpacker.packs:
            self._unpacker.pack(answer, _numbered(tables))

    def forget(self, sender: int) -> None:
        """Drop what is remembered of a worker that has gone."""
        self._unpacker.forget(sender)

    def facts(self, table: KnownTable) -> dict[str, dict[str, Any]]:
        """By link what came and went compressed of a table, and under `residuals` what is kept."""
        sent = self.encoders.stats().get(table.spec.name, {})
        return {**self._unpacker.stats(table.id), **sent}


def _numbered(tables: Sequence[KnownTable]) -> list[tuple[int, KnownTable, int]]:
    return [(place, table, 0) for place, table in enumerate(tables)]
