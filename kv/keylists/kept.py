"""Key lists at a server: remembered for the node that sent them, put back where it names them.

Each life of a sender has its own lists, dropped with it, and its own bound in bytes, so nobody
reads or crowds out the lists of others. A list is known by the sender's signature alone: a sender
that uses one signature for two lists harms nobody but itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError, UnknownKeyListError
from kv.keylists.coding import decode
from kv.table_protocol import key_places
from van.message import Message

LIST_OVERHEAD = 512  # bytes that a remembered request takes beside its keys, roughly

KeyArrays = list[NDArray[np.uint64]]


class KeptLists:
    """The remembered key lists of every sender.

    Args:
        limit: bytes of one sender's lists; the list used longest ago goes first. 0 keeps none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._senders: dict[int, _Sender] = {}

    def complete(self, message: Message, is_dense: Sequence[bool], has_values: bool) -> None:
        """Put every table's keys into their places in `message.arrays`, as uint64.

        Called again on a completed message it changes nothing.

        Args:
            is_dense: of each table of the request; dense tables have no keys.
            has_values: whether values travel with the keys.
        Raises:
            UnknownKeyListError: the request names lists that are not here (any more).
            KVError: the arrays or the body are not as the protocol says.
        """
        meta, arrays = message.meta, message.arrays
        places = key_places(is_dense, has_values)
        if isinstance(meta.body, dict):
            if meta.body.pop("named", False):
                self._insert(message, places)
                return
            if "coded" in meta.body:
                _decode(arrays, places, meta.body.pop("coded"))
        if meta.key_list and places and places[-1] < len(arrays):
            lists = [arrays[place] for place in places]
            kept = self._of(meta.sender, meta.incarnation).keep(meta.key_list, lists, self._limit)
            for place, keys in zip(places, kept, strict=True):  # the arrays that come again
                arrays[place] = keys

    def _insert(self, message: Message, places: Sequence[int]) -> None:
        meta = message.meta
        lists = self._of(meta.sender, meta.incarnation).find(meta.key_list)
        if len(lists) != len(places):
            raise KVError(
                f"a request about {len(places)} sparse tables names key lists of {len(lists)}"
            )
        for place, keys in zip(places, lists, strict=True):
            message.arrays.insert(place, keys)

    def _of(self, sender: int, incarnation: int) -> _Sender:
        found = self._senders.get(sender)
        if found is None or found.incarnation != incarnation:
            found = self._senders[sender] = _Sender(incarnation)
        return found

    def forget(self, sender: int) -> None:
        """Drop the lists of a sender that has gone."""
        self._senders.pop(sender, None)

    def nbytes(self, sender: int) -> int:
        """Bytes that the lists of `sender` take."""
        found = self._senders.get(sender)
        return 0 if found is None else found.nbytes

    def validate(self) -> None:
        """Assert what must always hold."""
        for sender in self._senders.values():
            assert sender.nbytes == sum(map(_nbytes, sender.lists.values())) <= self._limit


class _Sender:
    """The lists of one life of one sender, the one used longest ago first."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.lists: OrderedDict[int, KeyArrays] = OrderedDict()
        self.nbytes = 0

    def find(self, signature: int) -> KeyArrays:
        lists = self.lists.get(signature)
        if lists is None:
            raise UnknownKeyListError(signature)
        self.lists.move_to_end(signature)
        return lists

    def keep(self, signature: int, lists: KeyArrays, limit: int) -> KeyArrays:
        """Remember `lists`; the arrays that are to be used, copies where they are remembered."""
        if signature in self.lists:
            self.lists.move_to_end(signature)
            return lists
        size = _nbytes(lists)
        if size > limit:
            return lists
        # Copies: what arrived lies in a frame, perhaps in memory that its sender wants back.
        kept = self.lists[signature] = [_kept(keys) for keys in lists]
        self.nbytes += size
        while self.nbytes > limit:
            _, oldest = self.lists.popitem(last=False)
            self.nbytes -= _nbytes(oldest)
        return kept


def _decode(arrays: list[NDArray[Any]], places: Sequence[int], numbers: Any) -> None:
    """Put keys in the place of those that are coded."""
    for number in _integers(numbers):
        if number not in places or number >= len(arrays):
            raise KVError(f"array {number} is no coded key list in a request of {places}")
        arrays[number] = decode(arrays[number])


def _kept(keys: NDArray[Any]) -> NDArray[np.uint64]:
    copy = np.array(keys)
    copy.flags.writeable = False
    return copy


def _nbytes(lists: KeyArrays) -> int:
    return LIST_OVERHEAD + sum(keys.nbytes for keys in lists)


def _integers(values: Any) -> list[int]:
    if not isinstance(values, list | tuple) or any(type(value) is not int for value in values):
        raise KVError(f"coded key lists are named by their numbers, not by {values!r}")
    return list(values)
