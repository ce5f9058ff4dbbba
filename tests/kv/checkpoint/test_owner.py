"""Of two jobs that save in one place one keeps it, and the other is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv.checkpoint.errors import CheckpointError, CheckpointWriteError
from kv.checkpoint.owner import FILE, PATIENCE, Owner
from kv.checkpoint.places import place_of
from tests.kv.checkpoint.jobs import Job, assert_same_rows
from van.identity import lives, this_process

HOLDER = """
import sys
from kv.checkpoint.owner import Owner
from kv.checkpoint.places import place_of
Owner(place_of(sys.argv[1])).take()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has taken the folder and lives."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_a_place_of_a_living_job_is_not_taken(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    waited: list[float] = []
    before = (tmp_path / FILE).read_bytes()

    with pytest.raises(CheckpointError, match=rf"another job keeps .* \(process {other.pid} on "):
        Owner(place_of(str(tmp_path)), waited.append).take()

    assert sum(waited) == pytest.approx(PATIENCE)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_job_on_its_way_out_is_waited_for(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    def wait(seconds: float) -> None:
        other.kill()
        other.wait(60)

    Owner(place_of(str(tmp_path)), wait).take()

    assert json.loads((tmp_path / FILE).read_text()) == this_process()


def test_a_job_that_has_lost_its_place_saves_and_removes_no_more(tmp_path: Path) -> None:
    job = Job(tmp_path, keep=1)
    job.train(1)
    name, rows = job.save(), job.rows()
    elsewhere = {**this_process(), "host": "elsewhere", "pid": 7}
    (tmp_path / FILE).write_text(json.dumps(elsewhere))

    with pytest.raises(CheckpointWriteError, match=r"another job .* 7 on elsewhere") as raised:
        job.save()

    assert raised.value.last_good == name
    later = Job(tmp_path)  # of a host that cannot tell whether the other lives
    assert later.load() == name
    assert_same_rows(later.rows(), rows)
    later.train(2)
    assert later.save() > name


def test_what_is_written_down_may_be_damaged(tmp_path: Path) -> None:
    for text in ("", "{", "[1]", '{"pid": "x"}', "null"):
        (tmp_path / FILE).write_text(text)
        Owner(place_of(str(tmp_path))).take()
        assert lives(json.loads((tmp_path / FILE).read_text()))


def test_a_folder_that_somebody_removes_is_made_again_with_all_rows(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    job = Job(folder, full_every=10)
    for seed in range(3):
        job.train(seed)
        last = job.save()
    shutil.rmtree(folder)
    job.train(3)

    name = job.save()

    again = Job(folder)
    assert name > last
    assert again.shelf.manifest(name).base is None
    assert again.load() == name
    assert_same_rows(again.rows(), job.rows())


def test_a_link_of_the_chain_that_somebody_removes_is_missed_in_time(tmp_path: Path) -> None:
    job = Job(tmp_path, full_every=10)
    names = []
    for seed in range(3):
        job.train(seed)
        names.append(job.save())
    shutil.rmtree(tmp_path / names[0])
    job.train(3)

    name = job.save()

    assert job.shelf.last_good() == name
    assert job.shelf.manifest(name).base is None
