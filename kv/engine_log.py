"""What an engine tells of each change, to whoever keeps copies of it elsewhere.

Without copies nobody listens, and each change costs a look at an attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from van.message import Meta

if TYPE_CHECKING:
    from kv.consistency.base import Update
    from kv.engine_table import Table
    from kv.store.sparse import SparseStore

Keys = NDArray[np.uint64]


class Cause(NamedTuple):
    """Why rows have changed.

    Args:
        push: the header of the push whose rows in this part of the table these are, all of them;
            None: a change that no request is recognised by.
        round: the round whose rows in this part these are, all of them; -1: no round.
        clock: the table's, as schedules and roundings count it.
    """

    push: Meta | None = None
    round: int = -1
    clock: int = 0


class RowLog(Protocol):
    """Hears of the changes of one table's rows, while the lock of the part they are in is held."""

    def changed(self, store: SparseStore, keys: Keys, cause: Cause) -> None:
        """Rows of `keys` are not what they were; some may be gone."""

    def removed(self, keys: Keys) -> None:
        """These had rows and have none any more, whatever took them."""


class EngineLog(Protocol):
    """Hears of what is not rows. The first two are called with the engine's lock held."""

    def defined(self, table: Table) -> None:
        """A table was made."""

    def held(self, table: Table, rank: int, number: int, update: Update) -> None:
        """A push is kept for the round of that number."""

    def closed(self, table: Table) -> None:
        """Rounds were applied, or dropped for want of room: the table's clock has moved."""

    def progressed(self) -> None:
        """A worker has ended a step, has finished, or was started again."""

    def rated(self, table: Table) -> None:
        """A table has another learning rate."""
