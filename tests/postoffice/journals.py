"""A journal for clusters on the seeded network."""

from __future__ import annotations


class MemoryJournal:
    """A journal in a list that outlives the scheduler, and that a dead one cannot write to.

    Args:
        records: what has been written down, also by schedulers before this one.
        many: from more records than this on it is long.

    Attributes:
        is_cut: its scheduler was killed; what the program does while it unwinds changes nothing.
    """

    def __init__(self, records: list[bytes], many: int = 20) -> None:
        self.records, self.is_cut = records, False
        self._many = many

    def load(self) -> list[bytes]:
        return list(self.records)

    def append(self, record: bytes) -> None:
        if not self.is_cut:
            self.records.append(record)

    @property
    def is_long(self) -> bool:
        return len(self.records) > self._many

    def compact(self, record: bytes) -> None:
        if not self.is_cut:
            self.records[:] = [record]

    def announce(self, address: str) -> None:
        pass

    def clear(self) -> None:
        if not self.is_cut:
            self.records.clear()

    def close(self) -> None:
        pass
