"""Collecting a value of each worker at rank 0, from node to node.

Values are of msgpack types with NumPy arrays anywhere inside; arrays travel as frames. A worker
that died is not waited for, unless it is to be started again; if it is rank 0, the next one
collects. What was given to a former life of the collector is given again to the present one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError
from kv.remote import remote_error
from postoffice.customer import Customer
from postoffice.node import Role, node_id, role_and_rank
from postoffice.postoffice import Postoffice
from postoffice.view import ClusterView
from van.codec import DTYPES
from van.errors import UnreachablePeerError
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
        self._given: tuple[int, Any, int, int] | None = None  # number, value; to whom, in what life
        office.on_view.append(self._look_at_collector)

    def _receive(self, message: Message) -> None:
        meta = message.meta
        _, rank = role_and_rank(meta.sender)
        value = _unpack(meta.body["value"], message.arrays)
        if int(meta.body["number"]) >= self._taken:  # else a copy of what was taken
            self._come.setdefault(int(meta.body["number"]), {})[rank] = value
        self._office.send(Message(answer_to(meta)))

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all workers by rank, at rank 0; None elsewhere.

        Raises:
            KVError: a worker has finished without its part; or `value` is made of other types than
                msgpack's and NumPy arrays, and this call counts for nothing.
        """
        value = sendable(value)
        number, self._count = self._count, self._count + 1
        while (head := self._collector()) != self._office.node_id:
            try:
                self._customer.wait(self._give(number, value, head))
                return None
            except UnreachablePeerError:  # it died; the next one, or its next life, collects
                self._office.wait(lambda: self._collector() in self._office.nodes)
        come = self._come.setdefault(number, {})
        arrays: list[NDArray[Any]] = []
        come[self._office.rank] = _unpack(_pack(value, arrays), arrays)  # as from elsewhere
        self._office.wait(lambda: not self.awaited() - come.keys())
        del self._come[number]
        self._taken = number + 1
        silent = sorted(self._ranks(self._office.members(Role.WORKER)) - come.keys())
        if silent:
            raise KVError(f"workers {silent} were closed without their part of a gather")
        return [come[rank] for rank in sorted(come)]

    @property
    def is_collector(self) -> bool:
        """Whether values come together here."""
        return self._collector() == self._office.node_id

    def _collector(self) -> int:
        """The node at which values come together."""
        workers = self._office.members(Role.WORKER)
        return node_id(Role.WORKER, 0) if self._are_restarted or not workers else workers[0]

    @property
    def _are_restarted(self) -> bool:
        return self._office.shape.failures.on_worker == "restart"

    def awaited(self) -> set[int]:
        """Ranks of the workers that have to come."""
        if self._are_restarted:
            gone = self._ranks(list(self._office.view.gone))
            return set(range(self._office.shape.workers)) - gone
        return self._ranks(self._office.view.alive(Role.WORKER))

    @staticmethod
    def _ranks(nodes: list[int]) -> set[int]:
        places = [role_and_rank(node) for node in nodes]
        return {rank for role, rank in places if role is Role.WORKER}

    def _give(self, number: int, value: Any, head: int) -> int:
        arrays: list[NDArray[Any]] = []
        body = {"number": number, "value": _pack(value, arrays)}
        node = self._office.nodes.get(head)
        self._given = (number, value, head, 0 if node is None else node.incarnation)
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
        return timestamp

    def _look_at_collector(self, old: ClusterView, new: ClusterView) -> None:
        """Give again what a collector's former life was given last.

        One that leaves has its program behind it, so it has had all values that it asked for.
        """
        for gone in new.gone - old.gone:
            self._customer.excuse(gone)
        if self._given is None:
            return
        number, value, head, life = self._given
        node = new.nodes.get(head)
        if node is not None and life and node.incarnation != life:
            self._give(number, value, head)


def sendable(value: Any) -> Any:
    """`value` if it can travel; its arrays are not copied.

    Raises:
        KVError: it is made of other types than msgpack's and NumPy arrays.
    """
    try:
        return _checked(value)
    except RecursionError:
        raise KVError(
            "a value that contains itself, or is nested too deep, cannot be sent"
        ) from None


def _checked(value: Any) -> Any:
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, str) and _is_text(value):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return value
    if isinstance(value, np.ndarray) and value.dtype.newbyteorder("<") in DTYPES:
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item() if value.itemsize <= 8 else float(value)
    if isinstance(value, list | tuple):
        return [_checked(part) for part in value]
    if isinstance(value, dict) and value.keys() != {_ARRAY}:
        for key in value:
            if not isinstance(key, bool | int | float | str | bytes | None):
                raise KVError(f"a key that is a {type(key).__name__} cannot be sent: {key!r}")
        return {_checked(key): _checked(part) for key, part in value.items()}
    what = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise KVError(
        f"a value of type {what} cannot be sent ({repr(value)[:100]}); use plain Python values, "
        f"integers of 64 bits at most, or arrays of numbers"
    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return True


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
