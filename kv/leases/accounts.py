"""What a ledger adds up to: is every record counted exactly once?

Works on the events alone and trusts none of them: `shards` would refuse what is wrong here, and who
audits does not take the auditee's word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kv.leases.events import Done, Event, Leased, Opened, Returned
from kv.leases.pieces import DataSet, Span, Spans

MOST_PROBLEMS = 20  # of a data set that are told one by one


@dataclass
class Account:
    """One data set.

    Attributes:
        done: what is counted.
        pieces: by number, each lease that was not returned yet.
        records: counted, by worker.
        finished: pieces counted, by worker.
        resumed: records that a former job had read.
        returned: pieces that were given again.
        doubles: records of those that the model had seen before.
        problems: what is wrong, in sentences.
    """

    data: DataSet
    done: Spans = field(default_factory=Spans)
    pieces: dict[int, Leased] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    resumed: int = 0
    returned: int = 0
    doubles: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def expected(self) -> int:
        """Records in all epochs."""
        return self.data.records * self.data.epochs

    @property
    def counted(self) -> int:
        """Records that count, each once."""
        return sum(self.data.records_of(span) for span in self.done)

    @property
    def missing(self) -> list[Span]:
        """What is not counted."""
        left = Spans(self.data.spans())
        for span in self.done:
            left.take(span)
        return list(left)

    @property
    def balances(self) -> bool:
        """Whether every record is counted exactly once."""
        return not self.problems and self.counted == self.expected


def accounts_of(events: Iterable[Event]) -> dict[str, Account]:
    """The account of each data set of a ledger."""
    accounts: dict[str, Account] = {}
    for event in events:
        if isinstance(event, Opened):
            if event.name in accounts:
                accounts[event.name].problems.append("it was opened twice")
                continue
            account = accounts[event.name] = Account(event.data)
            for span in event.done:
                _count(account, span, "before this job")
            account.resumed = account.counted
        elif (known := accounts.get(event.name)) is not None:
            _book(known, event)
        else:
            name = event.name
            accounts[name] = Account(
                DataSet(name=name, records=0), problems=["it was never opened"]
            )
    for account in accounts.values():
        _close(account)
    return accounts


def _book(account: Account, event: Leased | Done | Returned) -> None:
    if isinstance(event, Leased):
        number = event.piece.number
        if number in account.pieces:
            account.problems.append(f"piece {number} was given to two workers at once")
        account.pieces[number] = event
        return
    lease = account.pieces.get(event.piece)
    if lease is None or (lease.worker, lease.life) != (event.worker, event.life):
        what = "counted" if isinstance(event, Done) else "given back"
        problem = f"piece {event.piece} was {what} by worker {event.worker}, who did not hold it"
        account.problems.append(problem)
        return
    del account.pieces[event.piece]
    if isinstance(event, Returned):
        account.returned += 1
        account.doubles += event.seen
        return
    worker = event.worker
    _count(account, lease.piece.span, f"by worker {worker} as piece {event.piece}")
    account.finished[worker] = account.finished.get(worker, 0) + 1
    records = account.data.records_of(lease.piece.span)
    account.records[worker] = account.records.get(worker, 0) + records


def _count(account: Account, span: Span, how: str) -> None:
    again = account.done.overlap(span)
    if again is not None:
        account.problems.append(f"{describe(again)} counted again {how}")
    elif not any(_holds(whole, span) for whole in account.data.spans()):
        account.problems.append(f"{describe(span)} counted {how}, which the data set has not")
    else:
        account.done.add(span)


def _holds(whole: Span, span: Span) -> bool:
    same = (whole.epoch, whole.part) == (span.epoch, span.part)
    return same and whole.start <= span.start and span.stop <= whole.stop


def _close(account: Account) -> None:
    """Say of what is not counted whether anybody holds it."""
    for span in account.missing[:MOST_PROBLEMS]:
        account.problems.append(f"{describe(span)} not counted")
    holders = sorted({lease.worker for lease in account.pieces.values()})
    if holders:
        names = ", ".join(f"worker {worker}" for worker in holders)
        account.problems.append(f"{len(account.pieces)} pieces were not finished by {names}")


def describe(span: Span) -> str:
    """For people.

    >>> describe(Span(2, 0, 0, 1000))
    'records 0 to 999 of epoch 2'
    """
    part = f", part {span.part}," if span.part else ""
    return f"records {span.start} to {span.stop - 1} of epoch {span.epoch}{part}"
