"""What crosses the links of a dispatcher: bytes of arrays that its van sends and receives."""

from __future__ import annotations

import threading
from collections import Counter

from kv.table_protocol import TABLES_APP
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import Postoffice
from van.message import Flag, Message, Meta

PUSHED = "workers to dispatcher", "dispatcher to servers"
PULLED = "servers to dispatcher", "dispatcher to workers"
LINKS = (*PUSHED, *PULLED)


class LinkTraffic:
    """Counts by link: gradients, with their keys, on two; values, with the keys asked for, on two.

    Headers are not counted, one to two hundred bytes a message, nor is what is not about rows.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_on = True
        self._lock = threading.Lock()

    def watch(self, office: Postoffice) -> None:
        """Count at a dispatcher's node, which has not started."""
        receive, send = office.van.receiver, office.van.send

        def received(message: Message) -> None:
            self._note(message, message.meta.sender)
            receive(message)

        def sent(message: Message) -> None:
            self._note(message, message.meta.recipient)
            send(message)

        office.van.receiver = received
        office.van.send = sent  # type: ignore[method-assign]

    def _note(self, message: Message, other: int) -> None:
        meta = message.meta
        if self.is_on and meta.app == TABLES_APP and message.arrays and not meta.control:
            with self._lock:
                self.counts[_link(meta, other)] += message.nbytes


def _link(meta: Meta, other: int) -> str:
    """The link that a message between a dispatcher and another node belongs to."""
    is_worker = role_and_rank(other)[0] is Role.WORKER
    if meta.flags & Flag.PULL:  # a question belongs to its answer
        return PULLED[1] if is_worker else PULLED[0]
    return PUSHED[0] if is_worker else PUSHED[1]
