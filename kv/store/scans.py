"""Where scans of all rows have come to, and whether that is still a place between the same rows.

A scan is told a position and comes back with it, in another call or another message; between two
calls the store belongs to others, and may pack its rows. The store's places are of an epoch, which
is part of the position: a scan of an earlier one begins anew, told so by an error.
"""

from __future__ import annotations

import time

from kv.errors import ScanError

EPOCH_SHIFT = 33  # where a position has the epoch; fingerprints take the bits below
EPOCHS = 1 << 11


class Scans:
    """Turns places in memory into positions, and back while they hold.

    Args:
        table: its name, for errors.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._epoch = 0  # changes when places do
        self._gone_on_at = 0.0  # when a scan that is not over went on

    def position(self, place: int) -> int:
        """What a scan that has come to this place is told."""
        return self._epoch << EPOCH_SHIFT | place

    def go_on(self, place: int, end: int) -> int:
        """`position`, of a scan that is not over before it has come to `end`."""
        if place < end:
            self._gone_on_at = time.monotonic()
        return self.position(place)

    def place(self, position: int) -> int:
        """The place that a scan has come to.

        Raises:
            ScanError: rows have got other places since.
        """
        if position <= 0:
            return 0
        epoch, place = position >> EPOCH_SHIFT, position & ((1 << EPOCH_SHIFT) - 1)
        if epoch != self._epoch:
            raise ScanError(self._table)
        return place

    def is_quiet(self, seconds: float) -> bool:
        """Whether no scan has gone on for so long."""
        return time.monotonic() >= self._gone_on_at + seconds

    def end_epoch(self) -> None:
        """From now on rows have other places."""
        self._epoch = (self._epoch + 1) % EPOCHS
