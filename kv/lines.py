"""How whoever asks reaches servers: their node ids, what they know, and memory for what is sent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kv.keylists.sent import SentLists
from kv.placement import SlotMap
from postoffice.node import Role, node_id
from postoffice.postoffice import Postoffice
from van.addresses import place_of
from van.buffers import Buffers

_SMALL = 4096  # numbers; fewer are copied when they are sent in any case


@dataclass(slots=True)
class Lines:
    """How a worker reaches its servers.

    Args:
        servers: node ids, by rank.
        codes: by rank, whether key lists go as differences where that is smaller.
        buffers: memory for what is sent through the network.
        counts: of `lists_sent`, `lists_named`, `lists_unknown` and `key_bytes_saved`.
        has_all: the one server is a dispatcher, which is told the clocks of all servers.
    """

    office: Postoffice
    servers: Sequence[int]
    codes: Sequence[bool]
    sent: SentLists
    counts: Counter[str]
    buffers: Buffers
    has_all: bool = False

    @classmethod
    def of(
        cls,
        office: Postoffice,
        slots: SlotMap,
        key_deltas: str,
        sent: SentLists,
        counts: Counter[str],
        buffers: Buffers,
        through: int | None = None,
    ) -> Self:
        """The lines of a node that has started; `key_deltas` is `on`, `off` or `auto`.

        Args:
            through: the dispatcher that is asked in the place of all servers.
        """
        servers = server_ids(office, slots) if through is None else [through]
        own = _host(office.van.address)
        is_far = [
            server in office.nodes and _host(office.nodes[server].address) != own
            for server in servers
        ]
        codes = is_far if key_deltas == "auto" else [key_deltas == "on"] * len(servers)
        return cls(office, servers, codes, sent, counts, buffers, through is not None)

    def empty(self, server: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array that is to be sent to a server: in memory that both see, or from the pool."""
        if math.prod(shape) < _SMALL:
            return np.empty(shape, dtype)
        made = self.office.van.empty(self.servers[server], shape, dtype)
        # The van's plain arrays own their memory, which would be fresh pages each time.
        return self.buffers.empty(shape, dtype) if made.base is None else made


def server_ids(office: Postoffice, slots: SlotMap) -> list[int]:
    """Node ids of the servers by rank, those that do not live included."""
    count = max(office.shape.servers, slots.num_servers)
    return [node_id(Role.SERVER, rank) for rank in range(count)]


def _host(address: str) -> str:
    """The host of an address; one without is of this host."""
    scheme, _, rest = place_of(address).partition("://")
    return rest.rpartition(":")[0] if scheme == "tcp" else "127.0.0.1"
