"""Buffers that leave: which of them are due, and the sums that become of them.

The lock is held for the decision; shards are added up without it, by the executor's threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from kv.dispatcher.aggregating import aggregating, in_order
from kv.dispatcher.answering import Answers
from kv.dispatcher.buffers import Buffer, Pair, Pairs
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.flushing import Cause, Flushing
from kv.dispatcher.measuring import Measures
from kv.dispatcher.members import Members
from kv.dispatcher.receiving import Shard
from kv.dispatcher.sending import Sending
from kv.executor import Executor, Turns
from postoffice.postoffice import Postoffice
from van.errors import PsliteError


class Merging:
    """Makes one push of a buffer. Called with the dispatcher's lock held.

    Args:
        office: the dispatcher's node.
        lock: the dispatcher's.
        config: its settings.
        executor: adds up.
        pairs: the buffers.
        members: whose pushes are waited for.
        measures: told of each sum.
        sending: sends it.
        answers: to workers whose pushes cannot be added up.

    Attributes:
        flushing: says whether a buffer is due.
        flushes: how many were, by cause.
        on_sent: called when a buffer has been sent, or failed: ends of steps may follow it.
    """

    def __init__(
        self,
        office: Postoffice,
        lock: threading.RLock,
        config: DispatcherConfig,
        executor: Executor,
        pairs: Pairs,
        members: Members,
        measures: Measures,
        sending: Sending,
        answers: Answers,
    ) -> None:
        self._office, self._lock, self._config, self._executor = office, lock, config, executor
        self._pairs, self._members, self._progress = pairs, members, members.progress
        self._measures, self._sending, self._answers = measures, sending, answers
        self.flushing = Flushing(config)
        self.flushes: Counter[str] = Counter()
        self.on_sent: Callable[[], None] = lambda: None

    def look_at_all(self) -> None:
        """Send all buffers on whose time it is."""
        for pair in self._pairs:
            self.look_at(pair)

    def look_at(self, pair: Pair) -> None:
        """Send a buffer on if it is time."""
        sending = self._sending
        while pair.leaving is None and sending.under_way < self._config.max_under_way:
            slowest, waiting = self._progress.slowest(), self._pairs.waiting
            now = self._office.van.now()
            cause = self.flushing.cause(pair, now, self._members.active, slowest, waiting)
            if cause is None:
                return
            self.flushes[cause] += 1
            buffer = pair.swap(now)
            shards = in_order(buffer.shards)
            pair.in_pieces |= pair.round is not None and cause is not Cause.ROUND
            sending.under_way += 1
            if not pair.is_merged or pair.in_pieces:
                sending.under_way += len(shards) - 1
                for shard in shards:
                    sending.send(shard.parts, [shard])
                self._has_left(pair)
            else:
                self._executor.submit(self._adding_up(pair, buffer, shards))

    def _adding_up(self, pair: Pair, buffer: Buffer, shards: Sequence[Shard]) -> Turns[None]:
        config = self._config
        try:
            parts = yield from aggregating(
                shards, config.parallel_aggregators, config.max_shard_size
            )
        except PsliteError as error:
            with self._lock:
                self._sending.under_way -= 1
                for shard in shards:
                    self._answers.refuse(shard.message, error)
                self._has_left(pair)
            return
        with self._lock:
            self._sending.send(parts, shards)
            self._measures.summed(buffer)
            self._has_left(pair)
            self.look_at(pair)

    def _has_left(self, pair: Pair) -> None:
        """A buffer has been sent: another may leave, and ends of steps may follow it."""
        pair.leaving = None
        self._pairs.drop_rounds(self._progress.slowest())
        self.on_sent()

    def lose(self, rank: int) -> None:
        """Nobody waits for a worker any more; what it has pushed in its step is not merged."""
        if self._members.lose(rank):
            for pair in self._pairs:
                if rank in pair.filling.workers:
                    pair.in_pieces |= pair.round is not None
            self.look_at_all()

    def finish(self, rank: int) -> None:
        """A worker has finished: nothing more of it is to be waited for."""
        if self._progress.finish(rank):
            self.look_at_all()
