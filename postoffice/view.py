"""What a node knows of the cluster: who lives, who may not speak any more, who owns the slots.

The scheduler makes views; the others get the newest one by `NODES` and never go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from postoffice.node import Node, Role

MAX_MAP = 1 << 20  # bytes of a slot map


@dataclass(frozen=True)
class ClusterView:
    """The cluster at one moment.

    Attributes:
        epoch: grows with every change of membership.
        nodes: by id, those who live, those who are `gone` included: they left in good order, and
            what they said last may still be on its way.
        fenced: by id, the last incarnation that was declared dead; it and all before it are no
            longer listened to.
        gone: ids of those who said goodbye.
        map_version: grows with every slot map; 0 where there is none yet.
        map_blob: the slot map, which only kv understands.
        ways: by id of a worker the rank of the dispatcher that it is to go through, where that is
            not the one that the rule gives it.
    """

    epoch: int = 0
    nodes: Mapping[int, Node] = field(default_factory=dict)
    fenced: Mapping[int, int] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    map_version: int = 0
    map_blob: bytes = b""
    ways: Mapping[int, int] = field(default_factory=dict)

    def alive(self, role: Role) -> list[int]:
        """Ids of the nodes of `role` that live and have not gone, by rank."""
        return sorted(
            node.id
            for node in self.nodes.values()
            if node.role is role and node.id not in self.gone
        )

    @property
    def dead(self) -> frozenset[int]:
        """Ids whose last life is fenced and that have no other."""
        return frozenset(self.fenced.keys() - self.nodes.keys())

    def is_fenced(self, node: int, incarnation: int) -> bool:
        """Whether that life was declared dead."""
        return incarnation <= self.fenced.get(node, -1)

    def pack(self) -> dict[str, Any]:
        """As msgpack types."""
        return {
            "epoch": self.epoch,
            "nodes": [self.nodes[node].pack() for node in sorted(self.nodes)],
            "fenced": [[node, self.fenced[node]] for node in sorted(self.fenced)],
            "gone": sorted(self.gone),
            "map": [self.map_version, self.map_blob],
            "ways": [[node, self.ways[node]] for node in sorted(self.ways)],
        }

    @staticmethod
    def unpack(packed: Any) -> ClusterView:
        """The inverse of `pack`; raises KeyError, ValueError or TypeError on anything else."""
        nodes = {node.id: node for node in map(Node.unpack, packed["nodes"])}
        fenced = {_whole(node): _whole(life) for node, life in packed["fenced"]}
        gone = frozenset(_whole(node) for node in packed["gone"])
        version, blob = unpack_map(packed["map"])
        ways = {_whole(node): _whole(rank) for node, rank in packed["ways"]}
        return ClusterView(_whole(packed["epoch"]), nodes, fenced, gone, version, blob, ways)


def unpack_map(packed: Any) -> tuple[int, bytes]:
    """Version and bytes of a slot map as it travels; raises ValueError or TypeError."""
    version, blob = packed
    if type(blob) is not bytes or len(blob) > MAX_MAP:
        raise ValueError("a slot map is at most 1 MiB of bytes")
    return _whole(version), blob


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value
