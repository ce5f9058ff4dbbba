"""The scheduler's journal: torn, damaged, full, compacted, and used twice."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postoffice import journal as journal_module
from postoffice.barrier import Barriers
from postoffice.books import Books, Memory
from postoffice.errors import JournalError
from postoffice.gathering import Registration
from postoffice.journal import FileJournal
from postoffice.keeping import Keeper
from postoffice.membership import Membership, Phase
from postoffice.node import Node, Role
from postoffice.scheduler_app import SchedulerApp

SCHEDULER = Node(Role.SCHEDULER, 0, "tcp://scheduler", 5)
RECORDS = [b"one", b"", b"three" * 40]


def written(path: Path, records: list[bytes]) -> FileJournal:
    journal = FileJournal(path)
    for record in records:
        journal.append(record)
    return journal


def read(path: Path) -> list[bytes]:
    journal = FileJournal(path)
    try:
        return journal.load()
    finally:
        journal.close()


def test_what_was_appended_is_read_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, RECORDS).close()

    assert read(path) == RECORDS


def test_a_file_cut_at_any_byte_gives_the_records_before_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, RECORDS).close()
    content = path.read_bytes()

    for size in range(len(content)):
        path.write_bytes(content[:size])
        journal = FileJournal(path)
        found = journal.load()
        journal.append(b"next")
        journal.close()

        assert found == RECORDS[: len(found)]
        assert read(path) == [*found, b"next"]


@given(place=st.integers(0, 400), bit=st.integers(0, 7))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_flipped_bit_is_found_and_never_read_as_a_record(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    written(path, RECORDS).close()
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)

    is_in_last_record = place % len(content) >= len(content) - len(RECORDS[-1]) - 4

    if is_in_last_record:  # as if it were torn
        assert read(path) == RECORDS[:-1]
    else:
        with pytest.raises(JournalError, match=r"delete it|is no journal"):
            read(path)


def test_two_schedulers_cannot_have_one_journal(tmp_path: Path) -> None:
    first = written(tmp_path / "journal", RECORDS)

    with pytest.raises(JournalError, match="another scheduler uses it"):
        FileJournal(tmp_path / "journal")
    first.compact(b"all")
    with pytest.raises(JournalError, match="another scheduler uses it"):
        FileJournal(tmp_path / "journal")
    first.close()

    assert read(tmp_path / "journal") == [b"all"]


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"nowhere/journal: cannot be opened: No such file"):
        FileJournal(tmp_path / "nowhere" / "journal")


def test_another_file_is_not_taken_for_a_journal(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("milk, bread\n" * 9)

    with pytest.raises(JournalError, match="is no journal"):
        read(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "milk, bread\n" * 9


def fill_disk(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let writes take `room` bytes more, then fail."""
    left = [room]

    def pwrite(fd: int, data: memoryview, place: int) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(left[0], len(data))
        left[0] -= taken
        return os_pwrite(fd, data[:taken], place)

    os_pwrite = os.pwrite
    monkeypatch.setattr(journal_module.os, "pwrite", pwrite)


@pytest.mark.parametrize("room", [0, 1, 9, 20])
@pytest.mark.parametrize("act", ["append", "compact"])
def test_a_full_disk_leaves_the_former_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, act: str
) -> None:
    path = tmp_path / "journal"
    journal = written(path, RECORDS)
    with monkeypatch.context() as patch:
        fill_disk(patch, room)
        with pytest.raises(JournalError, match="No space left"):
            getattr(journal, act)(b"x" * 100)
    journal.append(b"later")
    journal.close()

    assert read(path) == [*RECORDS, b"later"]
    assert [file.name for file in tmp_path.iterdir()] == ["journal"]


class Counting(SchedulerApp):
    """Counts; keeps its state now and then, and notes what came since."""

    name = "counting"

    def __init__(self) -> None:
        self.count = 0

    def state(self) -> int:
        return self.count

    def restore(self, state: int | None, notes: list[int]) -> None:
        self.count = (state or 0) + sum(notes)


class Scheduler:
    """The books of one scheduler on a journal."""

    def __init__(self, path: Path) -> None:
        self.journal = FileJournal(path)
        self.membership = Membership({Role.SERVER: 1, Role.WORKER: 2}, SCHEDULER)
        self.barriers, self.app, self.map = Barriers(), Counting(), (0, b"")
        memory = Memory(self.journal.load(), str(path))
        if memory.is_of_an_open_job:
            self.map = memory.restore(self.membership, self.barriers, now=0.0)
            memory.restore_app(self.app)
        books = Books(self.membership, self.barriers, lambda: self.map, [self.app])
        self.keeper = Keeper(self.journal, books, is_new=not memory.is_of_an_open_job)

    def gather(self) -> None:
        for number, role in enumerate((Role.SERVER, Role.WORKER, Role.WORKER)):
            self.membership.register(Registration(role, None, f"tcp://h:{number}", 70 + number))
        assert self.membership.phase is Phase.RUNNING


def test_a_scheduler_goes_on_where_the_former_one_was(tmp_path: Path) -> None:
    first = Scheduler(tmp_path / "journal")
    first.gather()
    for number in range(1, 200):
        first.map = (number, b"map %d" % number)
        first.app.count += number
        first.keeper.books.note(first.app, number)
        if number % 30 == 0:
            first.keeper.books.save(first.app)
        if number == 100:
            first.membership.die(11, "was silent", now=1.0)
        if number in (5, 150):
            first.journal.compact(first.keeper.books.everything())
        first.keeper.commit()
    first.journal.close()

    second = Scheduler(tmp_path / "journal")

    assert second.membership.nodes == {
        **first.membership.nodes,
        1: second.membership.nodes[1],
    }
    assert second.membership.epoch == first.membership.epoch + 1
    assert second.membership.fenced == first.membership.fenced != {}
    assert second.membership.last_incarnation == first.membership.last_incarnation
    assert second.map == (199, b"map 199")
    assert second.app.count == sum(range(1, 200))
    second.membership.validate()
    second.journal.close()


def test_a_journal_that_cannot_be_written_is_said_once_and_caught_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = Scheduler(tmp_path / "journal")
    first.gather()
    with monkeypatch.context() as patch:
        fill_disk(patch, 0)
        for _ in range(3):
            first.keeper.books.note(first.app, 1)
            first.app.count += 1
            first.keeper.commit()
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "would not find its cluster" in caplog.text
    first.map = (1, b"map")
    first.keeper.commit()
    first.journal.close()

    second = Scheduler(tmp_path / "journal")

    assert (second.app.count, second.map) == (3, (1, b"map"))
    second.journal.close()


def test_a_journal_of_another_shape_is_a_clear_error(tmp_path: Path) -> None:
    first = Scheduler(tmp_path / "journal")
    first.gather()
    first.keeper.commit()
    first.journal.close()
    memory = Memory(read(tmp_path / "journal"), "here")

    with pytest.raises(JournalError, match="of a cluster of 1 server, 2 workers"):
        memory.restore(Membership({Role.WORKER: 1}, SCHEDULER), Barriers(), 0.0)


@pytest.mark.parametrize("record", [b"", b"\xc1", b"\x93", b"\x91\x05", b"\x91\x92\x05\x05"])
def test_records_without_sense_are_a_clear_error(record: bytes) -> None:
    with pytest.raises(JournalError, match="does not fit this job"):
        Memory([record], "here")
