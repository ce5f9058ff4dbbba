"""Ledgers on disk and what they add up to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kv.errors import LeaseError
from kv.leases.accounts import Account, accounts_of
from kv.leases.book import LeaseBook
from kv.leases.events import Done, Event, Leased, Opened, Returned
from kv.leases.ledger import FILE, Ledger, read_ledger
from kv.leases.pieces import DataSet, Piece, Span
from tests.disk import small_files

DATA = DataSet(name="d", records=100)


def clock() -> float:
    return 1.5


def lease(number: int, start: int, stop: int, worker: int = 0) -> Leased:
    return Leased("d", Piece(number, Span(1, 0, start, stop), stop - start), worker, 7)


def account(*events: Event) -> Account:
    return accounts_of([Opened(DATA), *events])["d"]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    events: list[Event] = [
        Opened(DATA, (Span(1, 0, 0, 10),)),
        lease(0, 10, 50),
        Returned("d", 0, 0, 7, 12, "died"),
        lease(1, 10, 100, worker=1),
        Done("d", 1, 1, 7),
    ]
    ledger = Ledger(tmp_path / FILE, "job", clock)
    for event in events:
        ledger.record(event)

    head, found, size = read_ledger(tmp_path / FILE)

    assert (head["job"], found) == ("job", events)
    assert size == (tmp_path / FILE).stat().st_size


def test_a_torn_last_line_counts_for_nothing_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / FILE
    ledger = Ledger(path, "job", clock)
    ledger.record(Opened(DATA))
    ledger.record(lease(0, 0, 100))
    ledger.close()
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]

    for torn in range(len(last)):
        path.write_bytes(whole[: len(whole) - len(last) + torn])
        again = Ledger(path, "job", clock)
        assert again.former == [Opened(DATA)]
        again.record(lease(0, 0, 100))
        again.close()
        assert path.read_bytes() == whole


def test_another_jobs_ledger_is_replaced_and_ones_own_carried_on(tmp_path: Path) -> None:
    path = tmp_path / FILE
    Ledger(path, "one", clock).record(Opened(DATA))

    assert Ledger(path, "one", clock).former == [Opened(DATA)]
    assert Ledger(path, "two", clock).former == []
    assert Ledger(path, "one", clock).former == []


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b"[1]\n", b'{"event": "done"}\n', b"3\n"])
def test_a_damaged_line_is_told_by_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / FILE
    Ledger(path, "job", clock).record(Opened(DATA))
    path.write_bytes(path.read_bytes() + line)

    with pytest.raises(LeaseError, match="line 3"):
        read_ledger(path)


def test_on_a_full_disk_nothing_counts_and_no_torn_line_stays(tmp_path: Path) -> None:
    path = tmp_path / FILE
    ledger = Ledger(path, "job", clock)
    book = LeaseBook(1, ledger.record)
    shards = book.open(DATA)
    before = path.read_bytes()

    with small_files(len(before) + 20), pytest.raises(LeaseError, match="cannot be written"):
        shards.ask(0, 1, 0.0)

    assert path.read_bytes() == before
    piece = shards.ask(0, 1, 0.0).piece
    assert piece is not None
    assert read_ledger(path)[1] == [Opened(DATA), Leased("d", piece, 0, 1)]


def test_all_done_once_balances_and_says_who_did_what() -> None:
    found = account(lease(0, 0, 60), lease(1, 60, 100, 1), Done("d", 1, 1, 7), Done("d", 0, 0, 7))

    assert found.balances
    assert (found.records, found.finished) == ({0: 60, 1: 40}, {0: 1, 1: 1})


def test_doubles_are_what_the_model_saw_of_pieces_given_again() -> None:
    found = account(
        lease(0, 0, 100),
        Returned("d", 0, 0, 7, 33, "died"),
        lease(1, 0, 100, 1),
        Done("d", 1, 1, 7),
    )

    assert found.balances
    assert (found.returned, found.doubles, found.records) == (1, 33, {1: 100})


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([], "records 0 to 99 of epoch 1 not counted"),
        ([lease(0, 0, 100)], "1 pieces were not finished by worker 0"),
        ([lease(0, 0, 60), Done("d", 0, 0, 7)], "records 60 to 99 of epoch 1 not counted"),
        (
            [lease(0, 0, 100), Done("d", 0, 0, 7), lease(1, 30, 40), Done("d", 1, 0, 7)],
            "records 30 to 39 of epoch 1 counted again",
        ),
        ([lease(0, 0, 100), Done("d", 0, 1, 7)], "by worker 1, who did not hold it"),
        ([lease(0, 0, 100), Done("d", 0, 0, 8)], "by worker 0, who did not hold it"),
        ([Done("d", 4, 0, 7)], "piece 4 was counted by worker 0, who did not hold it"),
        ([lease(0, 0, 100), lease(0, 0, 100, 1)], "piece 0 was given to two workers at once"),
        ([lease(0, 0, 101), Done("d", 0, 0, 7)], "which the data set has not"),
        ([Opened(DATA)], "opened twice"),
    ],
)
def test_what_does_not_balance_is_told(events: list[Event], problem: str) -> None:
    found = account(*events)

    assert not found.balances
    assert any(problem in text for text in found.problems), found.problems


def test_a_line_is_json_for_people(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / FILE, "job", clock)
    ledger.record(Opened(DATA))
    ledger.record(lease(3, 0, 100))

    line = json.loads((tmp_path / FILE).read_text().splitlines()[-1])

    assert line == {
        "event": "leased",
        "data": "d",
        "piece": 3,
        "epoch": 1,
        "part": 0,
        "start": 0,
        "stop": 100,
        "records": 100,
        "worker": 0,
        "life": 7,
        "at": 1.5,
    }
