"""Who is at the other end of a connection, where it has proved a key."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """The holder of a key."""

    key: str  # public, Z85
    roles: frozenset[str]  # that the allow-lists give to the key
