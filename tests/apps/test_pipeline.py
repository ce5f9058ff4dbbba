"""The stages of run_taobao_ctr.sh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apps.ctr import pipeline
from apps.ctr.pipeline import Stage, StageError, options_of, plan, run_stages, summary

ROOT = Path(__file__).resolve().parents[2]


class Code(Stage):
    """A stage that runs a line of Python instead of one of our commands."""

    def arguments(self) -> list[str]:
        return [sys.executable, *self.command]


def stage(name: str, code: str) -> Stage:
    return Code(name, ["-c", code])


def test_logs_are_generated_unless_real_ones_are_given(tmp_path: Path) -> None:
    generated = plan(options_of(["--out", "OUT", "--impressions", "7", "--seed", "3"]))
    real = plan(options_of(["--out", "OUT", "--raw", str(tmp_path)]))

    assert [step.name for step in real] == [
        "join",
        "extract",
        "train-local",
        "train-cluster",
        "predict",
    ]
    assert [step.name for step in generated] == ["generate", *(step.name for step in real)]
    assert " ".join(generated[0].command) == (
        "pslite-sample generate --out OUT/raw --impressions 7 --behaviors 1000000 --seed 3"
    )
    assert real[0].command[:4] == ["pslite-sample", "join", "--raw", str(tmp_path)]


def test_both_trainings_differ_only_in_how_they_run() -> None:
    options = options_of(["--out", "OUT", "--servers", "3", "--workers", "4", "--seed", "5"])

    local, cluster = (step.command for step in plan(options) if step.name.startswith("train"))

    assert local[: local.index("--mode")] == cluster[: cluster.index("--mode")]
    assert "run.seed=5" in local
    assert " ".join(local[local.index("--mode") :]) == "--mode local --out OUT/local"
    assert " ".join(cluster[cluster.index("--mode") :]) == (
        f"--mode cluster --cluster {ROOT}/conf/local.ini --servers 3 --workers 4 --out OUT/cluster"
    )


def test_sync_is_of_the_training_on_the_cluster() -> None:
    stages = {step.name: step.command for step in plan(options_of(["--out", "OUT", "--sync"]))}

    assert "--sync" in stages["train-cluster"]
    assert [name for name, command in stages.items() if "--sync" in command] == ["train-cluster"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--conf", "absent.ini"], "--conf: there is no file absent.ini"),
        (["--raw", "absent"], "--raw: there is no folder absent"),
        (["--impressions", "0"], "--impressions: expected 1 or more, got 0"),
        (["--servers", "0"], "--servers: expected 1 or more, got 0"),
        (["--workers", "-1"], "--workers: expected 1 or more, got -1"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_a_wrong_option_is_told_before_anything_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        options_of(arguments)

    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--cluster", "[cluster]\nserver = 2\n", "unknown key; did you mean servers?"),
        ("--features", "[train]\nepoch = 1\n", "the columns are not named"),
        ("--conf", "[cluster]\nservers = 2\n", "no model ini"),
        ("--conf", "[train]\nepoch = two\n", "[train] epoch"),
    ],
)
def test_a_mistake_in_an_ini_is_told_before_anything_runs(
    option: str,
    text: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pipeline, "plan", lambda _: [])
    (tmp_path / "wrong.ini").write_text(text)

    code = pipeline.main(["--out", str(tmp_path / "out"), option, str(tmp_path / "wrong.ini")])

    error = capsys.readouterr().err
    assert code == 2
    assert "run_taobao_ctr.sh: error: " in error
    assert "wrong.ini" in error
    assert said in error


def test_each_stage_is_a_line_with_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [stage("one", "print('loud')"), stage("two", "import sys; sys.exit(0)")]

    run_stages(stages, tmp_path, os.environ)

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["one", "two"]
    assert all(line.endswith(" s") for line in lines)
    assert (tmp_path / "1-one.log").read_text() == "loud\n"


def test_the_first_failure_is_the_last_stage(tmp_path: Path) -> None:
    stages = [stage("bad", "print('why'); raise SystemExit(3)"), stage("never", "pass")]

    with pytest.raises(StageError) as caught:
        run_stages(stages, tmp_path, os.environ)

    assert (caught.value.stage.name, caught.value.status) == ("bad", 3)
    assert caught.value.tail == ["why"]
    assert [path.name for path in tmp_path.iterdir()] == ["1-bad.log"]


def test_a_failure_is_shown_with_its_log_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "plan", lambda _: [stage("bad", "print('why'); 1 / 0")])

    code = pipeline.main(["--out", str(tmp_path)])

    error = capsys.readouterr().err
    assert code == 1
    assert "bad failed: exit code 1" in error
    assert "    why\n" in error
    assert "ZeroDivisionError" in error
    assert "the command was:\n    -c 'print" in error


def test_the_table_puts_both_trainings_beside_the_best_possible(tmp_path: Path) -> None:
    figures = {
        "samples_per_second": 12345.6,
        "train_logloss": 0.25,
        "test_logloss": 0.2,
        "test_auc": 0.7,
    }
    for folder, name, value in (
        ("raw", "truth.json", {"best_auc_test": 0.75}),
        ("local", "metrics.json", {**figures, "param_sync": "async"}),
        ("cluster", "metrics.json", {**figures, "param_sync": "sync", "test_auc": None}),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(json.dumps(value))

    lines = summary(tmp_path, tmp_path / "raw").splitlines()

    assert lines[0].startswith("mode     ")
    numbers = ["12,346", "0.25000", "0.20000", "0.70000", "0.75000"]
    assert lines[1].split() == ["local", "async", *numbers]
    assert lines[2].split() == ["cluster", "sync", *numbers[:3], "-", numbers[4]]
    assert len({len(line) for line in lines[:3]}) == 1


def test_real_logs_have_no_best_possible(tmp_path: Path) -> None:
    assert summary(tmp_path, tmp_path).splitlines()[1].split() == ["local", *["-"] * 5]


def test_ctrl_c_ends_the_stage_that_runs(tmp_path: Path) -> None:
    code = (
        "import sys; from apps.ctr import pipeline\n"
        "from apps.ctr.pipeline import Stage\n"
        "Stage.arguments = lambda self: [sys.executable, *self.command]\n"
        "kill = 'import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()'\n"
        "pipeline.plan = lambda _: [Stage('one', ['-c', kill])]\n"
        f"sys.exit(pipeline.main(['--out', {str(tmp_path)!r}]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "stopped by SIGINT\n"


def test_the_help_needs_nothing_installed() -> None:
    code = (
        "import sys, apps.ctr.pipeline\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'click', 'numpy', 'numba', 'torch', 'zmq', 'msgpack', 'duckdb'}))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
