"""`pslite bench compression`: its data, its model, what it counts and how it says it."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from pslite import cli
from pslite.bench import clicks, compression
from pslite.bench.clicks import Shape, area_under_curve, backward, first_weights, forward
from pslite.bench.compression import (
    Case,
    Measured,
    dispatcher_table,
    measure,
    saved,
    selective_table,
    table,
)
from pslite.bench.errors import BenchError
from pslite.bench.links import LINKS
from pslite.bench.training import Outcome, Setting

TINY = Setting(
    workers=2, rows=1024, test_rows=300, batch=128, shape=Shape(values=(300, 40), dim=4, hidden=3)
)
PLAIN = Outcome(
    auc=0.7,
    logloss=0.5,
    steps=8,
    cpu_seconds=2.0,
    coding_seconds=0.0,
    pushed_nbytes=1000,
    pulled_nbytes=1000,
    value_nbytes=0,
    plain_nbytes=0,
)


@pytest.mark.parametrize("module", [clicks, compression])
def test_doctests(module: object) -> None:
    assert not doctest.testmod(module).failed  # type: ignore[arg-type]


def test_the_clicks_are_the_same_for_a_seed_and_follow_from_the_ids() -> None:
    one, again, other = (clicks.make_clicks(3000, TINY.shape, seed) for seed in (1, 1, 2))

    np.testing.assert_array_equal(one.ids, again.ids)
    np.testing.assert_array_equal(one.labels, again.labels)
    assert (one.ids != other.ids).any()
    assert 0.1 < one.labels.mean() < 0.5
    assert (one.ids >> np.uint64(32) == [[1, 2]]).all()


def test_the_area_under_the_curve_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 20, 500), rng.integers(0, 2, 500)

    assert area_under_curve(scores, labels) == pytest.approx(roc_auc_score(labels, scores))


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    inputs = rng.standard_normal((5, 2, 4)).astype(np.float32)
    labels = np.array([0, 1, 1, 0, 1], np.float32)
    weights = first_weights(TINY.shape)

    def loss() -> float:
        scores = forward(inputs, weights).scores.astype(np.float64)
        return float(-np.log(np.where(labels > 0, scores, 1 - scores)).mean())

    of_inputs, grads = backward(forward(inputs, weights), labels, weights)

    for array, grad in [(inputs, of_inputs.reshape(inputs.shape))] + [
        (weights[name], grads[name]) for name in weights
    ]:
        place = tuple(int(rng.integers(side)) for side in array.shape)
        step = np.float32(1e-2)
        array[place] += step
        above = loss()
        array[place] -= 2 * step
        below = loss()
        array[place] += step
        assert (above - below) / (2 * step) == pytest.approx(grad[place], abs=2e-4)


def test_a_case_sends_less_and_the_rest_is_the_same_each_time() -> None:
    cases = [Case("half", {"*": "fp16", "*@pull": "fp16"}), Case("keys only", {"*": "topk:0.001"})]

    plain, half, few = measure(TINY, cases, rounds=2, tell=lambda text: None)

    assert [len(one.outcomes) for one in (plain, half, few)] == [2, 2, 2]
    for one in (plain, half, few):
        first, second = one.outcomes
        unchanged = {"cpu_seconds": 0.0, "coding_seconds": 0.0}
        assert replace(first, **unchanged) == replace(second, **unchanged)
        assert first.steps == 8
        assert 0 < first.coding_seconds < first.cpu_seconds or one is plain
    assert plain.first.value_nbytes == plain.first.plain_nbytes == 0
    assert 30 < saved(half.first.value_nbytes, half.first.plain_nbytes) < 50
    assert half.first.pushed_nbytes - half.first.value_nbytes == (
        plain.first.pushed_nbytes - half.first.plain_nbytes
    )  # keys
    assert 15 < saved(half.first.all_nbytes, plain.first.all_nbytes) < 50
    assert abs(half.first.auc - plain.first.auc) < 0.01
    assert saved(few.first.value_nbytes, few.first.plain_nbytes) > 70


def test_the_table_has_what_was_reported_beside_what_was_measured() -> None:
    half = replace(
        PLAIN,
        auc=0.699,
        cpu_seconds=2.2,
        coding_seconds=0.11,
        pushed_nbytes=600,
        value_nbytes=400,
        plain_nbytes=800,
    )
    measured = [
        Measured(Case("none", {}), (PLAIN,)),
        Measured(Case("fp16", {"*": "fp16"}, (50, 5)), (half,)),
    ]

    plain_row, row = table(measured).rows

    assert plain_row[1:4] == ["-", "-", "-"]
    assert row == [
        *("fp16", "-50.0 %", "-20.0 %", "+10 %", "5.0 %", "0.6990", "-0.0010", "-50 %", "+5 %")
    ]


@pytest.mark.parametrize(("pushed", "auc", "verdicts"), [
    (100, 0.699, ["met", "met"]),
    (400, 0.699, ["MISSED", "MISSED"]),
    (100, 0.690, ["MISSED", "MISSED"]),
])  # fmt: skip
def test_selective_update_is_judged(pushed: int, auc: float, verdicts: list[str]) -> None:
    half = replace(PLAIN, pushed_nbytes=500, pulled_nbytes=900, auc=0.7)
    pulled = 1000 if pushed == 400 else 900
    own = replace(half, pushed_nbytes=pushed, pulled_nbytes=pulled, auc=auc)
    cases = [
        Measured(Case(name, {}), (one,))
        for name, one in zip("abc", (PLAIN, half, own), strict=True)
    ]

    found = selective_table(cases)

    assert [row[-1] for row in found.rows] == verdicts
    assert found.rows[1][1] == f"-{100 - pushed / 5:.1f} %"


def test_bytes_are_counted_on_both_sides_of_dispatchers() -> None:
    setting = replace(TINY, workers=3, dispatchers=1)
    cases = [Case("half", {"*": "fp16", "*@pull": "fp16"})]

    plain, half = measure(setting, cases, rounds=1, tell=lambda text: None)

    for one in (plain, half):
        links = one.first.links
        assert set(links) == set(LINKS)
        assert one.first.all_nbytes == sum(links.values())
        assert links[LINKS[1]] < 0.7 * links[LINKS[0]]  # merged
    for link in LINKS:
        assert half.first.links[link] < 0.8 * plain.first.links[link]
    row = dispatcher_table([plain, half]).rows[1]
    assert row[1:5] == [f"{half.first.links[link] / 1e6:.1f}" for link in LINKS]
    assert abs(half.first.auc - plain.first.auc) < 0.01


def test_the_command_writes_table_json_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(compression, "QUICK", TINY)
    options = ["--quick", "--scheme", "fp16", "--scheme", "topk:0.1+int8", "--workers", "1"]
    files = ["--json", str(tmp_path / "c.json"), "--png", str(tmp_path / "c.png")]

    result = CliRunner().invoke(cli.main, ["bench", "compression", *options, *files])

    assert result.exit_code == 0, result.output
    assert "1 workers of 128 rows" in result.output
    assert "+5 %" in next(line for line in result.output.splitlines() if line.startswith("fp16"))
    document = json.loads((tmp_path / "c.json").read_text())
    assert [case["name"] for case in document["cases"]] == ["none", "fp16", "topk:0.1+int8"]
    assert document["cases"][1]["reported"] == [50, 5]
    assert document["facts"]["cores"] >= 1
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("options", "words"), [
    (["--scheme", "tpok:0.1"], "did you mean topk?"),
    (["--dispatchers", "9"], "there are 4 workers"),
    (["--json", "/nowhere/c.json"], "--json /nowhere/c.json cannot be written"),
])  # fmt: skip
def test_mistakes_are_one_line(options: list[str], words: str) -> None:
    result = CliRunner().invoke(cli.main, ["bench", "compression", "--quick", *options])

    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_the_bench_itself_is_still_a_command_of_its_own() -> None:
    result = CliRunner().invoke(cli.main, ["bench", "--list"])

    assert result.exit_code == 0, result.output
    assert "workloads" in result.output
    with pytest.raises(BenchError):
        compression.run_command(
            compression.Request(png=Path("/nowhere/c.png")), lambda text: None, lambda text: None
        )
