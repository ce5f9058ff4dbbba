"""Errors of servers as a dispatcher passes them on: what was raised, and of which rows.

A push that one server refuses others have applied. Without dispatchers a worker sees that message
by message; here its one message hears of it with the slots of the servers that refused, so that
what compression had kept back of other rows is not added twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.placement import NUM_SLOTS, SlotMap
from postoffice.node import role_and_rank
from van.message import Meta

FAILED = "failed"  # in the body of an answer: a bit for each slot whose rows were not applied


class Error(NamedTuple):
    """What a server raised.

    kind, text, node: as in a message's header.
    failed: bits of the slots whose rows were not applied; empty: perhaps none was.
    """

    kind: str
    text: str
    node: int
    failed: bytes = b""


class Refusals:
    """The errors of the servers that were asked in one request.

    Args:
        slots: the map by which it was cut.
    """

    def __init__(self, slots: SlotMap) -> None:
        self._slots = slots
        self._first: tuple[str, str, int] | None = None
        self._ranks: set[int] = set()
        self._is_cut_anew = False

    def note(self, answer: Meta) -> None:
        """An answer with an error has come."""
        assert answer.error is not None
        self._first = self._first or answer.error
        self._ranks.add(role_and_rank(answer.sender)[1])
        self._is_cut_anew |= answer.piece > 1

    def error(self) -> Error | None:
        """The first of them; None: there is none."""
        if self._first is None:
            return None
        failed = b""
        if not self._is_cut_anew:  # else rows may have been refused of whom the map does not say
            failed = np.packbits(np.isin(self._slots.owner, list(self._ranks))).tobytes()
        return Error(*self._first, failed=failed)


def failed_slots(answer: Meta) -> NDArray[np.bool_] | None:
    """The slots whose rows an error is about, bool (NUM_SLOTS,); None: all, as far as it says."""
    body: Any = answer.body
    given = body.get(FAILED) if isinstance(body, dict) else None
    if not isinstance(given, bytes) or 8 * len(given) != NUM_SLOTS:
        return None
    return np.unpackbits(np.frombuffer(given, np.uint8)).astype(np.bool_)
