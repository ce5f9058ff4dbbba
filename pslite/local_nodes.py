"""A whole cluster in one process: each node a thread, messages over `inproc://`.

For notebooks, for tests, and for training with several workers as threads.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kv.checkpoint.server import CheckpointServer
from kv.compression.settings import NO_RULES, Rules
from kv.consistency.settings import Consistency
from kv.cutting import PIECE
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.dispatcher import Dispatcher
from kv.executor import threads_of
from kv.leases.dealing import Dealing
from kv.leases.desk import LeaseDesk
from kv.placement_app import PlacementApp
from kv.remote_worker import RemoteWorker
from kv.replay.order import Order
from kv.replay.recordfile import Head
from kv.replay.rules import checking
from kv.replication.replicator import Replicator
from kv.table_server import TableServer
from postoffice.errors import ClusterStoppedError
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from pslite.config import RunConfig
from pslite.ordering import make_dealing, make_order
from pslite.simulate.links import Links
from pslite.vans import in_network, name_of_line, patience
from van.courier import ZmqVan, new_context
from van.errors import ConfigError
from van.van import Van

T = TypeVar("T")

_numbers = itertools.count()


class LocalNodes:
    """Scheduler, servers and workers of one job as threads of this process.

    Args:
        servers, workers: how many.
        mode: of tables that name none.
        seed: of initial values.
        server_app: called with each server's postoffice, which has not started.
        replicas: copies of each row on another server, 0 or 1.
        server_threads: of each server; 0: half of the cores.
        run: what is recorded or replayed; its seed is not looked at.
        dispatchers: that merge the workers' pushes.
        links: of a network to simulate; None: messages travel as they do.
        dispatcher: settings of each.
        dispatcher_app: called with each dispatcher's postoffice, which has not started.

    Attributes:
        workers: by rank, once started; each to be used by one thread at a time.
        scheduler: once started; its van belongs to a thread of its own.
    """

    def __init__(
        self,
        servers: int,
        workers: int,
        mode: str | Consistency = "async",
        seed: int = 1,
        server_app: Callable[[Postoffice], object] | None = None,
        run_dir: Path | None = None,
        replicas: int = 0,
        server_threads: int = 0,
        run: RunConfig = RunConfig(),
        compression: Rules = NO_RULES,
        dispatchers: int = 0,
        links: Links | None = None,
        dispatcher: DispatcherConfig = DispatcherConfig(),
        dispatcher_app: Callable[[Postoffice], object] | None = None,
    ) -> None:
        if replicas not in (0, 1) or (replicas and servers < 2):
            raise ConfigError(
                f"there can be 0 copies of each row, or 1 with at least two servers; asked for "
                f"{replicas} with servers = {servers}",
                key="replicas",
            )
        if not 0 <= dispatchers <= workers:
            problem = f"expected 0 to {workers}, one for each worker at most, got {dispatchers}"
            raise ConfigError(problem, key="dispatchers")
        self.workers: list[RemoteWorker] = []
        self.scheduler: SchedulerOffice | None = None
        self._mode, self._seed, self._server_app = mode, seed, server_app
        self._run_dir = run_dir
        self._dispatcher, self._dispatcher_app = dispatcher, dispatcher_app
        self._replicas, self._compression = replicas, compression
        self._server_threads, self._run = threads_of(server_threads), run
        self._dealing: Dealing | None = None
        self._orders: list[Order | None] = []
        if (run.record or run.replay) and replicas:
            raise ConfigError("a run that is recorded or replayed has none", key="replicas")
        if (run.record or run.replay) and dispatchers:
            raise ConfigError("a run that is recorded or replayed has none", key="dispatchers")
        if links is not None:
            self._check(links, servers, workers, dispatchers)
        self._links = links
        self._context = new_context()
        self._place = f"inproc://pslite-{next(_numbers)}"
        self._shape = ClusterShape(
            servers=servers,
            workers=workers,
            dispatchers=dispatchers,
            scheduler=f"{self._place}-scheduler",
        )
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self) -> Self:
        """Start all nodes; returns when they have found each other.

        Raises:
            RecordError: a record cannot be written or read, or is of another cluster.
        """
        try:
            servers = range(self._shape.servers)
            self._orders = [make_order(self._run, self._head(rank)) for rank in servers]
            self._dealing = make_dealing(self._run, self._shape.workers)
        except BaseException:
            self._context.term()
            raise
        self._spawn("scheduler", self._run_scheduler)
        for rank in range(self._shape.servers):
            self._spawn(f"server {rank}", partial(self._run_server, rank))
        for rank in range(self._shape.dispatchers):
            self._spawn(f"dispatcher {rank}", partial(self._run_dispatcher, rank))
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

    @staticmethod
    def _check(links: Links, servers: int, workers: int, dispatchers: int) -> None:
        counts = {Role.SCHEDULER: 1, Role.SERVER: servers, Role.WORKER: workers}
        links.check(counts | {Role.DISPATCHER: dispatchers})

    def _van(self, role: Role, rank: int) -> Van:
        van = ZmqVan(context=self._context, background=role is Role.WORKER)
        name = name_of_line(role, rank)
        return in_network(van, self._links, name, van.config, self._seed)

    def _office(self, role: Role, name: str, rank: int) -> Postoffice:
        van = self._van(role, rank)
        office = Postoffice(role, van, self._shape, bind=f"{self._place}-{name}", rank=rank)
        office.resend_with(patience(Resend().timeout, self._links))
        return office

    def _run_scheduler(self) -> None:
        office = SchedulerOffice(self._van(Role.SCHEDULER, 0), self._shape)
        desk = LeaseDesk(office, self._run_dir, dealing=self._dealing)
        office.apps.append(desk)
        self.scheduler = office
        PlacementApp(office, self._replicas)
        try:
            office.start()
            office.serve()
        finally:
            if self._dealing is not None:
                self._dealing.close()
            office.finalize()
            desk.close()

    def _run_server(self, rank: int) -> None:
        office = self._office(Role.SERVER, f"server{rank}", rank)
        failure: str | None = None
        try:
            tables = self._tables(office, rank)
            CheckpointServer(
                office, tables.engine, owned=lambda: tables.desk.slots.owner == office.rank
            )
            Replicator(tables)
            if self._server_app is not None:
                self._server_app(office)
            with tables:
                office.start()
                office.serve()
        except ClusterStoppedError:  # another node has failed, not this one
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            office.finalize(failure)

    def _head(self, rank: int) -> Head:
        return Head(
            server=rank,
            servers=self._shape.servers,
            workers=self._shape.workers,
            mode=str(Consistency.of(self._mode)),
            seed=self._seed,
            threads=self._server_threads,
        )

    def _tables(self, office: Postoffice, rank: int) -> TableServer:
        order = self._orders[rank]
        threads = self._server_threads if order is None or order.threads is None else order.threads
        chosen = dict[str, Any]()
        if self._run.is_fixed:
            chosen["check"] = checking(
                self._shape.workers,
                has_order=order is not None,
                dispatchers=self._shape.dispatchers,
            )
        return TableServer(office, self._mode, self._seed, threads=threads, order=order, **chosen)

    def _run_dispatcher(self, rank: int) -> None:
        office = self._office(Role.DISPATCHER, f"dispatcher{rank}", rank)
        failure: str | None = None
        try:
            dispatcher = Dispatcher(
                office,
                self._mode,
                self._seed,
                self._dispatcher,
                threads=1,
                may_move=self._replicas > 0,
            )
            if self._dispatcher_app is not None:
                self._dispatcher_app(office)
            with dispatcher:
                office.start()
                office.serve()
        except ClusterStoppedError:  # another node has failed, not this one
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            office.finalize(failure)

    def _worker(self, rank: int) -> RemoteWorker:
        office = self._office(Role.WORKER, f"worker{rank}", rank)
        piece = PIECE if self._run.is_fixed else None
        return RemoteWorker(
            office,
            self._mode,
            self._seed,
            piece=piece,
            may_move=self._replicas > 0,
            compression=self._compression,
        )

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
        return f"<LocalNodes servers={self._shape.servers} workers={self._shape.workers}>"
