"""Whether checkpoints can be kept somewhere is known before a job begins."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslite
from kv.checkpoint.collective import Checkpoints
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.errors import CheckpointError
from kv.checkpoint.owner import FILE
from kv.checkpoint.places import place_of, require_place
from tests.kv.checkpoint.jobs import Job
from van.errors import ConfigError

pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s33://bucket/job", "fsspec knows no scheme 's33'; did you mean s3?"),
        ("nonsense://x", "fsspec knows no scheme 'nonsense'; known are s3"),
        ("simplecache::nonsense://x", "fsspec knows no scheme 'nonsense'"),
        ("s3:/bucket/job", "neither a folder nor a URL; a URL begins with s3://"),
        ("a\0b", "a name has no byte 0"),
        ("memory://x", "each process has a memory of its own"),
        ("file/below", "nothing can be kept there: Not a directory"),
        ("file", "nothing can be kept there: File exists"),
        ("/proc/nothing/here", "nothing can be kept there: No such file or directory"),
        ("x" * 300, "nothing can be kept there: File name too long"),
    ],
)
def test_a_place_that_can_be_none_is_refused_with_the_reason(
    url: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()

    with pytest.raises(ConfigError) as raised:
        CheckpointConfig(dir=url).require_place()

    assert str(raised.value).startswith("[checkpoint] dir: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("module", ["s3fs", "fsspec.registry"])
def test_a_package_that_is_missing_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.delitem(registry._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError, match=r"\[checkpoint\] dir: s3://b/x: .*[iI]nstall .*s3fs"):
        CheckpointConfig(dir="s3://b/x").require_place()
    with pytest.raises(CheckpointError, match=r"checkpoints s3://b/x: .*[iI]nstall .*s3fs"):
        place_of("s3://b/x")


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(CheckpointError, match="nothing can be kept there: Permission denied"):
        require_place(str(tmp_path))
    tmp_path.chmod(stat.S_IRWXU)


def test_a_checkpoint_to_go_on_from_must_be_there(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.train(1)
    name = job.save()

    CheckpointConfig(dir=str(tmp_path), resume=name).require_place()
    with pytest.raises(ConfigError, match=rf"\[checkpoint\] resume: .* has no x; it has {name}"):
        CheckpointConfig(dir=str(tmp_path), resume="x").require_place()


def test_a_folder_that_is_not_there_is_made_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    require_place(str(tmp_path / "deep" / "er"))

    assert list((tmp_path / "deep" / "er").iterdir()) == []


def test_a_trial_leaves_nothing_but_who_tried(tmp_path: Path) -> None:
    Job(tmp_path).leader.try_place()

    assert list(tmp_path.iterdir()) == [tmp_path / FILE]


def test_servers_that_have_another_folder_of_that_name_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path / "mine")
    theirs = place_of(str(tmp_path / "theirs"))
    monkeypatch.setattr("kv.checkpoint.desk.place_of", lambda url: theirs)

    with pytest.raises(CheckpointError, match="server 0: what worker 0 has written there is not"):
        job.leader.try_place()

    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / FILE]


@pytest.mark.parametrize("does_resume", [True, False])
def test_a_place_where_no_save_can_succeed_ends_the_job_at_its_start(
    does_resume: bool, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    steps = 0

    def run(worker: Any) -> None:
        nonlocal steps
        table = worker.sparse_table("t", 1)
        checkpoints = Checkpoints(worker, str(tmp_path / "file" / "below"), every_steps=1000)
        if does_resume:
            checkpoints.resume()
        for _ in range(3):
            table.push([1], np.ones((1, 1), np.float32))
            worker.step()
            steps += 1
            checkpoints.at_step(dict)

    with (
        pytest.raises(CheckpointError, match=r"\. cannot be made: Not a directory"),
        pslite.local_cluster(1, 1) as cluster,
    ):
        cluster.run(run)

    assert steps == (0 if does_resume else 1)


def test_who_saves_only_when_asked_may_load_where_nothing_can_be_written(tmp_path: Path) -> None:
    def run(worker: Any) -> list[Path]:
        worker.sparse_table("t", 1)
        assert Checkpoints(worker, str(tmp_path)).resume() is None
        return list(tmp_path.iterdir())

    with pslite.local_cluster(1, 1) as cluster:
        assert cluster.run(run) == [[]]
