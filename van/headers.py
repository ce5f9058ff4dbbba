"""Reads headers of messages; what has come before is known by its bytes and not checked again.

Between two messages about the same thing little changes: the timestamps, the clock. A header's
first fields (who speaks to whom, about what) and its last ones (arrays, body) are remembered as
the bytes they came in. A header that begins and ends with such bytes is taken apart only between
them. As msgpack says of each value where it ends, that gives what taking it apart whole would:
`decode_header`, which reads all others, and says what is wrong.

Pure: no socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from van.codec import HEADER_LENGTH, Descriptor, are_clocks, decode_header
from van.config import VanConfig
from van.message import Meta

_FIRST, _LAST = 11, 19  # fields 0 to 10 are the start, those from 19 on the end
_HEAD = msgpack.packb([0] * HEADER_LENGTH)[:3]  # of a list with as many values
_MIDDLE = msgpack.packb([0] * (_LAST - _FIRST))[:1]
_NUMBERS = (int,) * 7  # types of fields 11 to 17
_INT32 = (1 << 31) - 1
_PLAIN = frozenset((bool, int, float, str, type(None)))
_LONGEST = 512  # bytes of headers of which anything is remembered
_MOST = 64  # starts, and ends, that are remembered
_MOST_SIZES = 4  # of ends, that are looked for
_LEARN_EVERY = 8  # headers that are not known: learning costs half as much as reading one

_End = tuple[tuple[Any, ...], dict[str, Any] | None, Sequence[Descriptor]]
"""Fields 19 to 23; the body; the arrays."""


class HeaderReader:
    """Reads the headers that come in one way.

    Args:
        config: limits.
    """

    def __init__(self, config: VanConfig) -> None:
        self._config = config
        self._longest = min(_LONGEST, config.max_header)
        self._starts: dict[bytes, tuple[Any, ...]] = {}  # fields 1 to 10
        self._ends: dict[bytes, _End] = {}
        self._start_size = 0
        self._end_sizes: list[int] = []
        self._unknown = 0

    def read(self, header: bytes) -> tuple[Meta, Sequence[Descriptor]]:
        """The header's fields and what arrays should follow; the body is nobody else's.

        Raises:
            CodecError, ProtocolVersionError: as `decode_header` does.
        """
        size = self._start_size
        start = self._starts.get(header[:size])
        if start is not None and len(header) <= self._longest:
            for end_size in self._end_sizes:
                end = self._ends.get(header[-end_size:])
                middle = None if end is None else _middle(header[size:-end_size])
                if end is not None and middle is not None:
                    fields, body, descriptors = end
                    body = None if body is None else body.copy()
                    return Meta(*(*start, *middle, *fields, body)), descriptors
        return self._read_whole(header)

    def _read_whole(self, header: bytes) -> tuple[Meta, Sequence[Descriptor]]:
        meta, descriptors = decode_header(header, self._config)
        if len(header) <= self._longest and meta.error is None:
            if self._unknown % _LEARN_EVERY == 0:
                self._learn(header, meta, descriptors)
            self._unknown += 1
        return meta, descriptors

    def _learn(self, header: bytes, meta: Meta, descriptors: Sequence[Descriptor]) -> None:
        """Remember start and end of a header that is in order, if both are as we would write."""
        body = meta.body
        if body is not None and not _is_flat(body):
            return  # a copy would share what is in it
        fields = msgpack.unpackb(header, use_list=False, strict_map_key=False)
        start = _HEAD + msgpack.packb(fields[:_FIRST])[1:]
        end = msgpack.packb(fields[_LAST:])[1:]
        if not (header.startswith(start) and header.endswith(end)):
            return
        if max(len(self._starts), len(self._ends)) >= _MOST:
            self._starts.clear()
            self._ends.clear()
            self._end_sizes.clear()
        kinds = meta.control, meta.flags, meta.kind
        self._starts[start] = fields[1:6] + kinds + fields[9:_FIRST]
        self._ends[end] = fields[_LAST:24], body if body is None else body.copy(), descriptors
        self._start_size = len(start)
        if len(end) not in self._end_sizes:
            self._end_sizes = [len(end), *self._end_sizes[: _MOST_SIZES - 1]]


def _is_flat(body: Any) -> bool:
    return type(body) is dict and _PLAIN.issuperset(map(type, body.values()))


def _middle(raw: bytes) -> tuple[Any, ...] | None:
    """Fields 11 to 18, if `raw` is those and nothing else and they are in order."""
    try:
        fields: tuple[Any, ...] = msgpack.unpackb(
            _MIDDLE + raw, use_list=False, strict_map_key=False
        )
    except Exception:  # msgpack raises many kinds
        return None
    clocks = fields[7]
    if (
        tuple(map(type, fields[:7])) != _NUMBERS
        or min(fields[:5]) < 0
        or not -_INT32 <= fields[5] <= _INT32
        or not -_INT32 <= fields[6] <= _INT32
        or (clocks != () and not are_clocks(clocks))
    ):
        return None
    return fields
