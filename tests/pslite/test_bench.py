"""`pslite bench`: what it measures, how it judges, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import itertools
import json
import os
import pkgutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

import pslite.bench
from pslite import cli
from pslite.bench import command, formulas, report, targets, trace
from pslite.bench.cases import TableCase, keys_at, position_lists
from pslite.bench.errors import BenchError
from pslite.bench.progress import Progress
from pslite.bench.results import Measurement, Results, ratio
from pslite.bench.run import Options, Sizes, run
from pslite.bench.workloads import WORKLOADS

Environment = Callable[..., dict[str, str]]
LIMIT = 120  # seconds; no run should come near
TINY = Sizes(
    rounds=2, seconds=0.002, rows=500, dims=(4,), counts=(10,), with_sgd=False, traced=(1, 10)
)
GOOD_PEER = """
    label = "good"
    class Peer:
        def start(self): pass
        def prepare(self, rows, dim, optimizer): self.dim = dim
        def keys(self, positions): return positions
        def pull(self, rows): pass
        def push(self, rows, grads): assert grads.shape == (rows.size, self.dim)
        def push_pull(self, rows, grads): pass
"""


def workload(name: str) -> Any:
    return next(one for one in WORKLOADS if one.name == name)


def measured(what: str, peer: str, values: list[float], unit: str = "keys/s", **case: Any) -> Any:
    return {
        "workload": "tables", "what": what, "peer": peer, "unit": unit, "case": case,
        "values": values,
    }  # fmt: skip


# -- lists of keys ------------------------------------------------------------------------------


def a_case(**changes: Any) -> TableCase:
    return TableCase(
        **{"op": "pull", "count": 50, "dim": 2, "optimizer": "sgd", "rows": 400, **changes}
    )


def test_the_same_seed_gives_the_same_lists_and_each_list_is_new() -> None:
    first, again = (list(itertools.islice(position_lists(a_case(), 3), 4)) for _ in range(2))

    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[1])


def test_a_repeated_case_has_one_list() -> None:
    lists = list(itertools.islice(position_lists(a_case(is_repeated=True), 3), 3))

    assert all(np.array_equal(lists[0], other) for other in lists)


def test_positions_and_keys_increase_and_name_the_same_rows() -> None:
    positions = next(position_lists(a_case(), 5))
    keys = keys_at(positions)

    assert (np.diff(positions) > 0).all()
    assert (keys[1:] > keys[:-1]).all()
    assert set(keys.tolist()) == {int(keys_at(np.array([p]))[0]) for p in positions}


# -- figures ------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_over_rounds_so_a_slow_round_of_the_machine_is_excused() -> None:
    ours = Measurement(**measured("pull", "pslite tcp", [10.0, 2.0, 10.0]))
    theirs = Measurement(**measured("pull", "other", [5.0, 1.0, 5.0]))

    assert ratio(ours, theirs) == 2.0


def test_a_ratio_of_seconds_is_of_speeds() -> None:
    ours = Measurement(**measured("x", "pslite", [2.0], unit="s"))
    theirs = Measurement(**measured("x", "bare", [1.0], unit="s"))

    assert ratio(ours, theirs) == 0.5


def table_results(ours: float) -> Results:
    results = Results()
    case = {"dim": 8, "count": 10_000, "optimizer": "adagrad", "rows": 100}
    for peer, rate in [
        ("pslite tcp", ours),
        ("slow", 1.0),
        ("fast", 2.0),
        (targets.SERVERLESS, 99.0),
    ]:
        results.add(**measured("push", peer, [rate] * 3, **case))
    return results


@pytest.mark.parametrize(("ours", "is_met"), [(10.0, True), (9.9, False)])
def test_a_push_is_compared_with_the_best_server(ours: float, is_met: bool) -> None:
    (verdict,) = targets.verdicts(table_results(ours))

    assert verdict.peer == "fast"
    assert verdict.value == pytest.approx(ours / 2)
    assert verdict.is_met is is_met


def test_the_worst_case_decides() -> None:
    results = table_results(30.0)
    case = {"dim": 64, "count": 100_000, "optimizer": "adagrad", "rows": 100}
    results.add(**measured("push", "pslite tcp", [6.0], **case))
    results.add(**measured("push", "fast", [2.0], **case))

    (verdict,) = targets.verdicts(results)

    assert verdict.where == "dim 64, K = 100 000"
    assert verdict.value == 3.0
    assert not verdict.is_met


def test_a_limit_is_met_from_below() -> None:
    results = Results()
    results.add("start", "import pslite", "import pslite", "s", {}, [0.1, 0.2, 0.14])

    (verdict,) = targets.verdicts(results)

    assert verdict.is_met
    assert verdict.to_dict()["is_met"] is True


def test_results_survive_json() -> None:
    results = table_results(3.0)
    results.facts = {"date": "today"}

    again = Results.from_json(results.to_json(targets.verdicts(results)))

    assert again == results


def test_no_figures_are_no_verdicts_and_no_tables() -> None:
    assert targets.verdicts(Results()) == []
    assert report.tables(Results(), []) == []


def test_the_examples_in_docstrings_hold() -> None:
    for module in pkgutil.iter_modules(pslite.bench.__path__):
        found = doctest.testmod(importlib.import_module(f"pslite.bench.{module.name}"))
        assert found.failed == 0, module.name


@pytest.mark.parametrize("name", [name for name in formulas.FORMULAS if name != "rowwise_adagrad"])
def test_formulas_in_numpy_move_weights_against_the_gradient(name: str) -> None:
    formula = formulas.FORMULAS[name]
    weights = np.zeros((3, 2), np.float32)
    state = [np.full((3, 2), 1e-3, np.float32) for _ in range(formula.arrays)]
    if name == "ftrl":
        state[0][:] = 0
    gradient = np.ones((2, 2), np.float32)

    formula.step(weights, state, np.ones((3, 1), np.float32), np.array([2, 0]), gradient)

    assert (weights[[0, 2]] < 0).all()
    assert (weights[1] == 0).all()


# -- tracing ------------------------------------------------------------------------------------


def test_a_stage_does_not_count_the_stages_within_it() -> None:
    traced = trace.Trace()
    inner = traced.timed("inner", lambda: sum(range(100_000)))
    outer = traced.timed("outer", lambda: inner())

    outer()

    seconds = {stage: own for stage, _, own in traced.spans}
    assert 0 <= seconds["outer"] < seconds["inner"]


def test_a_stage_whose_functions_are_gone_is_reported() -> None:
    traced = trace.Trace()

    traced.install({"stage": ["os.path:no_such_function", "no_such_module:f"]})

    assert traced.missing == ["stage: os.path:no_such_function, no_such_module:f"]


# -- real processes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Tables and latency of pslite, a peer that is well, and four that are not."""
    folder = tmp_path_factory.mktemp("peers")
    raising = GOOD_PEER.replace("good", "raising").replace(
        "pull(self, rows): pass", "pull(self, rows): raise ValueError('odd')", 1
    )
    files = {
        "absent": "import no_such_module_of_a_peer",
        "dying": textwrap.dedent("""
            import os
            class Peer:
                def start(self):
                    print("last words", flush=True)
                    os._exit(3)
        """),
        "good": GOOD_PEER,
        "raising": raising,
        "refusing": "class Peer:\n    def start(self): raise OSError('no port')",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    options = Options(sizes=TINY, peers=folder)
    return run(options, Progress(io.StringIO()), [workload("tables"), workload("latency")])


@pytest.mark.parametrize("peer", ["pslite tcp", "good"])
def test_tables_are_measured_for_pslite_and_peers_in_each_round(
    mixed_run: Results, peer: str
) -> None:
    for kind, op in itertools.product(("tables", "latency"), ("pull", "push", "push_pull")):
        found = mixed_run.find(workload=kind, what=op, peer=peer)
        assert found is not None
        assert len(found.values) == TINY.rounds
        assert found.low > 0


def test_peers_that_fail_are_reported_once_and_hold_nobody_up(mixed_run: Results) -> None:
    problems = {failure.peer: failure.problem for failure in mixed_run.failures}

    assert len(mixed_run.failures) == len(problems) == 4
    assert "no_such_module_of_a_peer" in problems["absent"]
    assert "pip install 'pslite[bench]'" in problems["absent"]
    assert problems["dying"] == "it ended with exit code 3: last words"
    assert problems["raising"] == "ValueError: odd"
    assert "no port" in problems["refusing"]


def test_the_stages_of_a_request_are_named_and_add_up(environment: Environment) -> None:
    options = Options(sizes=TINY, env=environment())

    results = run(options, Progress(io.StringIO()), [workload("stages")])

    assert results.failures == []
    found = {m.what: m.median for m in results.select(op="pull", count=1)}
    total = found.pop("end to end")
    assert {"worker: encode and send", "server: look up", "server: read rows"} <= set(found)
    assert sum(found.values()) == pytest.approx(total, rel=0.5)


def test_the_command_prints_tables_and_writes_json_a_page_and_a_picture(
    tmp_path: Path, environment: Environment
) -> None:
    pytest.importorskip("matplotlib")
    case = {"op": "push", "dim": 8, "count": 10_000, "optimizer": "adagrad", "rows": 100}
    results = table_results(30.0)
    for op in ("pull", "push_pull"):
        results.add(**measured(op, "pslite tcp", [1.0, 2.0], **case))
    sizes = {"rounds": 3, "rows": 100}
    text = dict.fromkeys(("processor", "cores", "memory_gib", "load_before", "system"), "?")
    text |= dict.fromkeys(("date", "python", "pslite"), "?")
    results.facts = {**text, "versions": {}, "sizes": sizes, "transports": ["tcp"]}
    (tmp_path / "old.json").write_text(results.to_json())
    (tmp_path / "page.md").write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    options = ["--from", "old.json", "--json", "new.json", "--png", "new.png"]

    with contextlib.chdir(tmp_path):
        result = CliRunner().invoke(cli.main, ["bench", *options, "--markdown", "page.md"])

    assert result.exit_code == 0, result.output
    assert "15.00 x" in result.output
    assert json.loads((tmp_path / "new.json").read_text())["targets"][0]["is_met"] is True
    assert (tmp_path / "new.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before")
    assert page.endswith("after\n")
    assert "| push, K = 10 000, 100 000, pslite tcp |" in page
    assert "old" not in page


def test_a_page_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("no marks here")

    with pytest.raises(BenchError, match="has no line"):
        command.run_command(command.Request(markdown=tmp_path / "page.md"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--only", "tabels"], "did you mean tables?"),
        (["--only", "growth"], "needs --large"),
        (["--peers", "nowhere", "--only", "start"], "no such folder"),
        (["--json", "nowhere/x.json"], "cannot be written"),
        (["--from", __file__], "not written by --json"),
    ],
)
def test_a_mistake_is_said_at_once(options: list[str], problem: str) -> None:
    result = CliRunner().invoke(cli.main, ["bench", *options])

    assert result.exit_code == 2
    assert problem in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "only",
    [
        ["lookups"],
        ["dense"],
        ["start", "efficiency", "optimisers"],
        ["repeats", "scale"],
    ],
)
def test_a_quick_run_of_some_workloads_leaves_no_file_behind(
    tmp_path: Path, environment: Environment, only: list[str]
) -> None:
    names = ["--quick", "--rounds", "1"]
    for name in only:
        names += ["--only", name]
    process = subprocess.run(
        [sys.executable, "-m", "pslite", "bench", *names, "--json", tmp_path / "out.json"],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    print(process.stdout, process.stderr)
    assert process.returncode == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["version"] == 1
    assert document["failures"] == []
    assert {entry["workload"] for entry in document["measurements"]} == set(only)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_killing_the_command_ends_all_its_processes(
    tmp_path: Path, environment: Environment
) -> None:
    (tmp_path / "good.py").write_text(textwrap.dedent(GOOD_PEER))
    options = ["--only", "tables", "--peers", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pslite", "bench", *options],
        env=environment(TMPDIR=str(tmp_path), PSLITE_TEST_BENCH=str(tmp_path)),
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(started(tmp_path)) >= 5)  # command, pslite's three, the peer

        process.send_signal(signal.SIGKILL)

        process.wait(LIMIT)
        until(lambda: started(tmp_path) == [])
    finally:
        for left in started(tmp_path):
            left.kill()


def started(folder: Path) -> list[psutil.Process]:
    """The processes that have this test's variable, zombies left out."""
    return list(_with_variable("PSLITE_TEST_BENCH", str(folder)))


def _with_variable(name: str, value: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_dead = process.status() == psutil.STATUS_ZOMBIE
            if not is_dead and process.environ().get(name) == value:
                yield process


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(LIMIT * 20):
        if is_so():
            return
        os.sched_yield()
        psutil.cpu_percent(0.05)  # waits
    raise AssertionError("it did not become so")
