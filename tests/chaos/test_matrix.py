"""Every fault at every moment of a job, on the seeded network.

Nobody waits for ever (the network finds that out), ones that were pushed add up, and where a job
must end every node says because of whom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kv.checkpoint.places import place_of
from kv.checkpoint.reading import SavedTables
from kv.checkpoint.shelf import Shelf
from postoffice.errors import ClusterStartError, ClusterStoppedError, FencedNodeError
from postoffice.failure import FailurePolicy
from postoffice.node import SCHEDULER_ID, Role, node_id
from tests.chaos.cluster import KEYS, MOMENTS, PUSHES, SAVING, Cluster, Setting, spell
from tests.seeds import seeds
from van.faults import Faults

Act = Callable[[Cluster], None]
SERVER_1, WORKER_0, WORKER_1 = (
    node_id(Role.SERVER, 1),
    node_id(Role.WORKER, 0),
    node_id(Role.WORKER, 1),
)
PLAIN = Setting()
COPIED = Setting(replicas=1)
STOPPING = Setting(policy=FailurePolicy())
GOING_ON = Setting(policy=FailurePolicy(on_worker="continue", on_server="restart"))


def kill(name: str) -> Act:
    return lambda cluster: cluster.kill(name)


def freeze(name: str) -> Act:
    return lambda cluster: cluster.network.freeze(name)


def thaw(name: str) -> Act:
    return lambda cluster: cluster.network.thaw(name)


def cut(one: int, other: int) -> Act:
    def act(cluster: Cluster) -> None:
        cluster.plan.cut(one, other)
        cluster.plan.cut(other, one)

    return act


def heal(one: int, other: int) -> Act:
    def act(cluster: Cluster) -> None:
        cluster.plan.heal(one, other)
        cluster.plan.heal(other, one)

    return act


def garble(share: float) -> Act:
    def act(cluster: Cluster) -> None:
        cluster.network.garbled = share

    return act


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and its end `after` seconds."""

    act: Act
    after: float = 0.0
    undo: Act | None = None
    setting: Setting = PLAIN


CALM = spell(Faults())
HARMLESS = {
    "server killed, copied": Fault(
        kill("server 1"), 5.0, lambda cluster: cluster.start_server(1), COPIED
    ),
    "scheduler killed": Fault(kill("scheduler"), 5.0, lambda cluster: cluster.start_scheduler()),
    "server stopped": Fault(freeze("server 1"), 2.0, thaw("server 1")),
    "worker stopped": Fault(freeze("worker 1"), 2.0, thaw("worker 1")),
    "scheduler stopped": Fault(freeze("scheduler"), 20.0, thaw("scheduler")),
    "drop": Fault(spell(Faults(drop=0.3)), 5.0, CALM),
    "duplicate": Fault(spell(Faults(duplicate=0.3)), 5.0, CALM),
    "delay": Fault(spell(Faults(delay=0.3, delay_up_to=2.0)), 5.0, CALM),
    "reorder": Fault(spell(Faults(reorder=0.5, reorder_within=0.2)), 5.0, CALM),
    "all at once": Fault(spell(Faults.all(0.2)), 5.0, CALM),
    "server cut from worker": Fault(cut(SERVER_1, WORKER_0), 5.0, heal(SERVER_1, WORKER_0)),
    "worker cut from scheduler": Fault(cut(WORKER_1, SCHEDULER_ID), 1.5, heal(WORKER_1, 1)),
    "garbled": Fault(garble(0.2), 5.0, garble(0.0)),
}
"""Faults after which everything goes on and nothing is missing."""


def harmed(fault: Fault, moment: str, seed: int, mode: str = "async") -> Cluster:
    """The cluster that met `fault`, after its end."""
    cluster = Cluster(seed, fault.setting, mode)
    cluster.harm(moment, fault.act, fault.after, fault.undo)
    cluster.run()
    return cluster


