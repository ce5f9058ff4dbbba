"""Keeps a scheduler's books in its journal, and goes on where the journal cannot be written."""

from __future__ import annotations

import logging

from postoffice.books import Books
from postoffice.errors import JournalError, LeadershipLostError
from postoffice.journal import Journal

log = logging.getLogger(__name__)


class Keeper:
    """Writes what has changed before anybody is told of it.

    Args:
        journal: where; None: nowhere.
        books: what.
        is_new: whether what the journal holds is of no use any more.
    """

    def __init__(self, journal: Journal | None, books: Books, *, is_new: bool) -> None:
        self.books = books
        self._journal = journal
        self._is_behind = is_new  # the next time all is written
        self._is_told = False

    def commit(self) -> None:
        """Write what has changed. A journal that cannot be written is an error in the log.

        Raises:
            LeadershipLostError: another scheduler goes on; this one must not act any more.
        """
        record = self.books.changes()
        if self._journal is None or record is None:
            return
        try:
            if self._is_behind or self._journal.is_long:
                self._journal.compact(self.books.everything())
            else:
                self._journal.append(record)
            self._is_behind = self._is_told = False
        except LeadershipLostError:
            raise
        except JournalError as error:
            if not self._is_told:
                log.error("%s; a scheduler started again would not find its cluster", error)
            self._is_behind = self._is_told = True

    def end(self) -> None:
        """The job is over: nobody shall go on with it."""
        if self._journal is not None:
            self._journal.clear()

    def close(self) -> None:
        """Leave the journal to others."""
        if self._journal is not None:
            self._journal.close()
