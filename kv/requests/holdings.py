"""Which slots are at a server, and which of them it serves."""

from __future__ import annotations

import numpy as np

from kv.requests.slots import Slots


class Holdings:
    """The slots of one server, as they come and go.

    A slot is *here* from its arrival to its leaving, and served while the map also says so.

    Args:
        node: the server.
        owners: int64 (slots,), the first map.
        is_founder: whether the slots that `owners` gives the server begin here; else each is to
            come.
    """

    def __init__(self, node: int, owners: Slots, *, is_founder: bool) -> None:
        self.node = node
        self.here = (owners == node) & is_founder
        self.served = self.here.copy()
        self._owners = owners
        self._moves = np.zeros(owners.size, np.int64)  # number of the last move that came here

    @property
    def leaving(self) -> list[int]:
        """Slots that are here and belong to another server."""
        slots: list[int] = (self.here & ~self.served).nonzero()[0].tolist()
        return slots

    def learn(self, owners: Slots) -> None:
        """Know a newer map."""
        self._owners = owners
        self.served = self.here & (owners == self.node)

    def leave(self, slot: int) -> int:
        """The slot leaves; returns the number of this move."""
        self.here[slot] = self.served[slot] = False
        return int(self._moves[slot]) + 1

    def arrive(self, slot: int, move: int) -> bool:
        """The slot comes, by that move; False: this is a copy of a move that was before."""
        if move <= self._moves[slot]:
            return False
        self._moves[slot] = move
        self.here[slot] = True
        self.served[slot] = self._owners[slot] == self.node
        return True

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        served = self.here & (self._owners == self.node)
        assert np.array_equal(self.served, served), "serves what it has not or owns not"
