"""The ledger: what happened to training data, a line of JSON for each event, append-only.

A line is written in one piece before what it says counts, so whoever is killed leaves whole lines,
or at its end the beginning of one that counts for nothing and is cut off by who carries on. The
first line says whose ledger it is: a restarted scheduler carries on its own, another job's is
replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kv.errors import LeaseError
from kv.leases.events import Event, pack_event, unpack_event

FILE = "ledger.jsonl"
VERSION = 1


class Ledger:
    """A ledger to write to.

    Args:
        path: the file; what another job left there is replaced.
        job: names the job: a restart of the same carries the file on.
        clock: seconds since 1970, for people who read it.
    Raises:
        LeaseError: it cannot be written, or is this job's and damaged.
    """

    def __init__(self, path: Path, job: str, clock: Callable[[], float]) -> None:
        self.path, self._clock = path, clock
        self.former: list[Event] = []  # of this job, before a restart
        size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                head, self.former, size = read_ledger(path, job)
                size = size if head else 0
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._file, size)
        except OSError as error:
            raise LeaseError(f"ledger {path} cannot be written: {error.strerror}") from error
        self._size = size
        if not size:
            self._write({"event": "begin", "version": VERSION, "job": job})

    def record(self, event: Event) -> None:
        """Write an event.

        Raises:
            LeaseError: it cannot be written; then the file is as before.
        """
        self._write(pack_event(event))

    def _write(self, facts: dict[str, Any]) -> None:
        line = json.dumps({**facts, "at": round(self._clock(), 3)}).encode() + b"\n"
        try:
            written = os.write(self._file, line)
            if written < len(line):
                os.ftruncate(self._file, self._size)  # else the next line would follow a torn one
                raise OSError(0, "the disk is full")
        except OSError as error:
            raise LeaseError(f"ledger {self.path} cannot be written: {error.strerror}") from error
        self._size += written

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_ledger(path: Path, job: str | None = None) -> tuple[dict[str, Any], list[Event], int]:
    """The first line of a ledger, its events, and the bytes of all whole lines.

    Args:
        job: whose ledger is wanted; of another's there are no first line and no events.
    Raises:
        LeaseError: it cannot be read, or a whole line is none of a ledger's.
    """
    head: dict[str, Any] = {}
    events: list[Event] = []
    size = 0
    try:
        for number, line in enumerate(_whole_lines(path), 1):
            facts = json.loads(line)
            if number > 1:
                events.append(unpack_event(facts))
            elif facts.get("event") != "begin" or facts.get("version") != VERSION:
                raise LeaseError(f"it does not begin as one of version {VERSION}")
            elif job is not None and facts.get("job") != job:
                return {}, [], 0
            else:
                head = facts
            size += len(line)
    except OSError as error:
        raise LeaseError(f"ledger {path} cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, LeaseError) as error:
        if job is not None and not head:
            return {}, [], 0  # whatever it is, it is not this job's
        raise LeaseError(f"ledger {path}, line {number}: {error}") from None
    return head, events, size


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # else its writer was killed, and it counts for nothing
                yield line
