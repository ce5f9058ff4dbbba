"""Pulls of workers: what each asks for, and its answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kv.consistency.progress import Progress
from kv.dispatcher.answering import Answers
from kv.dispatcher.folding import FoldedRead, is_folded
from kv.dispatcher.known_tables import KnownTables
from kv.dispatcher.packing import Packing
from kv.dispatcher.reading import Reader
from kv.dispatcher.receiving import Values
from kv.dispatcher.refusing import Error
from kv.dispatcher.worker_pull import WorkerPull
from kv.table_protocol import Command
from postoffice.node import role_and_rank
from van.message import Clock, Message, answer_to


class Pulls:
    """Takes pulls. Called with the dispatcher's lock held.

    Args:
        tables: those that are known.
        progress: of the workers.
        reader: has the values.
        packing: compresses them.
        answers: to workers.
        counts: of `pulls`.

    Attributes:
        pushed_at: by rank, when the last push was answered.
    """

    def __init__(
        self,
        tables: KnownTables,
        progress: Progress,
        reader: Reader,
        packing: Packing,
        answers: Answers,
        counts: Counter[str],
    ) -> None:
        self._tables, self._progress, self._reader = tables, progress, reader
        self._packing, self._answers, self._counts = packing, answers, counts
        self.pushed_at: dict[int, float] = {}

    def take(self, message: Message) -> None:
        """A worker pulls."""
        tables = self._tables.of(message.meta)
        arrays = iter(message.arrays)
        keys = [None if table.is_dense else next(arrays) for table in tables]
        self.ask(message, keys, bool(message.meta.body["create"]))

    def ask(self, message: Message, keys: Sequence[Any], create: bool) -> None:
        """Answer a pull, or a push and pull whose push servers have.

        Args:
            keys: by table, None of a dense one.
            create: whether keys without a row may get one.
        """
        meta = message.meta
        tables = self._tables.of(meta)
        folded = None if is_folded(tables) else FoldedRead(tables, keys)
        step = max((step for _, step, _ in meta.clocks), default=0)
        rank = role_and_rank(meta.sender)[1]
        self._counts["pulls"] += 1

        def done(
            error: BaseException | None,
            said: Error | None,
            values: list[Values],
            clocks: tuple[Clock, ...],
        ) -> None:
            if error is not None:
                self._answers.fail(message, error, said)
            else:
                values = values if folded is None else folded.unfolded(values)
                answer = Message(answer_to(meta, clocks=clocks), list(values))
                self._packing.pack(answer, tables)
                self._answers.answer(message, answer)

        # Where nobody waits for a worker, rounds close without it.
        may_share = meta.cmd == Command.PULL and not self._progress.finished[rank]
        pushed = self.pushed_at.get(rank, -math.inf)
        named = tables if folded is None else folded.tables
        wanted = keys if folded is None else folded.keys
        pull = WorkerPull(named, wanted, rank, step, create, meta.priority)
        self._reader.read(pull, done, may_share, pushed)
