"""The report of a job in which things went wrong on purpose."""

from __future__ import annotations

from typing import Any

from pslite.chaos.parsing import parse_plan
from pslite.chaos.report import describe, make_report

START = 1000.0


def note(at: float, by: str, what: str, **facts: Any) -> dict[str, Any]:
    return {"at": START + at, "by": by, "what": what, **facts}


KILL = "kill server:0@10s"
KILLED = [
    note(0, "scheduler", "start"),
    note(0, "worker 0", "view", epoch=1, map=1, dead=[]),
    *(note(t, "scheduler", "work", work={"worker 0": [100 * t, 0]}) for t in range(1, 11)),
    note(10, "launcher", "act", act="kill", node="server 0", clause=KILL),
    note(10.25, "launcher", "ended", node="server 0", status="killed by SIGKILL"),
    note(13, "scheduler", "died", node="server 0", life=3, why="was silent for 3 s"),
    note(13.5, "worker 0", "view", epoch=2, map=2, dead=["server 0"]),
    note(14, "scheduler", "work", work={"worker 0": [1000, 0]}),
    *(note(t, "scheduler", "work", work={"worker 0": [100 * t - 400, 0]}) for t in range(15, 31)),
    note(30, "worker 0", "view", epoch=3, map=2, dead=["server 0"]),
    note(30, "scheduler", "left", node="worker 0"),
    note(31, "launcher", "ended", node="worker 0", status="exit code 0"),
    note(31, "worker 0", "messages", counts={"passed": 1200, "dropped": 3}),
    note(31, "server 1", "messages", counts={"passed": 800}),
]


def test_times_are_seconds_after_the_start() -> None:
    report = make_report(parse_plan(f"{KILL}, drop 1% from 5s"), 7, KILLED, 0)

    assert [(deed["at"], deed["act"]) for deed in report["injected"]] == [
        (5.0, "drop"),
        (10.0, "kill"),
    ]


def test_what_was_noticed_says_by_whom_and_how_long_after_the_fault() -> None:
    report = make_report(parse_plan(KILL), 7, KILLED, 0)

    assert [(seen["by"], seen["what"], seen["after"]) for seen in report["noticed"]] == [
        ("launcher", "ended", 0.25),
        ("scheduler", "died", 3.0),
        ("worker 0", "view", None),
    ]


def test_the_rate_is_told_before_and_after_and_how_long_it_suffered() -> None:
    work = make_report(parse_plan(KILL), 7, KILLED, 0)["work"]

    (dent,) = work["dents"]
    assert work["unit"] == "steps"
    assert abs(work["before"] - 100) < 5
    assert 3 <= dent["suffered"] <= 5
    assert abs(dent["after"] - 100) < 5


def test_a_fault_from_the_start_on_is_part_of_the_rate_before_the_others() -> None:
    work = make_report(parse_plan(f"drop 2%, {KILL}"), 7, KILLED, 0)["work"]

    assert [dent["clause"] for dent in work["dents"]] == [KILL]
    assert abs(work["before"] - 100) < 5


def test_messages_of_all_nodes_are_added_up() -> None:
    report = make_report(parse_plan(KILL), 7, KILLED, 0)

    assert report["messages"] == {"passed": 2000, "dropped": 3}


def test_the_text_has_each_of_it() -> None:
    text = describe(make_report(parse_plan(KILL), 7, KILLED, 0))

    for part in (
        "chaos, seed 7: kill server:0@10s",
        "10.00 s kill server 0",
        "scheduler: server 0 is dead: it was silent for 3 s, 3.00 s after the fault",
        "worker 0: epoch 2, slot map 2, dead: server 0",
        "messages of the nodes that ended in order: 3 dropped, 2,000 passed",
        "the rate suffered for",
    ):
        assert part in text


def test_a_clause_whose_moment_never_came_is_told() -> None:
    never = "kill worker@barrier:30"

    report = make_report(parse_plan(f"{KILL}, {never}, drop 1% from 1h"), 7, KILLED, 0)

    assert report["missed"] == [never, "drop 1% from 1h"]
    assert f"never came: {never}" in describe(report)


def test_a_job_whose_nodes_never_met_says_so() -> None:
    notes = [note(0, "launcher", "ended", node="setup", status="exit code 1")]

    report = make_report(parse_plan("drop 100%, kill server@2s"), 1, notes, 1)

    assert report["injected"] == []
    assert "the nodes never met" in describe(report)
