"""Whatever ends a save at whatever moment, what was good before is good after."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from kv.checkpoint import shelf as shelves
from kv.checkpoint.errors import (
    CheckpointError,
    CheckpointWriteError,
    DamagedCheckpointError,
    NoCheckpointError,
)
from kv.checkpoint.places import MANIFEST, LocalPlace, Place, place_of
from kv.spec import TableSpec
from tests.kv.checkpoint.jobs import Job, assert_same_rows


class KilledError(BaseException):
    """The process is no more: nothing of ours catches this."""


class Doomed(LocalPlace):
    """A folder where the n-th thing that is done to the disk does not succeed."""

    def __init__(self, folder: Path, moment: int, failure: BaseException) -> None:
        super().__init__(folder, str(folder))
        self.left, self.failure = moment, failure

    def touch(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.failure

    def claim(self, name: str) -> bool:
        with self.reaching(name, "made"):
            self.touch()
        return super().claim(name)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        with super().create(path) as file:
            self.touch()
            yield _DoomedFile(file, self)  # type: ignore[misc]
            self.touch()

    def publish(self, path: str, data: bytes) -> None:
        with self.reaching(path, "written"):
            self.touch()
        super().publish(path, data)


class _DoomedFile:
    def __init__(self, file: IO[bytes], place: Doomed) -> None:
        self._file, self._place = file, place

    def write(self, data: bytes | memoryview) -> int:
        half = len(data) // 2
        self._file.write(memoryview(data)[:half])  # a part of it has arrived
        self._place.touch()
        return half + self._file.write(memoryview(data)[half:])


def outcome_of(job: Job) -> str | None:
    """What a save failed with; None if it did not."""
    try:
        job.save()
    except (KilledError, CheckpointWriteError) as error:
        return str(error)
    return None


MOST = 400  # more than a save does to the disk


@pytest.mark.parametrize("kind", ["killed", "disk full"])
def test_a_save_that_ends_at_any_moment_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    origin = tmp_path / "origin"
    job = Job(origin)
    job.train(1)
    first = job.save()
    job.train(2)
    second, expected = job.save(), job.rows()
    moments = 0
    for moment in range(MOST):
        folder = tmp_path / f"at-{moment}"
        shutil.copytree(origin, folder)
        error: BaseException = KilledError()
        if kind == "disk full":
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        place = Doomed(folder, moment, error)
        broken = Job(folder)
        broken.load()
        broken.train(3)
        broken.leader.shelf.place = place
        monkeypatch.setattr("kv.checkpoint.desk.place_of", lambda url, place=place: place)
        failure = outcome_of(broken)
        monkeypatch.undo()
        if failure is None:
            break
        moments += 1
        if kind == "disk full":
            assert f"{second} is the last good one" in failure
            assert "No space left on device" in failure

        after = Job(folder)
        assert shelves.last_good(str(folder)) == second
        assert after.load() == second
        assert_same_rows(after.rows(), expected)
        after.train(3)
        assert after.save() not in (first, second)
        assert after.shelf.unfinished() == []
        shutil.rmtree(folder)
    assert 20 < moments < MOST


def good_chain(folder: Path) -> tuple[Job, list[str]]:
    """A full checkpoint and two that go on from it."""
    job, names = Job(folder), []
    for seed in range(3):
        job.train(seed)
        names.append(job.save())
    return job, names


def test_the_way_a_checkpoint_was_harmed_is_named(tmp_path: Path) -> None:
    _, names = good_chain(tmp_path / "good")
    last = names[-1]
    rows = sorted((tmp_path / "good" / last).glob("*ids*.rows"))[0].name

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-5])

    def alter(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-3] ^= 0x10
        path.write_bytes(data)

    def edit(path: Path) -> None:
        manifest = json.loads(path.read_text())
        manifest["steps"] = [99]
        path.write_text(json.dumps(manifest))

    harms: list[tuple[str, Any, str]] = [
        (rows, Path.unlink, f"file {last}/{rows} is missing"),
        (rows, cut, "bytes, not"),
        (rows, alter, f"file {last}/{rows} was altered"),
        (MANIFEST, cut, "manifest cannot be read"),
        (MANIFEST, edit, "manifest was altered"),
        ("worker-0.state", alter, "worker-0.state was altered"),
    ]
    for number, (name, harm, problem) in enumerate(harms):
        folder = tmp_path / f"harmed-{number}"
        shutil.copytree(tmp_path / "good", folder)
        harm(folder / last / name)
        job = Job(folder)

        with pytest.raises(DamagedCheckpointError, match=problem) as raised:
            job.load(last)
        assert raised.value.name == last
        assert job.load() == names[1]


def test_a_chain_without_its_beginning_is_no_checkpoint(tmp_path: Path) -> None:
    _, names = good_chain(tmp_path)
    shutil.rmtree(tmp_path / names[0])
    job = Job(tmp_path)

    with pytest.raises(DamagedCheckpointError, match=f"{names[0]}, from which"):
        job.load(names[2])
    with pytest.raises(NoCheckpointError, match="none of the checkpoints"):
        job.load()
    with pytest.raises(NoCheckpointError, match="there is no checkpoint ckpt-000099"):
        job.load("ckpt-000099")
    assert shelves.last_good(str(tmp_path)) is None


def test_old_checkpoints_go_but_not_what_a_kept_one_needs(tmp_path: Path) -> None:
    job, names = Job(tmp_path, full_every=3, keep=1), []
    for seed in range(6):
        job.train(seed)
        names.append(job.save())
        kept = job.shelf.names()
        assert kept == names[seed - seed % 3 :]
    again = Job(tmp_path)
    assert again.load() == names[-1]
    assert_same_rows(again.rows(), job.rows())


def test_what_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    job, _ = good_chain(tmp_path)

    again = Job(tmp_path)
    again.load()

    assert_same_rows(again.rows(), job.rows())
    assert again.engine.clock(again.sparse) == job.engine.clock(job.sparse)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    job = Job(tmp_path / "file" / "deeper")

    with pytest.raises(CheckpointWriteError, match="there is no earlier one"):
        job.save()


def test_a_url_without_fsspec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)

    with pytest.raises(CheckpointError, match=r"pip install 'pslite\[checkpoint\]'"):
        place_of("memory://somewhere")


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield place_of(f"file://{tmp_path}/deep")
        return
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    found = place_of(f"memory://{tmp_path.name}")
    yield found
    for name in found.names():
        found.remove(name)


def test_places_do_what_a_place_does(place: Place) -> None:
    assert place.names() == []
    assert place.claim("ckpt-000001")
    with place.create("ckpt-000001/a.rows") as file:
        file.write(b"abc")
    place.publish("ckpt-000001/manifest.json", b"{}")

    assert place.names() == ["ckpt-000001"]
    assert not place.claim("ckpt-000001")
    assert place.has("ckpt-000001/manifest.json")
    assert not place.has("ckpt-000001/other")
    with place.open("ckpt-000001/a.rows") as file:
        assert file.read() == b"abc"
    with pytest.raises(CheckpointError, match=r"ckpt-000001/none cannot be read"):
        place.open("ckpt-000001/none").__enter__()
    place.remove("ckpt-000001")
    assert place.names() == []


KILLED = """
import sys
from tests.kv.checkpoint.jobs import Job
job = Job(sys.argv[1], full_every=2, keep=2)
job.train(0)
print(job.save(), flush=True)
for seed in range(1, 100000):
    job.train(seed)
    job.save()
    print(seed, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) as process:
        assert process.stdout is not None
        for _ in range(6):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    job = Job(tmp_path)
    assert job.load() in job.shelf.names()[-2:]
    job.train(0)
    job.save()
    assert job.shelf.unfinished() == []


def test_a_table_that_evicts_goes_on_to_evict_the_same_rows(tmp_path: Path) -> None:
    def job_of() -> tuple[Job, int]:
        job = Job(tmp_path)
        spec = TableSpec.sparse("few", 8, memory_limit=1 << 17, when_full="evict")
        return job, job.engine.define(spec)

    def push(job: Job, number: int, seeds: range) -> None:
        for seed in seeds:
            rng = np.random.default_rng(seed)
            keys = np.unique(rng.integers(0, 3000, 400, dtype=np.uint64))
            job.engine.push(number, 0, 0, keys, np.ones((keys.size, 8), np.float32))
            job.engine.delete(number, keys[: seed % 50])

    job, number = job_of()
    push(job, number, range(40))
    job.save()
    again, same = job_of()
    again.load()
    assert_same_rows(again.rows(), job.rows())

    for one, table in ((job, number), (again, same)):
        push(one, table, range(40, 60))
        one.engine.validate()

    assert job.engine.stats(number)["evicted"] > 1000
    for mine, yours in zip(again.rows(), job.rows(), strict=True):
        np.testing.assert_array_equal(mine.keys, yours.keys)
        np.testing.assert_array_equal(mine.data, yours.data)
