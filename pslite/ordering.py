"""What fixes the order of work in a node's process, as its job's settings want it.

Numba is loaded where a server's order is made; the scheduler and the launcher do without.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kv.executor import threads_of
from kv.leases.dealing import ByRank, Dealing
from kv.replay.leases import RecordedLeases, ReplayedLeases, leases_file
from kv.replay.recordfile import Head, RecordWriter, read_record, server_file
from pslite.config import JobConfig, RunConfig
from pslite.environ import NodeSettings
from pslite.repeating import check_head
from van.errors import ConfigError

if TYPE_CHECKING:
    from kv.replay.order import Order


def head_of(job: JobConfig, rank: int) -> Head:
    """What the record of a server says of the cluster."""
    stale = job.param_sync.max_staleness
    return Head(
        server=rank,
        servers=job.cluster.servers,
        workers=job.cluster.workers,
        mode=str(job.param_sync.consistency),
        seed=job.run.seed,
        threads=threads_of(job.server.threads),
        max_staleness=-1 if stale is None else stale,
        deterministic=job.run.deterministic,
    )


def order_of(settings: NodeSettings) -> Order | None:
    """The order that a server writes down or keeps to; None: it does neither.

    Raises:
        ConfigError: the server has no rank yet.
        RecordError: its record cannot be written or read, or is of another job.
    """
    run = settings.job.run
    if not run.record and not run.replay:
        return None
    if settings.rank is None:
        problem = "a server of a job that is recorded or replayed must have one"
        raise ConfigError(problem, key="PSLITE_RANK")
    return make_order(run, head_of(settings.job, settings.rank))


def make_order(run: RunConfig, head: Head) -> Order | None:
    """The order of a server with that head; errors as of `order_of`."""
    from kv.replay.order import Recording, Replaying

    if run.record:
        return Recording(RecordWriter(server_file(Path(run.record), head.server), head))
    if run.replay:
        record = read_record(server_file(Path(run.replay), head.server))
        check_head(record.path, record.head.differences(head))
        return Replaying(record, run.replay_limit)
    return None


def make_dealing(run: RunConfig, workers: int) -> Dealing | None:
    """Who gets which piece of training data; None: speeds say it.

    Raises:
        RecordError: the record cannot be written or read.
    """
    if run.replay:
        return ReplayedLeases(leases_file(Path(run.replay)))
    dealing = ByRank(workers) if run.deterministic else None
    if run.record:
        return RecordedLeases(leases_file(Path(run.record)), dealing)
    return dealing


@contextlib.contextmanager
def whole_at_signal(close: Callable[[str], None] | None) -> Iterator[None]:
    """A record is complete also when this process is ended by SIGTERM, as by its launcher.

    Args:
        close: writes its end, with the reason; None: there is no record.
    """
    if close is None:
        yield
        return

    def end(signum: int, _: FrameType | None) -> None:
        close(f"its node got {signal.Signals(signum).name}")
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    before = None
    with contextlib.suppress(ValueError):  # not the main thread: signals are the caller's business
        before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
