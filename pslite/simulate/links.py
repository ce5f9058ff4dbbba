"""What the network of a simulated cluster is like: bandwidth, latency and loss, of all or of some.

A key of the section `[simulate]` is about everything, `KEY@WHERE` about

    worker:3, worker          a node; all of a role
    worker-server             links between such, in both directions

and what is most exact counts. No NumPy here: whoever reads settings imports this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from postoffice.node import Role
from pslite.values import nearest
from van.errors import ConfigError
from van.quantities import BITS, SECONDS, SHARES, format_quantity
from van.wires import Link

BANDWIDTH, LATENCY, LOSS = KEYS = ("bandwidth", "latency", "loss")
MOST_LOSS = 0.5
LONGEST = 60.0  # seconds of latency
_MOST_DIGITS = 9  # of a rank

End = tuple[str, int | None]
"""A role, and a rank where one node is meant."""


class Links:
    """Lines and links, as a section says. See `van.wires.Lines`.

    Args:
        said: bits a second, seconds and shares, by `KEY` or `KEY@WHERE`.
    Raises:
        ConfigError: a key that means nothing, or a value out of range.
    """

    def __init__(self, said: Mapping[str, float]) -> None:
        self.said = dict(said)
        places: dict[tuple[str, tuple[End, ...]], str] = {}
        for key, value in self.said.items():
            name, at, where = key.partition("@")
            if name == LOSS and value > MOST_LOSS:
                raise _wrong(key, f"expected 0 to {MOST_LOSS:g}, got {value:g}")
            if name == LATENCY and value > LONGEST:
                raise _wrong(key, f"expected a minute at most, got {value:g}s")
            place = (name, _ends(key, where) if at else ())
            if place in places:
                raise _wrong(key, f"{places[place]} says so already: links have no direction")
            places[place] = key
        self._by_place = {place: self.said[key] for place, key in places.items()}

    def line(self, node: str) -> float:
        """Bits a second of a node's line."""
        own = self._of_node(BANDWIDTH, node)
        return self._by_place.get((BANDWIDTH, ()), 0.0) if own is None else own

    def link(self, source: str, target: str) -> Link:
        """What lies between two nodes."""
        ends = list(_names_of(source)), list(_names_of(target))
        return Link(
            bandwidth=self._of_pair(BANDWIDTH, *ends) or 0.0,
            latency=self._between(LATENCY, source, target),
            loss=self._between(LOSS, source, target),
        )

    def _between(self, name: str, source: str, target: str) -> float:
        """Of the pair; else of its ends the worse; else of all."""
        found = self._of_pair(name, list(_names_of(source)), list(_names_of(target)))
        if found is not None:
            return found
        of_ends = [self._of_node(name, end) for end in (source, target)]
        said = [value for value in of_ends if value is not None]
        return max(said) if said else self._by_place.get((name, ()), 0.0)

    def _of_node(self, name: str, node: str) -> float | None:
        places = ((name, (end,)) for end in _names_of(node))
        return next((self._by_place[place] for place in places if place in self._by_place), None)

    def _of_pair(self, name: str, ones: list[End], others: list[End]) -> float | None:
        places = ((name, _sorted(one, other)) for one in ones for other in others)
        return next((self._by_place[place] for place in places if place in self._by_place), None)

    @property
    def is_none(self) -> bool:
        """Whether the network stays as it is."""
        return not any(self.said.values())

    @property
    def loses(self) -> str | None:
        """A key by which messages are lost, if there is one."""
        lossy = (key for key, value in self.said.items() if value and key.startswith(LOSS))
        return next(lossy, None)

    @property
    def slowest(self) -> float:
        """Bits a second of the slowest line or link; 0: none is limited."""
        rates = [v for key, v in self.said.items() if v and key.startswith(BANDWIDTH)]
        return min(rates, default=0.0)

    @property
    def longest(self) -> float:
        """The longest latency, in seconds."""
        return max((v for key, v in self.said.items() if key.startswith(LATENCY)), default=0.0)

    def __str__(self) -> str:
        said = {key: value for key, value in self.said.items() if value}
        units = {BANDWIDTH: BITS, LATENCY: SECONDS, LOSS: SHARES}
        return ", ".join(
            f"{key} = {format_quantity(value, units[key.partition('@')[0]])}"
            for key, value in said.items()
        )

    def check(self, counts: Mapping[Role, int]) -> None:
        """See that every node that is named is one of the job's.

        Raises:
            ConfigError: one is not.
        """
        for key in self.said:
            _, at, where = key.partition("@")
            for role, rank in _ends(key, where) if at else ():
                count = counts[Role(role)]
                if not count or (rank is not None and rank >= count):
                    has = f"the job has {count} {role}{'' if count == 1 else 's'}"
                    raise _wrong(key, f"{has}, numbered from 0" if count else has)


def _ends(key: str, where: str) -> tuple[End, ...]:
    """The node, role or pair that stands behind the `@` of a key."""
    parts = where.split("-")
    if len(parts) > 2:
        raise _wrong(key, "a link has two ends, such as worker-server")
    ends = [_end(key, part) for part in parts]
    return (ends[0],) if len(ends) == 1 else _sorted(*ends)


def _end(key: str, text: str) -> End:
    role, colon, rank = text.partition(":")
    if role not in list(Role):
        known = ", ".join(Role)
        hint = nearest(role, Role) or f"; known are {known}, and pairs such as worker-server"
        raise _wrong(key, f"unknown role {role!r}{hint}")
    if not colon:
        return role, None
    if not (rank.isascii() and rank.isdecimal() and len(rank) <= _MOST_DIGITS):
        raise _wrong(key, f"expected a node such as {role}:0, got {text!r}")
    return role, int(rank)


def _sorted(one: End, other: End) -> tuple[End, ...]:
    """Both ends in an order of our own: links have no direction."""
    first, second = sorted((one, other), key=lambda end: (end[0], -1 if end[1] is None else end[1]))
    return first, second


def _names_of(node: str) -> Iterator[End]:
    """How settings may name a node, the most exact first."""
    role, _, rank = node.partition(" ")
    if rank:
        yield role, int(rank)
    elif role == Role.SCHEDULER:
        yield role, 0
    yield role, None


def _wrong(key: str, problem: str) -> ConfigError:
    return ConfigError(problem, section="simulate", key=key)
