"""Whatever ends a save at whatever moment, what was good before is good after."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from kv.checkpoint import shelf as shelves
from kv.checkpoint.errors import (
    CheckpointError,
    CheckpointWriteError,
    DamagedCheckpointError,
    NoCheckpointError,
)
from kv.checkpoint.places import MANIFEST, Place, place_of
from kv.placement import NUM_SLOTS
from kv.spec import TableSpec
from kv.store.rows import RowBatch
from tests.kv.checkpoint.disk import Disk, KilledError
from tests.kv.checkpoint.jobs import Job, assert_same_rows

MOST = 400  # more than a save does to the disk


def outcome_of(job: Job, mode: str) -> str | None:
    """What a save failed with; None if it did not."""
    try:
        job.save(mode)
    except (KilledError, CheckpointWriteError) as error:
        return str(error)
    return None


def assert_good(folder: Path, known: dict[str, list[RowBatch]], last: Sequence[str]) -> Job:
    """One of `last` is the last checkpoint and loads; all that there are are good."""
    name = shelves.last_good(str(folder))
    assert name in last
    after = Job(folder)
    for each in after.shelf.names():
        after.shelf.verify(each)
    assert after.load() == name
    assert_same_rows(after.rows(), known[name])
    return after


def slowly(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("end", "mode", "full_every", "cuts"),
    [
        ("killed", "step", 2, 1),
        ("killed", "step", 3, 1),
        ("full", "step", 3, 0),
        slowly("full", "step", 2, 0),
        slowly("killed", "fuzzy", 2, 10),
        slowly("killed", "fuzzy", 3, 10),
    ],
)
def test_a_save_that_ends_at_any_moment_leaves_the_one_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Literal["killed", "full"],
    mode: str,
    full_every: int,
    cuts: int,
) -> None:
    """The third save is full, and the first two are removed after it; or it has what changed.

    A killed one is also looked at after so many power cuts at that moment.
    """
    monkeypatch.setattr(os, "fsync", lambda file: None)  # slow, and no test can see what it does
    for moment in range(MOST):
        folder, known = tmp_path / f"at-{moment}", {}
        job = Job(folder, full_every, keep=1)
        for seed in range(2):
            job.train(seed)
            known[job.save()] = job.rows()
        job.train(2)
        *_, second = known
        known["ckpt-000003"] = job.rows()
        disk = Disk(folder, moment, end)
        with pytest.MonkeyPatch.context() as patch:
            disk.stand_between(patch)
            failure = outcome_of(job, mode)

        is_there = (folder / "ckpt-000003" / MANIFEST).exists()
        assert is_there or failure is not None
        if end == "full" and failure is not None:
            assert f"{second} is the last good one" in failure
            assert "No space left on device" in failure
            assert not is_there
        for seed in range(cuts):
            cut = tmp_path / f"cut-{seed}"
            disk.after_power_cut(cut, 1000 * moment + seed)
            assert_good(cut, known, [second, "ckpt-000003"][failure is None :])
            shutil.rmtree(cut)
        last = "ckpt-000003" if is_there else second
        after = assert_good(folder, known, [last])
        after.train(9)
        assert after.save() > last
        assert after.shelf.unfinished() == []
        shutil.rmtree(folder)
        if not disk.is_over:
            break
    assert 20 < moment < MOST


def test_folders_that_were_made_for_a_checkpoint_outlive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = Disk(root, 10**9, "killed")
    with pytest.MonkeyPatch.context() as patch:
        disk.stand_between(patch)
        job = Job(root / "deep" / "er")
        job.train(1)
        name = job.save()

    for seed in range(5):
        disk.after_power_cut(tmp_path / f"cut-{seed}", seed)
        assert_good(tmp_path / f"cut-{seed}" / "deep" / "er", {name: job.rows()}, [name])


def test_slots_that_move_while_they_are_written_make_no_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.train(1)
    name = job.save()
    left = np.ones(NUM_SLOTS, np.bool_)
    left[7] = False
    views = iter([np.ones(NUM_SLOTS, np.bool_), left, left, left])
    job.desk._owned = lambda: next(views)

    with pytest.raises(CheckpointWriteError, match="slots have moved to another server"):
        job.save()
    with pytest.raises(CheckpointWriteError, match=r"taken slots meanwhile \(slot 7 is in 0"):
        job.save()
    assert job.shelf.last_good() == name


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
