"""Faults on purpose in jobs of real processes, and what the report says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kv.checkpoint.places import place_of
from kv.checkpoint.shelf import Shelf
from tests.chaos.conftest import ChaosJob, Ended

STEPS = 100

# Each worker adds 1 to every row STEPS times; the pause stands for what else a step would do.
ONES_AND_COPIES = """
    import time
    import numpy as np
    import pslite

    with pslite.connect() as worker:
        table = worker.sparse_table("ones", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
        keys = np.arange(200)
        worker.wait(table.push(keys, np.zeros((200, 1))))
        worker.barrier("all are there")
        while {COPIES} > 0 and sum(server["copies"] for server in table.stats()) < 200:
            time.sleep(0.05)
        worker.barrier("all have copies")
        worker.barrier("ready")
        for _ in range({STEPS}):
            worker.wait(table.push(keys, np.full((200, 1), -1.0)))
            worker.step()
            time.sleep(0.01)  # a step's computing: the faults are to meet a job under way
        worker.barrier("all is pushed")
        rows = table.pull(keys)
        worker.barrier("all have looked")
        print("rows", int(rows.min()), int(rows.max()))
"""
# Counts 4000 records, in pieces.
RECORDS = """
    import pslite

    with pslite.connect() as worker:
        table = worker.sparse_table("counts", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
        table.pull([1])
        shards = worker.shards("numbers", 2000, epochs=2, unit=10)
        if not shards.has_begun:
            worker.barrier("all are there")
        for piece in shards:
            for start in range(piece.start, piece.stop, 10):
                worker.wait(table.push([1], [[-10.0]]))
                shards.seen(start + 10 - piece.start)
                worker.step()
        worker.barrier("all is read")
"""
ONES, COPIED_ONES = (
    ONES_AND_COPIES.replace("{STEPS}", str(STEPS)).replace("{COPIES}", str(copies))
    for copies in (0, 1)
)
COPIED = ("cluster.replicas=1", "cluster.on_server_failure=restart")


def assert_nothing_is_missing(ended: Ended, workers: int = 2) -> None:
    """Each worker has seen all ones, once."""
    assert ended.code == 0
    lines = [line for line in ended.out.splitlines() if "] rows " in line]
    assert [line.partition("] ")[2] for line in lines] == [
        f"rows {workers * STEPS} {workers * STEPS}"
    ] * workers


def test_a_killed_worker_ends_the_job_with_its_name_and_code(chaos_job: ChaosJob) -> None:
    ended = chaos_job(ONES, "kill worker:1@barrier+200ms", servers=1)

    assert ended.code == 128 + 9
    assert "worker 1: killed by SIGKILL" in ended.err
    (deed,) = ended.report["injected"]
    assert (deed["act"], deed["node"]) == ("kill", "worker 1")
    (seen,) = [seen for seen in ended.seen("ended", "launcher") if seen["node"] == "worker 1"]
    assert seen["status"] == "killed on purpose"
    assert ended.report["exit_code"] == ended.code


@pytest.mark.slow
def test_a_worker_that_is_killed_and_returns_leaves_a_ledger_that_balances(
    chaos_job: ChaosJob,
) -> None:
    restarted = "cluster.on_worker_failure=restart"
    ended = chaos_job(RECORDS, "kill worker@barrier+200ms", restarted, servers=1)

    assert ended.code == 0
    assert ended.report["ledger"]["balances"] is True
    assert "every record exactly once" in ended.err
    assert ended.seen("started", "launcher")
    assert [seen["node"] for seen in ended.seen("joined", "scheduler")] == [
        deed["node"] for deed in ended.report["injected"]
    ]


def test_a_ledger_that_does_not_balance_is_the_exit_code_of_the_job(chaos_job: ChaosJob) -> None:
    program = """
        import pslite

        with pslite.connect() as worker:
            worker.shards("numbers", 100)  # and nobody reads them
    """

    ended = chaos_job(program, "drop 1%", workers=1, servers=1)

    assert ended.code == 1
    assert ended.report["ledger"]["balances"] is False
    assert "DOES NOT BALANCE" in ended.err


def test_a_killed_server_with_a_copy_loses_no_push(chaos_job: ChaosJob) -> None:
    ended = chaos_job(COPIED_ONES, "kill server@barrier:3+300ms", *COPIED, workers=1)

    assert_nothing_is_missing(ended, workers=1)
    assert ended.seen("died", "scheduler")
    assert ended.seen("view", "worker 0")


@pytest.mark.slow
def test_what_the_launcher_sees_end_is_dead_at_once_whatever_the_time_out(
    chaos_job: ChaosJob,
) -> None:
    """With keys as well, by which nobody else may say so."""
    settings = (*COPIED, "cluster.on_worker_failure=continue", "security.curve=on")
    plan = "kill worker:1@barrier:3+300ms, kill server:1@barrier:3+800ms"

    ended = chaos_job(COPIED_ONES, plan, *settings, "cluster.heartbeat_timeout=30s")

    assert ended.code == 0
    died = {seen["node"]: seen for seen in ended.seen("died", "scheduler")}
    assert set(died) == {"worker 1", "server 1"}
    for seen in died.values():
        assert seen["why"].startswith("has ended: killed by SIGKILL")
        assert seen["after"] < 2.0
    assert ended.seen("view", "worker 0")


@pytest.mark.slow
def test_a_killed_server_without_a_copy_ends_the_job_with_its_name_and_that_of_the_checkpoint(
    chaos_job: ChaosJob,
) -> None:
    """Also of one that the program has taken in a folder of its own choice."""
    program = ONES.replace('worker.barrier("ready")', "pslite.Checkpoints(worker, 'own').save()")

    ended = chaos_job(program, "kill server:1@checkpoint+1s")

    assert ended.code == 128 + 9
    assert "server 1: killed by SIGKILL" in ended.err
    assert "the last good checkpoint is ckpt-000001 in own; the job goes on" in ended.err


@pytest.mark.slow
def test_a_scheduler_that_is_killed_and_returns_finds_its_cluster(chaos_job: ChaosJob) -> None:
    journal = "cluster.journal=journal"
    ended = chaos_job(ONES, "restart scheduler@barrier+300ms", journal, servers=1)

    assert_nothing_is_missing(ended)
    assert [seen["node"] for seen in ended.seen("started")] == ["scheduler"]


@pytest.mark.slow
def test_a_server_that_stands_still_for_a_second_is_waited_for(chaos_job: ChaosJob) -> None:
    ended = chaos_job(ONES, "stop server@barrier+300ms for 1s", servers=1, workers=1)

    assert_nothing_is_missing(ended, workers=1)
    assert [deed["act"] for deed in ended.report["injected"]] == ["stop", "cont"]
    assert not ended.seen("died")


def test_what_a_network_does_wrong_loses_and_repeats_no_push(chaos_job: ChaosJob) -> None:
    plan = (
        "drop 3%, duplicate 3%, delay 3% up to 200ms, reorder 3%, "
        "partition server:0 from worker:0@500ms for 2s"
    )
    ended = chaos_job(ONES, plan, servers=1, workers=1)

    assert_nothing_is_missing(ended, workers=1)
    for what in ("dropped", "duplicated", "delayed", "reordered"):
        assert ended.report["messages"][what] > 0
    assert len(ended.report["injected"]) == 5


@pytest.mark.parametrize(
    ("plan", "problem", "mark"),
    [
        ("kill serber@20s", "expected a role (scheduler, server, ", 5),
        ("kill server:9@20s", "there is no server 9 in a job of 2 servers: they are 0 to 1", 12),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_before_anything_starts(
    chaos_job: ChaosJob, plan: str, problem: str, mark: int
) -> None:
    ended = chaos_job(ONES, plan)

    assert ended.code == 2
    assert ended.out == ""
    assert f"[chaos] plan: {problem}" in ended.err
    assert f"    {plan}\n    {' ' * mark}^" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["start", "barrier:3", "barrier:4", "shutdown"])
@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("kill server", COPIED),
        ("restart scheduler", ("cluster.journal=journal",)),
        ("stop server", ()),
        ("stop worker", ()),
        ("stop scheduler", ()),
    ],
)
def test_nothing_is_missing_whatever_the_moment(
    chaos_job: ChaosJob, fault: str, settings: tuple[str, ...], moment: str
) -> None:
    end = " for 2s" if fault.startswith("stop") else ""

    program = COPIED_ONES if settings == COPIED else ONES
    ended = chaos_job(program, f"{fault}@{moment}{end}", *settings)

    if moment == "shutdown" and ended.code == 128 + 9:
        assert fault == "kill server"  # the job was over but for its end, which is told truly
    else:
        assert_nothing_is_missing(ended)


# Each worker adds 1 to every row STEPS times, and all save every 10 steps.
SAVED_ONES = """
    import os, time
    import numpy as np
    import pslite

    with pslite.connect() as worker:
        table = worker.sparse_table("ones", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
        keys, mark = np.arange(200), f"worker-{worker.rank}-has-begun"
        checkpoints = pslite.Checkpoints(worker, "kept", every_steps=10, full_every=3, keep=0)
        if os.path.exists(mark):
            checkpoints.join(dict)
        else:
            worker.wait(table.push(keys, np.zeros((200, 1))))
            worker.barrier("all are there")
            while {COPIES} > 0 and sum(server["copies"] for server in table.stats()) < 200:
                time.sleep(0.05)
            open(mark, "w").close()
            worker.barrier("all have copies")
        while worker.steps < {STEPS}:
            worker.wait(table.push(keys, np.full((200, 1), -1.0)))
            worker.step()
            checkpoints.at_step(lambda: {"steps": worker.steps})
            time.sleep(0.01)
        checkpoints.close(lambda: {"steps": worker.steps})
        worker.barrier("all is pushed")
        rows = table.pull(keys)
        worker.barrier("all have looked")
        print("rows", int(rows.min()), int(rows.max()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("kill server", COPIED),
        ("kill worker", ("cluster.on_worker_failure=restart",)),
        ("kill worker", ("cluster.on_worker_failure=continue",)),
        ("restart scheduler", ("cluster.journal=journal",)),
    ],
)
def test_a_fault_amid_a_checkpoint_harms_neither_the_job_nor_those_before(
    chaos_job: ChaosJob, tmp_path: Path, fault: str, settings: tuple[str, ...]
) -> None:
    program = SAVED_ONES.replace("{STEPS}", str(STEPS))
    program = program.replace("{COPIES}", str(int(settings == COPIED)))

    ended = chaos_job(program, f"{fault}@checkpoint:5", *settings)  # of two servers, the third

    assert [deed["act"] for deed in ended.report["injected"]] == [fault.split()[0]]
    if fault == "kill worker":
        assert ended.code == 0
    else:
        assert_nothing_is_missing(ended)
    shelf = Shelf(place_of(str(tmp_path / "kept")))
    for name in shelf.names():
        shelf.verify(name)
    steps = [max(shelf.manifest(name).steps) for name in shelf.names()]
    assert steps[:2] == [10, 20]
    assert steps[-1] >= STEPS - 10
    assert len(steps) >= STEPS // 10 - 2


@pytest.mark.slow
def test_a_worker_that_is_cut_off_for_too_long_is_told_that_it_is_fenced(
    chaos_job: ChaosJob,
) -> None:
    settings = ("cluster.heartbeat_timeout=3s", "cluster.on_worker_failure=continue")
    program = ONES.replace("sleep(0.01)", "sleep(0.1)")  # still at work when the partition ends

    ended = chaos_job(program, "partition worker:1 from scheduler@1s for 6s", *settings)

    assert [seen["node"] for seen in ended.seen("died", "scheduler")] == ["worker 1"]
    assert "FencedNodeError" in ended.out
