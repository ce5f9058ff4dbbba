"""When a local job stops: the decisions, without processes."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postoffice.node import Role
from pslite.lifecycle import (
    CONSEQUENCE,
    Failure,
    Lifecycle,
    NodeName,
    Phase,
    Tolerance,
    describe_status,
)

SCHEDULER = NodeName(Role.SCHEDULER, 0)
SERVER = NodeName(Role.SERVER, 0)
WORKERS = [NodeName(Role.WORKER, 0), NodeName(Role.WORKER, 1)]
INTERRUPT = Failure(None, -signal.SIGINT, "the launcher got SIGINT")


def running() -> Lifecycle:
    life = Lifecycle(finish_timeout=30.0, grace=3.0)
    for name in (SCHEDULER, SERVER, *WORKERS):
        life.started(name)
    life.all_started(now=0.0)
    return life


def test_a_job_ends_well_when_all_end_with_0() -> None:
    life = running()

    for name in (*WORKERS, SERVER, SCHEDULER):
        assert not life.is_over
        life.exited(name, 0, now=1.0)

    assert life.is_over
    assert life.failure is None


def test_the_rest_goes_on_when_one_worker_is_done() -> None:
    life = running()

    life.exited(WORKERS[0], 0, now=1.0)
    life.tick(now=1e9)

    assert life.phase is Phase.RUNNING


def test_servers_may_end_before_the_last_worker() -> None:
    life = running()

    life.exited(SERVER, 0, now=1.0)
    life.exited(SCHEDULER, 0, now=1.0)

    assert life.phase is Phase.RUNNING


def test_workers_done_before_all_was_started_end_the_job_all_the_same() -> None:
    life = Lifecycle(finish_timeout=30.0, grace=3.0)
    life.started(SCHEDULER)
    life.started(WORKERS[0])
    life.exited(WORKERS[0], 0, now=0.0)
    assert not life.is_over

    life.all_started(now=0.0)

    assert life.phase is Phase.FINISHING


def test_the_first_failure_stops_the_job() -> None:
    life = running()

    life.exited(WORKERS[1], 3, now=1.0)
    life.exited(SERVER, -signal.SIGTERM, now=1.1)

    assert life.phase is Phase.STOPPING
    assert life.failure == Failure(WORKERS[1], 3, "exit code 3")
    assert life.failure.exit_code == 3


def test_who_does_not_heed_sigterm_is_killed_after_the_grace() -> None:
    life = running()
    life.exited(WORKERS[1], 3, now=1.0)

    life.tick(now=3.9)
    assert life.phase is Phase.STOPPING
    life.tick(now=4.0)
    assert life.phase is Phase.KILLING


def test_servers_that_stay_after_the_last_worker_fail_the_job() -> None:
    life = running()
    for name in WORKERS:
        life.exited(name, 0, now=1.0)

    life.tick(now=30.9)
    assert life.phase is Phase.FINISHING
    life.tick(now=31.0)

    assert life.phase is Phase.STOPPING
    assert life.failure is not None
    assert "scheduler, server 0" in life.failure.problem
    assert life.failure.exit_code == 1


def test_a_server_that_fails_at_the_very_end_fails_the_job() -> None:
    life = running()
    for name in WORKERS:
        life.exited(name, 0, now=1.0)

    life.exited(SERVER, 1, now=2.0)

    assert life.failure == Failure(SERVER, 1, "exit code 1")


def test_a_signal_to_the_launcher_stops_the_job_and_a_second_one_kills() -> None:
    life = running()

    life.fail(INTERRUPT, now=1.0)
    assert life.phase is Phase.STOPPING
    life.fail(INTERRUPT, now=1.5)

    assert life.phase is Phase.KILLING
    assert life.failure is not None
    assert life.failure.exit_code == 130


def test_a_node_that_ended_because_of_another_does_not_take_the_blame() -> None:
    life = running()

    life.exited(SCHEDULER, CONSEQUENCE, now=1.0)
    assert life.phase is Phase.SEEKING
    life.exited(WORKERS[0], 1, now=1.2, is_consequence=True)
    life.exited(WORKERS[1], 3, now=1.4)

    assert life.failure == Failure(WORKERS[1], 3, "exit code 3")


def test_a_cause_that_does_not_show_itself_is_not_waited_for_for_ever() -> None:
    life = running()

    life.exited(SCHEDULER, CONSEQUENCE, now=1.0)
    life.tick(now=5.9)
    assert not life.is_stopping
    life.tick(now=6.0)

    assert life.failure is not None
    assert life.failure.node == SCHEDULER


def test_only_consequences_are_a_failure_too() -> None:
    life = running()

    for name in list(life.alive):
        life.exited(name, CONSEQUENCE, now=1.0)

    assert life.is_over
    assert life.failure is not None


def test_a_failure_while_starting_stops_the_job() -> None:
    life = Lifecycle(finish_timeout=30.0, grace=3.0)
    life.started(SCHEDULER)

    life.exited(SCHEDULER, 2, now=0.0)
    life.all_started(now=0.0)

    assert life.is_over
    assert life.failure == Failure(SCHEDULER, 2, "exit code 2")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (2, "exit code 2"),
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL (is memory short?)"),
        (-63, "killed by signal 63"),
    ],
)
def test_a_status_is_told_in_words(status: int, text: str) -> None:
    assert describe_status(status) == text


events = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([SCHEDULER, SERVER, *WORKERS]),
            st.sampled_from([0, 0, 0, 1, -9, CONSEQUENCE]),
        ),
        st.just("signal"),
        st.floats(0, 40).map(lambda seconds: ("wait", seconds)),
    ),
    max_size=12,
)


@given(events)
def test_whatever_happens_phases_only_go_forward_and_the_first_failure_stays(
    history: list[object],
) -> None:
    life, now = running(), 0.0
    for event in history:
        before, failure = life.phase.value, life.failure
        if event == "signal":
            life.fail(INTERRUPT, now)
        elif isinstance(event, tuple) and event[0] == "wait":
            now += event[1]
            life.tick(now)
        elif isinstance(event, tuple) and event[0] in life.alive:
            life.exited(event[0], event[1], now)

        assert life.phase.value >= before
        assert failure is None or life.failure == failure
        assert life.is_stopping == (life.failure is not None)
        assert life.is_over == (not life.alive)


def tolerant(
    worker: str = "stop", server: str = "stop", restarts: int = 2, scheduler: str = "stop"
) -> Lifecycle:
    tolerance = Tolerance(
        worker=worker, server=server, scheduler=scheduler, restarts=restarts, pause=1.0
    )
    life = Lifecycle(finish_timeout=30.0, grace=3.0, tolerance=tolerance)
    for name in (SCHEDULER, SERVER, *WORKERS):
        life.started(name)
    life.all_started(now=0.0)
    return life


@pytest.mark.parametrize("node", [WORKERS[0], SERVER])
def test_a_node_that_fails_is_started_again_after_a_pause_that_doubles(node: NodeName) -> None:
    life = tolerant("restart", "restart")

    life.exited(node, -9, now=10.0)
    assert life.take_due(now=10.9) == []
    assert life.take_due(now=11.0) == [node]
    assert life.take_due(now=99.0) == []
    life.started(node)
    life.exited(node, 3, now=20.0)
    assert life.take_due(now=21.9) == []
    assert life.take_due(now=22.0) == [node]

    assert (life.phase, life.failure, life.restarts) == (Phase.RUNNING, None, {node: 2})


@pytest.mark.parametrize(
    ("scheduler", "phase"), [("stop", Phase.STOPPING), ("restart", Phase.RUNNING)]
)
def test_a_scheduler_with_a_journal_is_started_again(scheduler: str, phase: Phase) -> None:
    life = tolerant("restart", scheduler=scheduler)

    life.exited(SCHEDULER, -9, now=10.0)

    assert life.phase is phase
    assert life.take_due(now=11.0) == ([SCHEDULER] if scheduler == "restart" else [])


def test_a_node_that_fails_too_often_ends_the_job_with_its_code() -> None:
    life = tolerant("restart", restarts=1)
    life.exited(WORKERS[0], 3, now=0.0)
    life.take_due(now=1.0)
    life.started(WORKERS[0])

    life.exited(WORKERS[0], 3, now=2.0)

    problem = "exit code 3, after 1 restarts ([cluster] max_restarts)"
    assert life.failure == Failure(WORKERS[0], 3, problem)


def test_a_job_does_not_end_while_its_last_worker_is_about_to_be_started_again() -> None:
    life = tolerant("restart")
    life.exited(WORKERS[0], 0, now=0.0)
    life.exited(WORKERS[1], 1, now=0.0)

    assert life.phase is Phase.RUNNING
    assert life.take_due(now=1.0) == [WORKERS[1]]
    life.started(WORKERS[1])
    life.exited(WORKERS[1], 0, now=2.0)

    assert life.phase is Phase.FINISHING


def test_others_go_on_without_a_worker_and_the_job_ends_well() -> None:
    life = tolerant("continue")

    life.exited(WORKERS[0], -9, now=0.0)
    assert life.phase is Phase.RUNNING
    for name in (WORKERS[1], SERVER, SCHEDULER):
        life.exited(name, 0, now=1.0)

    assert life.is_over
    assert life.failure is None
    assert list(life.lost) == [WORKERS[0]]


def test_the_failure_of_the_only_worker_left_fails_the_job() -> None:
    life = tolerant("continue")

    life.exited(WORKERS[0], 1, now=0.0)
    life.exited(WORKERS[1], 3, now=1.0)

    assert life.failure == Failure(WORKERS[1], 3, "exit code 3")


def test_a_worker_that_fails_after_another_has_done_its_part_does_not_fail_the_job() -> None:
    life = tolerant("continue")

    life.exited(WORKERS[0], 0, now=0.0)
    life.exited(WORKERS[1], 3, now=1.0)

    assert life.failure is None
    assert life.phase is Phase.FINISHING


def test_nothing_is_started_again_once_the_job_stops() -> None:
    life = tolerant("restart")
    life.exited(WORKERS[0], 1, now=0.0)

    life.fail(INTERRUPT, now=0.5)

    assert life.take_due(now=99.0) == []
    for name in (WORKERS[1], SERVER, SCHEDULER):
        life.exited(name, -signal.SIGTERM, now=1.0)
    assert life.is_over


@pytest.mark.parametrize("worker", ["restart", "continue"])
def test_the_scheduler_is_not_spared(worker: str) -> None:
    life = tolerant(worker, "restart")

    life.exited(SCHEDULER, -9, now=0.0)

    assert life.failure is not None
    assert life.failure.node == SCHEDULER


@pytest.mark.parametrize("node", [SCHEDULER, SERVER, WORKERS[0]])
def test_a_node_that_is_killed_to_return_is_started_again_whatever_the_settings_say(
    node: NodeName,
) -> None:
    life = running()

    life.will_return(node)
    life.exited(node, -signal.SIGKILL, now=1.0)

    assert life.phase is Phase.RUNNING
    assert life.take_due(now=2.0) == [node]
    life.started(node)
    life.exited(node, -signal.SIGKILL, now=3.0)  # and this time nobody meant it
    assert life.failure is not None


# -- the whole job anew ---------------------------------------------------------------------


def bearing(server: str, restarts: int = 3) -> Lifecycle:
    tolerance = Tolerance(server=server, restarts=restarts, pause=1.0)
    life = Lifecycle(finish_timeout=30.0, grace=3.0, tolerance=tolerance)
    start_all(life)
    return life


def start_all(life: Lifecycle) -> None:
    for name in (SCHEDULER, SERVER, *WORKERS):
        life.started(name)
    life.all_started(now=0.0)


def test_a_job_begins_again_when_all_nodes_have_ended_and_not_too_often() -> None:
    life = bearing("again", restarts=2)
    for now in (10.0, 20.0):
        life.exited(SERVER, -9, now)
        assert life.phase is Phase.STOPPING
        for name in (SCHEDULER, *WORKERS):
            assert not life.takes_again(now + 9)
            life.exited(name, -15, now)
        assert not life.is_over
        assert not life.takes_again(now + 0.5), "the pause"
        assert life.takes_again(now + 5)
        start_all(life)
        assert (life.phase, life.failure) == (Phase.RUNNING, None)

    life.exited(SERVER, -9, now=30.0)

    assert life.failure is not None
    assert "after 2 beginnings from a checkpoint ([cluster] max_restarts)" in life.failure.problem
    assert life.failure.exit_code == 137


def test_who_stops_a_job_that_is_about_to_begin_again_stops_it() -> None:
    life = bearing("again")
    life.exited(SERVER, -9, now=1.0)

    life.fail(INTERRUPT, now=1.1)
    for name in (SCHEDULER, *WORKERS):
        life.exited(name, -15, now=1.2)

    assert life.is_over
    assert not life.takes_again(now=100.0)
    assert life.failure is INTERRUPT


def test_a_job_begins_again_also_when_others_have_ended_because_of_the_server() -> None:
    life = bearing("again")

    life.exited(WORKERS[0], CONSEQUENCE, now=1.0)
    life.exited(SERVER, -9, now=1.1)

    assert life.again == Failure(SERVER, -9, describe_status(-9))
    assert life.failure is None


def test_a_server_that_was_more_than_the_others_could_bear_takes_the_blame() -> None:
    life = bearing("restart")
    life.exited(SERVER, -9, now=1.0)

    for name in (*WORKERS, SCHEDULER):
        life.exited(name, CONSEQUENCE, now=2.0)
    life.tick(now=60.0)

    assert life.failure == Failure(SERVER, -9, describe_status(-9))


@pytest.mark.parametrize("order", [(*WORKERS, SCHEDULER), (SCHEDULER, *WORKERS)])
def test_a_server_that_came_too_late_to_hear_of_the_end_does_not_fail_the_job(
    order: tuple[NodeName, ...],
) -> None:
    life = tolerant(server="restart")
    life.exited(SERVER, -9, now=0.0)
    life.started(life.take_due(now=1.0)[0])
    for name in order:
        life.exited(name, 0, now=2.0)

    assert life.take_dismissed(now=6.9) == []
    assert life.take_dismissed(now=7.0) == [SERVER]
    assert life.take_dismissed(now=8.0) == []
    life.exited(SERVER, -15, now=8.0)

    assert life.is_over
    assert life.failure is None


def test_a_server_of_the_beginning_is_not_dismissed() -> None:
    life = tolerant(server="restart")
    for name in (*WORKERS, SCHEDULER):
        life.exited(name, 0, now=2.0)

    assert life.take_dismissed(now=20.0) == []
    life.tick(now=33.0)

    assert life.failure is not None
    assert "still running" in life.failure.problem


def test_a_server_that_nobody_needs_any_more_is_not_started_again() -> None:
    life = tolerant(server="restart")
    life.exited(SERVER, -9, now=0.0)
    for name in (*WORKERS, SCHEDULER):
        life.exited(name, 0, now=0.5)

    assert life.take_due(now=1.0) == []
    assert life.is_over


def test_a_dispatcher_is_started_again_so_often_and_then_done_without() -> None:
    dispatcher = NodeName(Role.DISPATCHER, 0)
    life = Lifecycle(
        finish_timeout=30.0,
        grace=3.0,
        tolerance=Tolerance(dispatcher="restart", restarts=1, pause=1.0),
    )
    for name in (SCHEDULER, SERVER, dispatcher, *WORKERS):
        life.started(name)
    life.all_started(now=0.0)

    life.exited(dispatcher, -9, now=1.0)
    assert life.take_due(now=2.0) == [dispatcher]
    life.started(dispatcher)
    life.exited(dispatcher, -9, now=3.0)

    assert life.take_due(now=1e9) == []
    assert dispatcher in life.lost
    assert life.phase is Phase.RUNNING


def test_a_dispatcher_that_fails_when_the_workers_are_done_is_no_loss() -> None:
    dispatcher = NodeName(Role.DISPATCHER, 0)
    life = Lifecycle(finish_timeout=30.0, grace=3.0, tolerance=Tolerance(dispatcher="restart"))
    for name in (SCHEDULER, SERVER, dispatcher, WORKERS[0]):
        life.started(name)
    life.all_started(now=0.0)
    life.exited(WORKERS[0], 0, now=1.0)

    life.exited(dispatcher, 1, now=1.1)
    for name in (SERVER, SCHEDULER):
        life.exited(name, 0, now=1.2)

    assert life.is_over
    assert life.failure is None


def life_with_a_dispatcher() -> tuple[Lifecycle, NodeName]:
    """A job under way whose dispatcher may be started again."""
    dispatcher = NodeName(Role.DISPATCHER, 0)
    life = Lifecycle(
        finish_timeout=30.0, grace=3.0, tolerance=Tolerance(dispatcher="restart", pause=0.1)
    )
    for name in (SCHEDULER, SERVER, dispatcher, *WORKERS):
        life.started(name)
    life.all_started(now=0.0)
    return life, dispatcher


def test_a_dispatcher_is_not_started_again_while_the_cause_of_an_end_is_sought() -> None:
    life, dispatcher = life_with_a_dispatcher()
    life.exited(SCHEDULER, CONSEQUENCE, now=1.0)
    assert life.phase is Phase.SEEKING

    life.exited(dispatcher, 1, now=1.1)

    assert life.take_due(now=1.5) == []
    life.exited(WORKERS[0], 3, now=1.6)
    assert life.failure == Failure(WORKERS[0], 3, "exit code 3")


def test_a_dispatcher_that_was_started_again_takes_no_blame_for_what_comes_later() -> None:
    life, dispatcher = life_with_a_dispatcher()
    life.exited(dispatcher, -9, now=1.0)

    life.exited(SCHEDULER, CONSEQUENCE, now=2.0)
    life.tick(now=60.0)

    assert life.failure is not None
    assert life.failure.node == SCHEDULER
