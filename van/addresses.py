"""Addresses of nodes: where a node is reached and, under CURVE, the public key it must have there.

    tcp://10.0.0.7:4000#KEY      KEY in Z85, 40 characters

An address that carries its key travels as one text: in a registration, in the node table, to
`Van.connect`. Who connects to it speaks with the holder of that key or with nobody, and a node that
comes back with another key has another address. Z85 has `#` too, but no host or port has.
"""

from __future__ import annotations

_MARK = "#"
_SHOWN = 8  # characters of a key in messages to people


def with_key(address: str, key: str) -> str:
    """`address` of the holder of the public `key`; an empty key adds nothing.

    >>> with_key("tcp://h:1", "abc"), with_key("tcp://h:1", "")
    ('tcp://h:1#abc', 'tcp://h:1')
    """
    return f"{address}{_MARK}{key}" if key else address


def place_of(address: str) -> str:
    """`address` without its key.

    >>> place_of("tcp://h:1#a#b")
    'tcp://h:1'
    """
    return address.partition(_MARK)[0]


def key_of(address: str) -> str:
    """The key in `address`; empty if it has none.

    >>> key_of("tcp://h:1#a#b"), key_of("tcp://h:1")
    ('a#b', '')
    """
    return address.partition(_MARK)[2]


def short(key: str) -> str:
    """A key as messages to people name it."""
    return f"{key[:_SHOWN]}…" if key else "(none)"


def with_host(address: str, host: str) -> str:
    """`address` with another host.

    >>> with_host("tcp://node7:4000", "0.0.0.0"), with_host("tcp://node7:0", "::1")
    ('tcp://0.0.0.0:4000', 'tcp://[::1]:0')
    """
    scheme, _, rest = address.partition("://")
    port = rest.rpartition(":")[2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def with_port_of(address: str, other: str) -> str:
    """`address` with the port of the address `other`.

    >>> with_port_of("tcp://node7:0", "tcp://0.0.0.0:4001")
    'tcp://node7:4001'
    """
    return f"{address.rpartition(':')[0]}:{other.rpartition(':')[2]}"
