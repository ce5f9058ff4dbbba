"""The language of plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postoffice.node import Role
from pslite.chaos.parsing import PlanError, parse_plan
from pslite.chaos.plan import (
    ACTS,
    EVENTS,
    HARMS,
    ROLES,
    MessageFault,
    Moment,
    Partition,
    Plan,
    ProcessFault,
    Who,
)
from pslite.config import parse_job
from van.errors import ConfigError

TIMES = st.floats(0, 1e6, allow_nan=False) | st.integers(0, 10_000).map(lambda ms: ms / 1000)
RANKED = st.sampled_from([Role.SERVER, Role.WORKER, Role.DISPATCHER])
WHO = st.builds(Who, RANKED, st.none() | st.integers(0, 99))
ANYBODY = WHO | st.just(Who(Role.SCHEDULER))
MOMENTS = st.builds(Moment, after=TIMES) | st.builds(
    Moment, st.sampled_from(EVENTS), st.integers(1, 9), TIMES
)
STARTS = st.one_of(st.tuples(st.none(), st.none()), st.tuples(TIMES, st.none() | TIMES))


@st.composite
def process_faults(draw: st.DrawFn) -> ProcessFault:
    act = draw(st.sampled_from(ACTS))
    duration = draw(st.none() | TIMES) if act == "stop" else None
    return ProcessFault(act, draw(ANYBODY), draw(MOMENTS), duration)


@st.composite
def message_faults(draw: st.DrawFn) -> MessageFault:
    harm = draw(st.sampled_from(HARMS))
    percent = draw(st.floats(0, 100, exclude_min=True))
    up_to = None if harm == "drop" else draw(st.none() | TIMES)
    pairs = st.tuples(ANYBODY, ANYBODY).filter(lambda pair: pair[0] != pair[1])
    between = draw(st.none() | pairs)
    return MessageFault(harm, percent, up_to, between, *draw(STARTS))


PARTITIONS = st.builds(
    Partition, WHO, st.just(Who(Role.SCHEDULER)), TIMES, st.none() | TIMES
) | st.builds(Partition, st.just(Who(Role.SERVER, 1)), st.just(Who(Role.WORKER)), TIMES)
CLAUSES = st.one_of(process_faults(), message_faults(), PARTITIONS)


@given(st.lists(CLAUSES, max_size=5))
def test_a_plan_reads_back_from_its_text(clauses: list[ProcessFault]) -> None:
    plan = Plan(tuple(clauses))

    assert parse_plan(str(plan)) == plan


@given(st.text("kil server:1@20s,dop %partionfm", max_size=40))
def test_any_other_text_is_a_plan_error_within_the_text(text: str) -> None:
    try:
        plan = parse_plan(text)
    except PlanError as error:
        place = error.place
    else:
        assert parse_plan(str(plan)) == plan
        place = 0
    assert 0 <= place <= len(text)


def test_the_plan_of_the_docs() -> None:
    text = (
        "kill server@20s, stop worker@30s for 10s, drop 2%,\n"
        "partition server:1 from worker:0@40s for 5s"
    )

    plan = parse_plan(text)

    assert plan.clauses == (
        ProcessFault("kill", Who(Role.SERVER), Moment(after=20.0)),
        ProcessFault("stop", Who(Role.WORKER), Moment(after=30.0), 10.0),
        MessageFault("drop", 2.0),
        Partition(Who(Role.SERVER, 1), Who(Role.WORKER, 0), 40.0, 5.0),
    )


@pytest.mark.parametrize(
    ("text", "problem", "marked"),
    [
        ("kill serber@20s", "expected a role (scheduler, server, ", "serber"),
        ("kil server@20s", "did you mean kill?", "kil"),
        ("drop 2", "expected '%', the plan ends", ""),
        ("drop 200%", "at most 100%", "200"),
        ("drop 2% for 5s", "say from when", "for"),
        ("drop 2% up to 5s", "never late", "up"),
        ("kill server", "expected '@', the plan ends", ""),
        ("kill server@soon", "a moment (start, barrier, checkpoint, shutdown)", "soon"),
        ("kill server@20parsecs", "unknown unit 'parsecs'", "20parsecs"),
        ("kill server@20s for 3s", "a kill has no end", "for"),
        ("kill server:x@20s", "expected the rank of a server", "x"),
        ("stop worker@barrier:0", "counted from 1", "0"),
        ("kill scheduler:1@2s", "there is one scheduler", "1@"),
        ("partition scheduler from scheduler:0@2s", "not parted from itself", "scheduler:0"),
        ("drop 2% between worker:0 and worker:0", "itself no messages", "worker:0"),
        ("kill server@barrier:9999999999", "counted from 1", "9999999999"),
        (f"kill server:{'9' * 500}@2s", f"got '{'9' * 60}…'", "999"),
        ("kill server@2s kill worker@3s", "expected ','", "kill worker"),
        ("drop 2%, partition server:1 from server:1@2s", "not parted from itself", "server:1@"),
    ],
)
def test_an_error_shows_what_is_wrong_and_where(text: str, problem: str, marked: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)

    assert problem in str(caught.value)
    assert text[caught.value.place :].startswith(marked)
    *_, shown, arrow = str(caught.value).split("\n")
    assert shown[arrow.index("^") :].startswith(marked)


@pytest.mark.parametrize(
    ("text", "problem", "marked"),
    [
        ("kill server:9@2s", "no server 9 in a job of 2 servers: they are 0 to 1", "9@2s"),
        ("drop 2%, stop worker:1@2s for 1s", "no worker 1 in a job of 1 worker: the only", "1@2s"),
        ("partition server:1 from worker:3@2s", "there is no worker 3", "3@2s"),
        ("drop 2% between server:2 and worker", "there is no server 2", "2 and"),
        ("kill worker@1s, kill dispatcher@2s", "the job has no dispatcher", "dispatcher@"),
    ],
)
def test_a_plan_for_nodes_that_the_job_does_not_have_is_refused_at_the_place(
    text: str, problem: str, marked: str
) -> None:
    job = parse_job(f"[cluster]\nservers = 2\n[chaos]\nplan = {text}\n")

    with pytest.raises(ConfigError, match=r"^\[chaos\] plan: ") as caught:
        job.chaos.check(job.cluster)

    assert problem in str(caught.value)
    *_, shown, arrow = str(caught.value).split("\n")
    assert shown[arrow.index("^") :].startswith(marked)


def test_a_plan_for_nodes_that_are_there_is_right() -> None:
    plan = "kill server:1@2s, stop worker:0@1s, kill scheduler@3s, drop 1%"
    job = parse_job(f"[cluster]\nservers = 2\n[chaos]\nplan = {plan}\n")

    job.chaos.check(job.cluster)


def test_a_wrong_plan_names_its_place_in_the_ini_file() -> None:
    with pytest.raises(ConfigError, match=r"my.ini \[chaos\] plan: expected a role"):
        parse_job("[chaos]\nplan = kill it@20s\n", "my.ini")


@given(st.lists(CLAUSES, max_size=3), st.integers(0, 2**63 - 1))
def test_a_plan_travels_to_the_nodes(clauses: list[ProcessFault], seed: int) -> None:
    plan = Plan(tuple(clauses))

    job = parse_job(f"[chaos]\nplan = {plan}\nseed = {seed}\n")

    assert parse_job(job.to_ini()).chaos == job.chaos
    assert job.chaos.parsed == plan


def test_roles_of_plans_are_those_of_processes() -> None:
    assert set(ROLES) == set(Role)
