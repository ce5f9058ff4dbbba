"""Whether a message's key fits what the message claims; a pure function.

A key is bound to a node when it registers: its address in the node table carries the key it has
proved. From then on each message that claims to come from that node must have come over a
connection of that key, whatever routing id or incarnation it shows. What only the scheduler says
is taken from the scheduler's keys alone.

Ways that know no keys (no CURVE, or the trusted local lane) are not judged here.
"""

from __future__ import annotations

from collections.abc import Mapping

from postoffice.node import Node, Role, node_id, node_name, role_and_rank
from van.addresses import key_of, short
from van.message import UNASSIGNED, Control, Message, Meta
from van.peer import Peer

_FROM_SCHEDULER = (
    Control.NODES,
    Control.REFUSED,
    Control.BARRIER_DONE,
    Control.GOODBYE_DONE,
    Control.STOP,
    Control.MAP,
)
_WITH_ADDRESS = (Control.REGISTER, Control.QUERY)  # answered where they say


def complaint(message: Message, nodes: Mapping[int, Node]) -> str | None:
    """Why `message` must not be listened to, or None.

    Args:
        message: as it was received.
        nodes: the living nodes by id, as this node knows them; empty before it has joined.
    """
    peer, meta = message.peer, message.meta
    if peer is None:
        return None
    node = nodes.get(meta.sender)
    if node is not None and node.key != peer.key:
        return f"{_named(peer)} speaks as {node_name(meta.sender)}, which has {short(node.key)}"
    if node is None and meta.sender != UNASSIGNED and not _is_of_role(meta.sender, peer):
        return f"{_named(peer)} speaks as {node_name(meta.sender)}"
    return _of_control(meta, peer, nodes) if meta.control else None


def _is_of_role(node: int, peer: Peer) -> bool:
    try:
        return role_and_rank(node)[0].value in peer.roles
    except ValueError:
        return False


def _of_control(meta: Meta, peer: Peer, nodes: Mapping[int, Node]) -> str | None:
    if meta.control in _FROM_SCHEDULER and Role.SCHEDULER.value not in peer.roles:
        return f"{_named(peer)} is no scheduler's"
    # A heartbeat with an address may make a node known to a scheduler that was restarted.
    is_answered_there = meta.control in _WITH_ADDRESS or meta.reply_to
    if is_answered_there and key_of(meta.reply_to) != peer.key:
        return f"{_named(peer)} gives the address of another key"
    if meta.control is Control.REGISTER:
        return _of_registration(meta, peer, nodes)
    return None


def _of_registration(meta: Meta, peer: Peer, nodes: Mapping[int, Node]) -> str | None:
    body = meta.body if isinstance(meta.body, dict) else {}
    role, rank = body.get("role"), body.get("rank")
    if not isinstance(role, str) or role not in peer.roles:
        return f"{_named(peer)} registers as {role}"
    try:
        holder = nodes.get(node_id(Role(role), rank)) if type(rank) is int else None
    except ValueError:
        return None  # no role: the desk says so
    if holder is not None and holder.key != peer.key:
        # Else any worker could have a living one declared a former life of its own.
        return f"{_named(peer)} wants the rank of {node_name(holder.id)}, which lives"
    return None


def _named(peer: Peer) -> str:
    roles = "/".join(sorted(peer.roles))
    return f"key {short(peer.key)} ({roles})"
