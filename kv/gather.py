"""Collecting a value of each worker at rank 0, from node to node.

Values are of msgpack types with NumPy arrays anywhere inside; arrays travel as frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.remote import remote_error
from postoffice.customer import Customer
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import Postoffice
from postoffice.view import ClusterView
from van.message import Flag, Message, Meta, answer_to

GATHER_APP = (1 << 32) + 1
_ARRAY = "__array__"


class Gatherer:
    """One worker's end of `gather`.

    Args:
        office: the node, not yet started.
    """

    def __init__(self, office: Postoffice) -> None:
        self._office = office
        self._customer = Customer(GATHER_APP, 0, office, self._receive, remote_error)
        self._come: dict[int, dict[int, Any]] = {}  # number of the gather -> rank -> value
        self._count = self._taken = 0
        office.on_view.append(self._see)

    def _see(self, old: ClusterView, new: ClusterView) -> None:
        """Rank 0 leaves when its program is over, so it has had all values that it asked for."""
        for node in new.gone - old.gone:
            self._customer.excuse(node)

    def _receive(self, message: Message) -> None:
        meta = message.meta
        _, rank = role_and_rank(meta.sender)
        value = _unpack(meta.body["value"], message.arrays)
        if int(meta.body["number"]) >= self._taken:  # else a copy of what was taken
            self._come.setdefault(int(meta.body["number"]), {})[rank] = value
        self._office.send(Message(answer_to(meta)))

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all workers by rank, at rank 0; None elsewhere."""
        number, self._count = self._count, self._count + 1
        if self._office.rank != 0:
            self._give(number, value)
            return None
        workers = self._office.members(Role.WORKER)
        come = self._come.setdefault(number, {})
        arrays: list[NDArray[Any]] = []
        come[0] = _unpack(_pack(value, arrays), arrays)  # as it would come from elsewhere
        self._office.wait(lambda: len(come) == len(workers))
        del self._come[number]
        self._taken = number + 1
        return [come[rank] for rank in sorted(come)]

    def _give(self, number: int, value: Any) -> None:
        arrays: list[NDArray[Any]] = []
        body = {"number": number, "value": _pack(value, arrays)}
        head = self._office.members(Role.WORKER)[0]
        timestamp = self._customer.new_request([head])
        meta = Meta(
            recipient=head,
            flags=Flag.PUSH,
            app=GATHER_APP,
            timestamp=timestamp,
            oldest=self._customer.oldest,
            piece=1,
            body=body,
        )
        with self._customer.sending(timestamp):
            self._customer.send(Message(meta, arrays))
        self._customer.wait(timestamp)


def _pack(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """`value` with its arrays moved to `arrays` and their places marked."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {_ARRAY: len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _pack(part, arrays) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(part, arrays) for part in value]
    return value


def _unpack(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """The inverse of `_pack`; a tuple comes back as a list."""
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _unpack(part, arrays) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unpack(part, arrays) for part in value]
    return value
