"""What the scheduler says about the cluster, as far as requests need to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kv.requests.slots import Slots


@dataclass(frozen=True, eq=False)
class View:
    """One state of the cluster. Nodes learn views late and may skip some, but never go back.

    Args:
        epoch: grows with every change of membership.
        map_version: grows when a slot changes its owner.
        owners: int64 (slots,), the server that owns each slot.
        incarnations: node -> its present life, of all who are in the cluster.
        fenced: node -> the last of its lives that was declared dead.
    """

    epoch: int
    map_version: int
    owners: Slots
    incarnations: Mapping[int, int] = field(default_factory=dict)
    fenced: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def servers(self) -> list[int]:
        """Servers that own a slot, rising."""
        return sorted(set(self.owners.tolist()))

    def lives(self, node: int, incarnation: int) -> bool:
        """Whether this very life of `node` is in the cluster."""
        return self.incarnations.get(node) == incarnation and not self.is_fenced(node, incarnation)

    def is_fenced(self, node: int, incarnation: int) -> bool:
        """Whether this life of `node` was declared dead."""
        return incarnation <= self.fenced.get(node, 0)

    def is_newer(self, other: View) -> bool:
        """Whether this view follows `other`."""
        return (self.epoch, self.map_version) > (other.epoch, other.map_version)