SEEDS = seeds(12, fast=1, slow=4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", HARMLESS)
def test_ones_add_up_and_everybody_ends_well(name: str, moment: str, seed: int) -> None:
    cluster = harmed(HARMLESS[name], moment, seed)

    assert cluster.is_harmed
    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert set(cluster.sums) == {0, 1}
    for rows in cluster.sums.values():
        np.testing.assert_array_equal(rows, -2 * PUSHES)


SAVES = {
    **HARMLESS,
    "keeper of news killed": Fault(
        kill("server 0"), 5.0, lambda cluster: cluster.start_server(0), COPIED
    ),
}
FATAL_TO_SAVES = {"server killed, copied", "keeper of news killed"}  # others only delay one


@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SAVES)
def test_a_checkpoint_amid_a_fault_is_good_or_none_and_the_next_is_good(
    name: str, seed: int, mode: str, tmp_path: Path
) -> None:
    fault = SAVES[name]
    cluster = Cluster(seed, fault.setting, mode, tmp_path)
    cluster.harm(SAVING, fault.act, fault.after, fault.undo)
    cluster.run()

    assert cluster.ends == dict.fromkeys(cluster.ends)
    for rows in cluster.sums.values():
        np.testing.assert_array_equal(rows, -2 * PUSHES)
    first, second = cluster.saved
    assert first == second
    shelf = Shelf(place_of(str(tmp_path)))
    assert [text for text in first if text.startswith("ckpt-")] == shelf.names()
    assert len(shelf.names()) == 2 or name in FATAL_TO_SAVES
    for checkpoint in shelf.names():
        tables = SavedTables(shelf, shelf.verify(checkpoint))
        weights = [tables.weights("t", batch).reshape(-1) for batch in tables.batches("t")]
        assert np.concatenate(weights).tolist() == [-2 * PUSHES] * KEYS.size


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_amid_a_checkpoint_is_not_waited_for(
    rank: int, seed: int, tmp_path: Path
) -> None:
    """Where it was the one that led, another does so from then on."""
    cluster = Cluster(seed, GOING_ON, folder=tmp_path)
    cluster.harm(SAVING, kill(f"worker {rank}"))
    cluster.run()

    assert cluster.ends[f"worker {1 - rank}"] is None
    shelf = Shelf(place_of(str(tmp_path)))
    first, second = cluster.saved[1 - rank]
    assert second == shelf.names()[-1]
    assert first in shelf.names() or (rank == 0 and "the worker that led has died" in first)
    for checkpoint in shelf.names():
        shelf.verify(checkpoint)


@pytest.mark.parametrize("moment", MOMENTS)
def test_in_rounds_ones_add_up_too(moment: str) -> None:
    for name in ("all at once", "server stopped", "scheduler killed"):
        cluster = harmed(HARMLESS[name], moment, 5, "sync")

        assert cluster.ends == dict.fromkeys(cluster.ends), name
        for rows in cluster.sums.values():
            np.testing.assert_array_equal(rows, -2 * PUSHES)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", ["steady", "barrier", "shutdown"])
def test_a_killed_worker_holds_nobody_up_and_what_it_was_told_is_there(
    moment: str, seed: int
) -> None:
    cluster = harmed(Fault(kill("worker 1"), setting=GOING_ON), moment, seed)

    assert cluster.ends["scheduler"] is None
    assert cluster.ends["worker 0"] is None
    rows = -cluster.sums[0]
    assert cluster.acked[0] == PUSHES
    assert rows.min() >= PUSHES + cluster.acked[1]
    assert rows.max() <= PUSHES + cluster.sent[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["worker 1", "server 1"])
def test_by_default_a_killed_node_ends_the_job_with_its_name(
    victim: str, moment: str, seed: int
) -> None:
    cluster = harmed(Fault(kill(victim), setting=STOPPING), moment, seed)

    assert isinstance(cluster.ends["scheduler"], (ClusterStartError, ClusterStoppedError))
    # Of one that never came only the role is known.
    names = (victim, f"have not come: 1 {victim.split()[0]}")
    others = {"scheduler", "worker 0", "worker 1", "server 0", "server 1"} - {victim}
    for name in others & cluster.ends.keys():
        end = cluster.ends[name]
        if end is not None:  # a worker may have left before
            assert any(known in str(end) for known in names), (name, str(end))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", ["steady", "barrier"])
def test_a_server_that_stood_still_for_too_long_is_fenced_and_its_copy_takes_over(
    moment: str, seed: int
) -> None:
    fault = Fault(freeze("server 1"), 20.0, thaw("server 1"), COPIED)
    cluster = harmed(fault, moment, seed)

    for rows in cluster.sums.values():
        np.testing.assert_array_equal(rows, -2 * PUSHES)
    end = cluster.ends["server 1"]
    assert end is None or isinstance(end, FencedNodeError)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", ["steady", "barrier"])
def test_a_worker_cut_off_for_too_long_is_fenced_and_told_so(moment: str, seed: int) -> None:
    fault = Fault(cut(WORKER_1, 1), 20.0, heal(WORKER_1, 1), GOING_ON)
    cluster = harmed(fault, moment, seed)

    assert isinstance(cluster.ends["worker 1"], FencedNodeError)
    assert cluster.ends["worker 0"] is None
    assert (-cluster.sums[0]).min() >= PUSHES + cluster.acked[1]


def test_a_journal_of_a_cluster_that_was_killed_does_not_hinder_the_next() -> None:
    def kill_all(cluster: Cluster) -> None:
        for name in ("scheduler", "server 0", "server 1", "worker 0", "worker 1"):
            cluster.kill(name)

    def start_all(cluster: Cluster) -> None:
        cluster.start_scheduler()
        for rank in range(2):
            cluster.start_server(rank)
            cluster.start_worker(rank)

    cluster = harmed(Fault(kill_all, 1.0, start_all), "steady", 3)

    assert cluster.ends == dict.fromkeys(cluster.ends)
    for rows in cluster.sums.values():
        np.testing.assert_array_equal(rows, -2 * PUSHES)


def test_garbled_messages_are_counted_and_come_again() -> None:
    cluster = harmed(HARMLESS["garbled"], "steady", 3)

    assert cluster.network.count > 0
    assert any("malformed" in line for line in cluster.network.log)
