"""Which process meets which fault, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postoffice.node import Role
from pslite.chaos.director import Deed, Director
from pslite.chaos.parsing import parse_plan
from pslite.lifecycle import NodeName

COUNTS = {Role.SCHEDULER: 1, Role.SERVER: 3, Role.WORKER: 3}
ALL = {NodeName(role, rank) for role, count in COUNTS.items() for rank in range(count)}
WORKER = NodeName(Role.WORKER, 1)


def direct(text: str, seed: int = 1) -> Director:
    return Director(parse_plan(text), seed, COUNTS)


def test_times_count_from_the_moment_when_all_nodes_have_met() -> None:
    director = direct("kill worker:1@5s")

    assert director.due(1000.0, ALL) == []
    director.happened("start", 100.0)
    assert director.next_due() == 105.0
    assert director.due(104.9, ALL) == []
    assert director.due(105.0, ALL) == [Deed("kill", WORKER, "kill worker:1@5s")]
    assert director.due(200.0, ALL) == []


def test_a_stop_for_a_while_ends_for_the_same_node() -> None:
    director = direct("stop worker@1s for 2s")
    director.happened("start", 0.0)

    (stop,) = director.due(1.5, ALL)
    assert director.due(3.4, ALL) == []
    (cont,) = director.due(3.5, ALL)

    assert (stop.act, cont.act) == ("stop", "cont")
    assert stop.node == cont.node


def test_the_nth_event_counts_and_is_acted_on_once() -> None:
    director = direct("kill worker:1@barrier:2")
    director.happened("start", 0.0)
    assert director.awaits_event

    director.happened("barrier", 1.0)
    assert director.due(1.0, ALL) == []
    director.happened("barrier", 2.0)
    assert [deed.node for deed in director.due(2.0, ALL)] == [WORKER]
    director.happened("barrier", 3.0)
    assert director.due(3.0, ALL) == []
    assert not director.awaits_event


def test_some_time_after_an_event_is_a_moment_too() -> None:
    director = direct("kill worker:1@barrier+2s")
    director.happened("barrier", 1.0)

    assert director.due(2.9, ALL) == []
    assert [deed.node for deed in director.due(3.0, ALL)] == [WORKER]


@given(st.integers(0, 2**63 - 1))
def test_a_seed_hits_the_same_nodes_whatever_else_the_plan_has(seed: int) -> None:
    def hit(text: str) -> NodeName | None:
        director = direct(text, seed)
        director.happened("start", 0.0)
        return director.due(5.0, ALL)[0].node

    victim = hit("kill server@1s")

    assert victim is not None
    assert victim.role == Role.SERVER
    assert hit("kill server@1s, kill worker@2s, drop 2%") == victim


def test_a_server_that_has_come_while_the_job_ran_may_be_hit_as_well() -> None:
    grown = ALL | {NodeName(Role.SERVER, 3)}

    def hit(seed: int) -> NodeName | None:
        director = direct("kill server@1s", seed)
        director.happened("start", 0.0)
        return director.due(1.0, grown)[0].node

    assert {hit(seed) for seed in range(80)} == {NodeName(Role.SERVER, r) for r in range(4)}


def test_all_ranks_are_hit_by_some_seed_and_only_those_that_run() -> None:
    def hit(seed: int, alive: set[NodeName]) -> NodeName | None:
        director = direct("kill server@1s", seed)
        director.happened("start", 0.0)
        return director.due(1.0, alive)[0].node

    some = ALL - {NodeName(Role.SERVER, 0)}

    assert {hit(seed, ALL) for seed in range(50)} == {NodeName(Role.SERVER, r) for r in range(3)}
    assert {hit(seed, some) for seed in range(50)} == {NodeName(Role.SERVER, r) for r in (1, 2)}
    assert hit(1, set()) is None
