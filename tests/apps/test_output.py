"""What a run and its predictions do to files: theirs, those of others, and where none fit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from apps.ctr.cli import main
from apps.ctr.errors import CtrError, OutputError
from apps.ctr.output import replacing
from apps.ctr.runlock import only_training
from tests.disk import small_files

INI = "[sparse_dict]\nemb_dim = 32\n[net]\nlayers = fc:1,sigmoid:-1\n[debug]\ninterval = 1\n"


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def data(tmp_path: Path, generate: Callable[..., Any]) -> Path:
    (tmp_path / "model.ini").write_text(INI)
    generate(rows=3000, seed=1).write_parquet(tmp_path / "final_train.parquet")
    generate(rows=900, seed=2).write_parquet(tmp_path / "final_test.parquet")
    return tmp_path


def train(data: Path, *more: object, code: int = 0) -> Result:
    run = data / "run"
    return invoke(
        "train", "--conf", data / "model.ini", "--data", data, "--out", run, *more, code=code
    )


def test_predictions_do_not_overwrite_what_they_are_made_of(data: Path) -> None:
    train(data)
    test = data / "final_test.parquet"
    (data / "soft").symlink_to(test)
    (data / "hard").hardlink_to(test)
    before = test.read_bytes()

    for out in (test, data / "soft", data / "hard"):
        result = invoke("predict", "--run", data / "run", "--data", test, "--out", out, code=2)
        assert f"{out} cannot be written: it is the data that is read" in result.output

    assert test.read_bytes() == before


def test_a_pipe_is_written_to_and_stays_one(data: Path) -> None:
    pipe = data / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    try:
        with replacing(pipe) as out:
            out.write_text("0.5\n")
        assert os.read(reader, 100) == b"0.5\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("nbytes", "file"),
    [(200, "conf/job.json"), (2_000, "metrics.jsonl"), (2_500, "model")],
)
def test_a_full_disk_ends_the_training_with_the_name_of_the_file(
    data: Path, nbytes: int, file: str
) -> None:
    train(data, "--set", "debug.interval=0")  # all that is loaded and compiled once is there
    interval = 0 if file == "model" else 1

    more = ("--set", f"debug.interval={interval}", "--set", "train.batch_size=20")
    with small_files(nbytes):
        result = train(data, *more, code=2)

    assert f"{data / 'run' / file} cannot be written: File too large" in result.output
    assert not list((data / "run").rglob(".*"))


def test_a_full_disk_ends_predictions_likewise(data: Path) -> None:
    train(data)
    out, test = data / "p.txt", data / "final_test.parquet"
    invoke("predict", "--run", data / "run", "--data", test, "--out", out)
    before = out.read_bytes()

    with small_files(2_000):
        result = invoke("predict", "--run", data / "run", "--data", test, "--out", out, code=2)

    assert f"{out} cannot be written: File too large" in result.output
    assert out.read_bytes() == before
    assert not list(data.glob(".*"))


def test_an_output_without_its_folder_is_named(data: Path) -> None:
    out = data / "nowhere" / "p.txt"

    with (
        pytest.raises(OutputError, match=f"{out} cannot be written: No such file"),
        replacing(out) as aside,
    ):
        aside.write_text("x")


def test_one_training_at_a_time_holds_a_run_folder(data: Path) -> None:
    run = data / "run"

    with only_training(run):
        assert "another training is running in" in train(data, code=2).output
    train(data)

    assert not (run / ".train.lock").exists()


def test_a_training_that_was_killed_leaves_its_folder_free(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal, pathlib; from apps.ctr.runlock import only_training\n"
        "with only_training(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        cwd=Path(__file__).parents[2], timeout=60, check=False,
    )  # fmt: skip
    assert (tmp_path / "run" / ".train.lock").exists()

    with (
        only_training(tmp_path / "run"),
        pytest.raises(CtrError, match="another training"),
        only_training(tmp_path / "run"),
    ):
        pass


def test_a_folder_made_for_nothing_goes_again(tmp_path: Path) -> None:
    with only_training(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()

    assert not (tmp_path / "run").exists()
