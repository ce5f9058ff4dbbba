"""Whether a key fits what a message claims: every claim a key may and may not make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postoffice.credentials import complaint
from postoffice.node import Node, Role, node_id
from van.addresses import with_key
from van.message import Control, Flag, Message, Meta
from van.peer import Peer

KEYS = {1: "S", 8: "a", 9: "b", 11: "c"}
ROLES = {1: "scheduler", 8: "server", 9: "worker", 11: "worker"}
NODES = {
    1: Node(Role.SCHEDULER, 0, with_key("tcp://h:1", "S"), 1),
    8: Node(Role.SERVER, 0, with_key("tcp://h:2", "a"), 1),
    9: Node(Role.WORKER, 0, with_key("tcp://h:3", "b"), 1),
    11: Node(Role.WORKER, 1, with_key("tcp://h:4", "c"), 1),
}


def peer(node: int) -> Peer:
    return Peer(KEYS[node], frozenset({ROLES[node]}))


@given(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(KEYS)))
def test_data_is_taken_from_the_key_of_the_node_it_names(speaker: int, claimed: int) -> None:
    message = Message(Meta(sender=claimed, flags=Flag.PUSH), peer=peer(speaker))

    assert (complaint(message, NODES) is None) == (speaker == claimed)


@given(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(KEYS)), st.sampled_from(list(Control)))
def test_no_control_message_passes_in_the_name_of_another(
    speaker: int, claimed: int, control: Control
) -> None:
    message = Message(Meta(sender=claimed, control=control), peer=peer(speaker))

    if speaker != claimed:
        assert complaint(message, NODES)


@pytest.mark.parametrize(
    "control",
    [Control.NODES, Control.REFUSED, Control.STOP, Control.MAP, Control.BARRIER_DONE],
)
def test_what_only_the_scheduler_says_is_taken_from_nobody_else(control: Control) -> None:
    for nodes in ({}, NODES):
        assert complaint(Message(Meta(control=control), peer=peer(9)), nodes)
        assert complaint(Message(Meta(control=control), peer=peer(1)), nodes) is None


@given(st.integers(0, 2**64 - 1), st.booleans())
def test_a_life_that_nobody_knows_may_only_be_of_its_keys_role(rank: int, is_data: bool) -> None:
    sender = node_id(Role.SERVER, rank) if rank < 1 << 18 else rank
    control = Control.NONE if is_data else Control.HEARTBEAT
    message = Message(Meta(sender=sender, control=control), peer=Peer("w", frozenset({"worker"})))

    for known in ({}, NODES):
        if sender and not (sender > 8 and sender % 2 and sender < 1 << 20):
            assert complaint(message, known)


def test_a_heartbeat_that_makes_a_node_known_must_give_its_own_address() -> None:
    for key, is_right in (("b", True), ("c", False)):
        meta = Meta(sender=9, control=Control.HEARTBEAT, reply_to=with_key("tcp://h:3", key))
        assert (complaint(Message(meta, peer=peer(9)), {}) is None) == is_right


def registration(role: str, rank: object, speaker: Peer, key: str = "") -> Message:
    meta = Meta(
        control=Control.REGISTER,
        reply_to=with_key("tcp://h:9", key or speaker.key),
        body={"role": role, "rank": rank},
    )
    return Message(meta, peer=speaker)


def test_a_key_registers_as_its_own_role_only() -> None:
    worker = Peer("w", frozenset({"worker"}))
    both = Peer("x", frozenset({"worker", "server"}))

    assert complaint(registration("worker", None, worker), {}) is None
    assert complaint(registration("server", None, both), {}) is None
    for role in ("server", "scheduler", "observer", "WORKER", ""):
        assert complaint(registration(role, 0, worker), {})


def test_a_registration_must_give_the_address_of_its_own_key() -> None:
    worker = Peer("w", frozenset({"worker"}))

    assert complaint(registration("worker", 0, worker, key="other"), {})


def test_the_rank_of_a_living_node_is_for_its_own_key() -> None:
    thief, owner = Peer("w", frozenset({"worker"})), peer(9)

    assert complaint(registration("worker", 0, owner), NODES) is None
    assert complaint(registration("worker", 2, thief), NODES) is None
    why = complaint(registration("worker", 0, thief), NODES)
    assert why is not None
    assert "wants the rank of worker 0" in why


def test_a_question_must_give_the_address_of_its_own_key() -> None:
    observer = Peer("o", frozenset({"observer"}))
    for key, is_right in (("o", True), ("a", False)):
        meta = Meta(control=Control.QUERY, reply_to=with_key("tcp://h:9", key))
        assert (complaint(Message(meta, peer=observer), NODES) is None) == is_right


@given(st.integers(0, 2**64 - 1), st.sampled_from(list(Control)))
def test_a_way_without_keys_is_not_judged(sender: int, control: Control) -> None:
    assert complaint(Message(Meta(sender=sender, control=control)), NODES) is None


BODIES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
REGISTRATIONS = st.fixed_dictionaries(
    {}, optional={"role": BODIES | st.sampled_from(["worker", "server"]), "rank": BODIES}
)


@given(BODIES | REGISTRATIONS, st.sampled_from(list(Control)), st.text(max_size=5))
def test_no_body_is_too_strange_to_be_judged(body: object, control: Control, to: str) -> None:
    meta = Meta(control=control, body=body, reply_to=to)

    assert isinstance(complaint(Message(meta, peer=peer(9)), NODES), str | None)


def test_the_key_of_a_node_is_in_the_table() -> None:
    assert {node.id: node.key for node in NODES.values()} == KEYS
    assert str(NODES[9]) == "worker 0 at tcp://h:3"
    assert node_id(Role.WORKER, 0) == 9
