"""When a buffer is sent: as late as pays, but never so late that somebody stands still."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum

from kv.dispatcher.buffers import Pair
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.hotkeys import MOST


class Cause(StrEnum):
    """Why a buffer is sent."""

    ALL = "all"  # every worker has pushed
    ROUND = "round"  # every worker has ended the step
    INTERVAL = "interval"  # the first of its pushes has waited long enough
    SIZE = "size"
    EMERGENCY = "emergency"  # too many pushes wait in all
    PRIORITY = "priority"  # a push says that it is urgent
    LEAVING = "leaving"  # a worker that is to go another way waits for a push in it
    SINGLE = "single"  # its pushes are not merged


class Flushing:
    """Decides; bookkeeping is the caller's.

    Args:
        config: the limits.

    Attributes:
        leaving: ranks of workers that are to go another way, as soon as their pushes are answered.
    """

    def __init__(self, config: DispatcherConfig) -> None:
        self._config = config
        self.leaving: Set[int] = frozenset()

    def cause(
        self, pair: Pair, now: float, active: Set[int], slowest: int | None, waiting: int
    ) -> Cause | None:
        """Why the filling buffer is to be sent now; None: it is not.

        Args:
            active: ranks of the workers that may still push.
            slowest: steps that the slowest of them has ended; None: there are none.
            waiting: shards in all buffers.
        """
        buffer, config = pair.filling, self._config
        if all(shard.waits for shard in buffer.shards):
            return None
        if not pair.is_merged or pair.in_pieces:
            return Cause.SINGLE
        if waiting >= config.emergency_flush_threshold:
            return Cause.EMERGENCY
        if pair.round is not None:
            if slowest is None or slowest > pair.round:
                return Cause.ROUND
            waited = now - buffer.since >= config.round_interval
            return Cause.INTERVAL if waited else None
        if any(shard.message.meta.priority > 0 for shard in buffer.shards[-1:]):
            return Cause.PRIORITY
        if not self.leaving.isdisjoint(buffer.workers):
            return Cause.LEAVING
        if active <= buffer.workers:
            return Cause.ALL
        if buffer.nbytes >= config.flush_size or (pair.is_ahead and len(buffer.shards) >= MOST):
            return Cause.SIZE
        interval = config.hot_interval if pair.is_ahead else config.flush_interval
        return Cause.INTERVAL if now - buffer.since >= interval else None
