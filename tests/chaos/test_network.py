"""The part of a plan that nodes carry out on their messages."""

from __future__ import annotations

from pathlib import Path

from pslite.chaos.chronicle import Chronicle, Notes, start_of
from pslite.chaos.config import ChaosConfig
from pslite.chaos.network import Chaos, fault_plan
from van.loopback import LoopbackNetwork
from van.message import Meta

SERVER_0, SERVER_1, WORKER_0, WORKER_1 = 8, 10, 9, 11


def loses(plan: str, source: int, target: int, at: float) -> bool:
    """Whether a plan that has run for `at` seconds loses a message."""
    faults = fault_plan(ChaosConfig(plan=plan))
    faults.start(0.0)
    return faults.fate(Meta(sender=source, recipient=target), at) == []


def test_a_partition_parts_its_nodes_in_both_directions_for_its_time() -> None:
    plan = "partition server:1 from worker:0@40s for 5s"

    assert loses(plan, SERVER_1, WORKER_0, 40.0)
    assert loses(plan, WORKER_0, SERVER_1, 44.9)
    assert not loses(plan, WORKER_0, SERVER_1, 45.0)
    assert not loses(plan, WORKER_0, SERVER_1, 39.9)
    assert not loses(plan, WORKER_0, SERVER_0, 42.0)
    assert not loses(plan, WORKER_1, SERVER_1, 42.0)


def test_a_role_without_a_rank_means_all_its_nodes() -> None:
    plan = "drop 100% between server and worker:1 from 3s"

    assert loses(plan, SERVER_0, WORKER_1, 3.0)
    assert loses(plan, WORKER_1, SERVER_1, 1e9)
    assert not loses(plan, SERVER_1, WORKER_0, 5.0)
    assert not loses(plan, SERVER_1, WORKER_1, 2.0)


def test_faults_without_a_time_concern_nodes_that_have_not_met() -> None:
    always = fault_plan(ChaosConfig(plan="drop 100%"))
    later = fault_plan(ChaosConfig(plan="drop 100% from 0s"))

    assert always.fate(Meta(sender=9, recipient=1), 5.0) == []
    assert later.fate(Meta(sender=9, recipient=1), 5.0) == [0.0]


def test_harms_are_those_of_the_plan() -> None:
    faults = fault_plan(ChaosConfig(plan="delay 100% up to 3s, reorder 7% up to 1s", seed=3))
    faults.start(0.0)

    fates = [faults.fate(Meta(sender=9, recipient=8), 1.0) for _ in range(200)]

    assert 2.0 < max(max(fate) for fate in fates) <= 3.0
    assert faults.counts["delayed"] == 200


def test_a_plan_about_processes_alone_leaves_messages_alone(tmp_path: Path) -> None:
    van = LoopbackNetwork().van()

    assert Chaos(ChaosConfig(plan="kill server@3s"), tmp_path, "worker 0").around(van) is van
    assert Chaos(ChaosConfig(plan="drop 1%"), tmp_path, "worker 0").around(van) is not van


def test_notes_of_several_processes_are_read_as_they_come(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0])
    one = Chronicle(tmp_path, "launcher", lambda: next(times))
    other = Chronicle(tmp_path, "scheduler", lambda: next(times))
    notes = Notes(tmp_path)
    assert start_of(tmp_path) is None

    one.note("act", node="server 0")
    assert notes.fresh() == [{"at": 1.0, "by": "launcher", "what": "act", "node": "server 0"}]
    other.note("start")
    with open(one.path, "ab") as file:
        file.write(b'{"at": 4.0')
    assert [note["what"] for note in notes.fresh()] == ["start"]
    with open(one.path, "ab") as file:
        file.write(b', "what": "late"}\n')
    assert notes.fresh() == [{"at": 4.0, "what": "late"}]
    assert start_of(tmp_path) == 2.0

    one.clear()
    assert Notes(tmp_path).fresh() == []
