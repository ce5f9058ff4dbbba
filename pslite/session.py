"""How a program gets its worker: `connect` in a cluster's process, `local_cluster` in one's own.

with pslite.connect() as worker: ...                   # role and addresses: the environment
with pslite.connect(local=True) as worker: ...         # a notebook
with pslite.local_cluster(servers=2, workers=4) as cluster:
    cluster.run(train)                                 # train(worker) in a thread each
"""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from kv.table_server import TableServer
from kv.tables import RemoteWorker
from postoffice.errors import ClusterStoppedError
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from pslite import environ
from pslite.node import make_office, run_node, set_up_logging
from van.courier import ZmqVan, new_context
from van.errors import ConfigError

T = TypeVar("T")
ServerApp = Callable[[Postoffice], object]

_numbers = itertools.count()


def connect(
    *,
    local: bool = False,
    servers: int = 1,
    mode: str = "async",
    seed: int = 0,
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
        return LocalNodes(servers, 1, mode, seed).start().alone()
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
    set_up_logging(settings)
    office = make_office(settings)
    worker = RemoteWorker(office, settings.job.param_sync.mode, settings.job.run.seed)
    try:
        office.start()
    except BaseException:
        office.finalize()
        raise
    _close_at_exit(worker)
    return worker


def _close_at_exit(worker: RemoteWorker) -> None:
    """A program that ends without `close` still says goodbye, and whether it failed."""
    reference = weakref.ref(worker)

    def close() -> None:
        living = reference()
        if living is not None:
            error = getattr(sys, "last_value", None)  # of an exception that ended the program
            living.close(None if error is None else f"{type(error).__name__}: {error}")

    atexit.register(close)


def local_cluster(
    servers: int = 1,
    workers: int = 1,
    mode: str = "async",
    seed: int = 0,
    server_app: ServerApp | None = None,
) -> LocalNodes:
    """A whole cluster in this process, each node in a thread, messages over `inproc://`.

    Args:
        servers, workers: how many of each.
        mode: of tables that name none: `async` or `sync`.
        seed: of initial values.
        server_app: called with each server's postoffice before it starts, as `[server] app` is.
    Returns:
        A context manager; see `LocalNodes`.
    """
    return LocalNodes(servers, workers, mode, seed, server_app)


class LocalNodes:
    """Scheduler, servers and workers of one job as threads of this process.

    Attributes:
        workers: by rank, once started; each to be used by one thread at a time.
    """

    def __init__(
        self,
        servers: int,
        workers: int,
        mode: str = "async",
        seed: int = 0,
        server_app: ServerApp | None = None,
    ) -> None:
        self.workers: list[RemoteWorker] = []
        self._mode, self._seed, self._server_app = mode, seed, server_app
        self._context = new_context()
        self._place = f"inproc://pslite-{next(_numbers)}"
        self._shape = ClusterShape(
            servers=servers, workers=workers, scheduler=f"{self._place}-scheduler"
        )
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self) -> Self:
        """Start all nodes; returns when they have found each other."""
        self._spawn("scheduler", self._run_scheduler)
        for rank in range(self._shape.servers):
            self._spawn(f"server {rank}", lambda rank=rank: self._run_server(rank))
        self.workers = [self._worker(rank) for rank in range(self._shape.workers)]
        starts = [
            self._spawn(f"start of worker {rank}", worker.office.start)
            for rank, worker in enumerate(self.workers)
        ]
        for thread in starts:
            thread.join()
        self._raise_failure()
        return self

    def _spawn(self, name: str, run: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except ClusterStoppedError:
                pass  # the node that failed has raised
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=guarded, name=f"pslite {name}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _office(self, role: Role, name: str, rank: int | None) -> Postoffice:
        van = ZmqVan(context=self._context, background=role is Role.WORKER)
        return Postoffice(role, van, self._shape, bind=f"{self._place}-{name}", rank=rank)

    def _run_scheduler(self) -> None:
        office = self._office(Role.SCHEDULER, "scheduler", None)
        try:
            office.start()
            office.serve()
        finally:
            office.finalize()

    def _run_server(self, rank: int) -> None:
        office = self._office(Role.SERVER, f"server{rank}", rank)
        failure: str | None = None
        try:
            TableServer(office, self._mode, self._seed)
            if self._server_app is not None:
                self._server_app(office)
            office.start()
            office.serve()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            office.finalize(failure)

    def _worker(self, rank: int) -> RemoteWorker:
        office = self._office(Role.WORKER, f"worker{rank}", rank)
        return RemoteWorker(office, self._mode, self._seed)

    def run(self, program: Callable[[RemoteWorker], T]) -> list[T]:
        """Run `program(worker)` in a thread for each worker; the results by rank.

        Raises:
            What the first failing program raised; the others are stopped.
        """
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def act(worker: RemoteWorker) -> None:
            try:
                results[worker.rank] = program(worker)
            except BaseException as error:
                errors.append(error)
                worker.close(f"{type(error).__name__}: {error}")

        threads = [
            threading.Thread(target=act, args=(worker,), name=f"pslite {worker.office.name}")
            for worker in self.workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            causes = [e for e in errors if not isinstance(e, ClusterStoppedError)]
            raise (causes or errors)[0]
        return [results[rank] for rank in sorted(results)]

    def alone(self) -> RemoteWorker:
        """The only worker; closing it ends this cluster."""
        (worker,) = self.workers
        worker.on_close = self._end
        return worker

    def close(self, failure: str | None = None) -> None:
        """End all nodes. Raises what failed in a server."""
        closers = [
            threading.Thread(target=worker.close, args=(failure,)) for worker in self.workers
        ]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join()
        self._end()

    def _end(self) -> None:
        for thread in self._threads:
            thread.join()
        self._context.term()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close(None if error is None else f"{type(error).__name__}: {error}")
        except Exception:
            if error is None:  # else the first error is the one to show
                raise

    def __repr__(self) -> str:
        shape: Any = self._shape
        return f"<LocalNodes servers={shape.servers} workers={shape.workers}>"
