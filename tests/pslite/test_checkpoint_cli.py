"""The commands `pslite checkpoint`, on checkpoints of a small job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pslite.cli import main
from pslite.kept import note_place
from pslite.rundir import RunDirectory
from tests.kv.checkpoint.jobs import Job


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Job, Path, list[str]]:
    """A job with three checkpoints, the later two incremental."""
    folder = tmp_path / "checkpoints"
    job, names = Job(folder), []
    for seed in range(3):
        job.train(seed)
        names.append(job.save())
    return job, folder, names


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])


def test_list_shows_what_there_is(saved: tuple[Job, Path, list[str]]) -> None:
    job, folder, names = saved
    (folder / "ckpt-000009").mkdir()

    result = run("list", folder)

    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == names
    assert lines[1].split()[1:3] == ["full", "step"]
    assert lines[2].split()[1:4] == ["after", names[0], "step"]
    assert f"{sum(map(len, job.rows()))}" in lines[3].split()
    assert lines[4] == "not finished, so no checkpoints: ckpt-000009"


@pytest.mark.parametrize("command", ["list", "verify", "diff", "export"])
def test_a_place_that_is_not_there_is_an_error(command: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    more = {"diff": ("a", "b"), "export": ("--out", tmp_path / "out")}.get(command, ())
    (tmp_path / "file").touch()

    for place in (tmp_path / "nothere", tmp_path / "file", "memory://nothere"):
        result = run(command, place, *more)

        assert result.exit_code == 2
        assert result.stderr == f"pslite: error: checkpoints {place}: there is no such folder\n"


def test_a_place_without_checkpoints_is_none(tmp_path: Path) -> None:
    for command in ("list", "verify"):
        result = run(command, tmp_path)

        assert result.exit_code == 0
        assert result.output == f"no checkpoints in {tmp_path}\n"


def test_a_checkpoint_is_no_place_of_them(saved: tuple[Job, Path, list[str]]) -> None:
    _, folder, names = saved

    result = run("verify", folder / names[0])

    assert result.exit_code == 2
    assert "this is one checkpoint; name the folder that it lies in" in result.stderr


def test_without_a_place_those_of_the_job_are_looked_at(
    saved: tuple[Job, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder, names = saved
    monkeypatch.chdir(tmp_path)
    assert "no running job found" in run("list").stderr
    directory = RunDirectory(tmp_path / "run")
    assert "the job in run keeps no checkpoints; name their folder" in run("list").stderr
    for url in ("checkpoints", str(folder), "none/../empty/"):
        note_place(tmp_path / "run", url)
    (tmp_path / "empty").mkdir()
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(folder)

    listed = run("list", "--run", tmp_path / "run")
    verified = run("verify", "--run", tmp_path / "run")

    assert listed.exit_code == verified.exit_code == 0
    assert listed.stderr == ""
    assert listed.stdout.splitlines()[0] == f"{folder}:"
    assert listed.stdout.endswith(f"{tmp_path}/empty:\nno checkpoints in {tmp_path}/empty\n")
    assert verified.stdout.count(": good (") == len(names)
    directory.close()


def test_verify_names_what_is_damaged_and_exits_with_1(
    saved: tuple[Job, Path, list[str]],
) -> None:
    _, folder, names = saved
    good = run("verify", folder)
    file = sorted((folder / names[1]).glob("*.rows"))[0]
    file.write_bytes(file.read_bytes()[:-1])

    result = run("verify", folder)

    assert good.exit_code == 0
    assert good.output.count(": good (") == 3
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith(f"{names[0]}: good")
    assert lines[1].startswith(f"{names[1]}: DAMAGED: file {names[1]}/{file.name} has ")
    assert lines[2].startswith(f"{names[2]}: DAMAGED")
    assert run("verify", folder, "ckpt-000042").exit_code == 2


def test_diff_counts_rows_by_table(saved: tuple[Job, Path, list[str]]) -> None:
    _, folder, names = saved

    result, same = run("diff", folder, *names[:2]), run("diff", folder, names[2], names[2])

    assert result.exit_code == 1
    by_table = {line.split()[0]: line.split() for line in result.output.splitlines()[1:]}
    assert int(by_table["ids"][2]) > 0
    assert by_table["w"][1:5] == ["0", "1", "0", "0"]
    assert same.exit_code == 0
    assert f"{names[2]} and {names[2]} have the same rows" in same.output


def test_export_writes_the_rows_of_a_chain_as_parquet(
    saved: tuple[Job, Path, list[str]], tmp_path: Path
) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    job, folder, _ = saved

    result = run("export", folder, "--out", tmp_path / "out")

    assert result.exit_code == 0, result.output
    table = pq.read_table(tmp_path / "out" / "ids.parquet")
    keys = table["key"].to_numpy()
    order = np.argsort(keys)
    batches = list(job.engine.items(job.sparse))
    expected_keys = np.concatenate([batch[0] for batch in batches])
    expected = np.concatenate([batch[1] for batch in batches])[np.argsort(expected_keys)]
    np.testing.assert_array_equal(keys[order], np.sort(expected_keys))
    weights = table["weights"].combine_chunks().flatten().to_numpy().reshape(len(keys), -1)
    np.testing.assert_array_equal(weights[order], expected)
    dense = pq.read_table(tmp_path / "out" / "w.parquet")
    assert dense.schema.metadata[b"pslite.shape"] == b"[40, 9]"
    blocks = job.engine.pull(job.dense)
    np.testing.assert_array_equal(dense["value"].to_numpy(), blocks.reshape(-1)[: 40 * 9])
    assert f"ids: {len(keys):,} rows in {tmp_path / 'out' / 'ids.parquet'}" in result.output


def test_export_names_a_table_that_is_not_there(
    saved: tuple[Job, Path, list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    result = run("export", saved[1], "--table", "users", "--out", tmp_path / "out")

    assert result.exit_code == 2
    assert "has no table users; it has ids, w" in result.output


@pytest.mark.parametrize("command", ["list", "verify", "diff", "export"])
def test_help_shows_an_example(command: str) -> None:
    assert f"pslite checkpoint {command} run/checkpoints" in run(command, "--help").output
