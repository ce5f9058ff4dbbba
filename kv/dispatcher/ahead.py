"""Hot rows on their way to servers, each with the bits of the pushes that have it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from kv.compressing import CodedWrite
from kv.compression.encoder import Encoder
from kv.cutting import Cut, Range
from kv.dispatcher.hotkeys import Masks
from kv.pushing import SparseWrite
from van.buffers import Buffers


class AheadWrite(SparseWrite):
    """Hot rows, with the bits of the pushes that have each of them."""

    __slots__ = ("_masks",)

    def __init__(self, write: SparseWrite, masks: Masks) -> None:
        for name in SparseWrite.__slots__:
            setattr(self, name, getattr(write, name))
        self._masks = masks

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """Keys, values and bits of a range of a server's rows."""
        return [*super().arrays(server, part), _of_range(self._masks, self.cut, server, part)]


class AheadCoded(CodedWrite):
    """The same, compressed."""

    __slots__ = ("_masks",)

    def __init__(
        self, write: SparseWrite, encoder: Encoder, buffers: Buffers, masks: Masks
    ) -> None:
        super().__init__(write, encoder, buffers)
        self._masks = masks

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """Keys, values and bits of those rows of a range that are sent."""
        return [*super().arrays(server, part), self._bits(server, part)]

    def plain(self, server: int, part: Range) -> list[NDArray[Any]]:
        """The same as if there were no compression."""
        return [*super().plain(server, part), self._bits(server, part)]

    def _bits(self, server: int, part: Range) -> Masks:
        bits, kept = _of_range(self._masks, self.cut, server, part), self.kept(server, part)
        return bits if kept is None else bits[kept]


def _of_range(masks: Masks, cut: Cut, server: int, part: Range) -> Masks:
    if cut.order is None:
        return masks[part.start : part.stop]
    found: Masks = masks[cut.rows(server, part.start, part.stop)]
    return found
