"""How a program gets its worker: `connect` in a cluster's process, `local_cluster` in one's own.

with pslite.connect() as worker: ...                   # role and addresses: the environment
with pslite.connect(local=True) as worker: ...         # a notebook
with pslite.local_cluster(servers=2, workers=4) as cluster:
    cluster.run(train)                                 # train(worker) in a thread each
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kv.compression.settings import NO_RULES, Rules
from postoffice.errors import ClusterStoppedError
from postoffice.node import Role
from postoffice.postoffice import Postoffice
from pslite import environ
from pslite.config import JobConfig, RunConfig
from pslite.node import make_office, run_node, set_up_logging
from pslite.repeating import check_hashes, fix_chance
from pslite.simulate.reading import links_of
from van.errors import ConfigError

if TYPE_CHECKING:
    from kv.consistency.settings import Consistency
    from kv.remote_worker import RemoteWorker
    from pslite.local_nodes import LocalNodes

log = logging.getLogger(__name__)

ServerApp = Callable[[Postoffice], object]


def connect(
    *,
    local: bool = False,
    servers: int = 1,
    mode: str | Consistency = "async",
    seed: int = 1,
    env: Mapping[str, str] | None = None,
) -> RemoteWorker:
    """Join the cluster that the environment names, and return this process' worker.

    In a process with the role of a server or the scheduler it serves until the job ends and then
    exits, so that one program can play every role, as with ps-lite.

    Args:
        local: make a cluster in this process instead, for notebooks and tests.
        servers, mode, seed: of that local cluster.
        env: variables to read instead of the environment.
    Raises:
        ConfigError: this process is in no cluster, or a setting is wrong.
        ClusterStartError, RegistrationError: the cluster does not come together.
    """
    if local:
        return local_cluster(servers, 1, mode, seed).start().alone()
    variables = environ.current() if env is None else env
    if not environ.is_in_cluster(variables):
        raise ConfigError(
            "this process is in no cluster (DMLC_ROLE is not set): start it by `pslite local "
            "conf/local.ini -- python PROGRAM`, or use pslite.connect(local=True) for a cluster "
            "within this process"
        )
    settings = environ.from_environ(variables)
    if settings.role is not Role.WORKER:
        run_node(settings)
        raise SystemExit(0)
    from kv.remote_worker import RemoteWorker  # loads Numba, which a scheduler does without

    set_up_logging(settings)
    check_hashes(settings.job, variables)
    office = make_office(settings)
    job = settings.job
    worker = RemoteWorker(
        office,
        job.param_sync.consistency,
        job.run.seed,
        key_cache=job.server.key_cache,
        key_deltas=job.param_sync.key_deltas,
        piece=_piece_of(job),
        may_move=job.cluster.replicas > 0,
        max_staleness=job.param_sync.max_staleness,
        retry=job.param_sync.retry,
        is_deterministic=job.run.deterministic,
        compression=job.compression,
        balance=job.balance,
    )
    try:
        office.start()
    except BaseException:
        office.finalize()
        raise
    fix_chance(job, worker.rank)
    _close_at_exit(worker)
    _tell_consequences_in_a_line(office)
    return worker


def _piece_of(job: JobConfig) -> int | None:
    """Bytes of rows above which a worker's request is cut; None: as is quickest on the way."""
    if job.cluster.dispatchers:
        return job.dispatcher.max_shard_size
    from kv.cutting import PIECE

    return PIECE if job.run.is_fixed else None


def _tell_consequences_in_a_line(office: Postoffice) -> None:
    """A program that ends because another node failed says so, without a traceback of its own."""
    if sys.excepthook is not sys.__excepthook__:
        return  # the program has its own way

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, ClusterStoppedError):
            print(f"{office.name} ends: {kind.__name__}: {error}", file=sys.stderr, flush=True)
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = show


def _close_at_exit(worker: RemoteWorker) -> None:
    """A program that ends without `close` still says goodbye, and whether it failed."""
    process = os.getpid()

    def close() -> None:
        if os.getpid() != process:
            return  # a forked child has no share in its parent's worker
        error = getattr(sys, "last_value", None)  # of an exception that ended the program
        try:
            is_failure = error is not None and not isinstance(error, ClusterStoppedError)
            worker.close(f"{type(error).__name__}: {error}" if is_failure else None)
        except Exception as problem:  # Python would report it and still exit with 0
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(1)

    atexit.register(close)
    worker.on_close = lambda: _closed(worker, close)


def _closed(worker: RemoteWorker, close: Callable[[], None]) -> None:
    atexit.unregister(close)
    if worker.rank == 0:
        for setting in worker.encoders.unused():
            log.warning("%s: this job has defined no such table", setting)


def local_cluster(
    servers: int = 1,
    workers: int = 1,
    mode: str | Consistency = "async",
    seed: int = 1,
    server_app: ServerApp | None = None,
    run_dir: Path | None = None,
    replicas: int = 0,
    server_threads: int = 0,
    record: Path | None = None,
    replay: Path | None = None,
    compression: Rules = NO_RULES,
    dispatchers: int = 0,
    network: Mapping[str, str | float] | None = None,
) -> LocalNodes:
    """A whole cluster in this process, each node in a thread, messages over `inproc://`.

    Args:
        servers, workers: how many of each.
        mode: of tables that name none: a name, or a mode with settings such as `pslite.SSP(2)`.
        seed: of initial values.
        server_app: called with each server's postoffice before it starts, as `[server] app` is.
        run_dir: a folder that gets the ledger of what workers read by `worker.shards`.
        replicas: copies of each row on another server, as `[cluster] replicas`.
        server_threads: of each server, as `[server] threads`.
        record, replay: folders of records, as `pslite local` has them.
        compression: of tables that name none, as the section `[compression]`.
        dispatchers: that merge the workers' pushes, as `[cluster] dispatchers`.
        network: to simulate, as the keys of `[simulate]` that jobs heed, such as
            `{"bandwidth": "1Gbit", "latency@server": "2ms"}`.
    Returns:
        A context manager; see `LocalNodes`.
    Raises:
        ConfigError: a key of `network` that means nothing here, or is wrong.
    """
    from pslite.local_nodes import LocalNodes

    run = RunConfig(record=str(record or ""), replay=str(replay or ""))
    return LocalNodes(
        servers,
        workers,
        mode,
        seed,
        server_app,
        run_dir,
        replicas,
        server_threads,
        run,
        compression,
        dispatchers,
        links_of(network or {}),
    )
