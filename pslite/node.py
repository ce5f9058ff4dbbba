"""Running one node of a cluster in this process: scheduler, server or dispatcher.

The scheduler prints `pslite: scheduler listening on ADDRESS` as its first line, so that who
started it on port 0 learns the port.
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kv.leases.desk import LeaseDesk
from postoffice.config import join_address
from postoffice.errors import ClusterStoppedError
from postoffice.etcd import Etcd, EtcdJournal, scheduler_address
from postoffice.head import SchedulerOffice
from postoffice.journal import FileJournal, Journal
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from pslite.chaos.network import Chaos
from pslite.environ import NodeSettings
from pslite.heap import keep_freed_memory
from pslite.kept import note_place
from pslite.lifecycle import CONSEQUENCE
from pslite.loader import load_function
from pslite.obituaries import LOOK, ObituaryReader
from pslite.repeating import check_repeatable, why_fixed
from pslite.vans import make_van, patience
from van.addresses import place_of
from van.errors import ConfigError

if TYPE_CHECKING:
    from kv.dispatcher.dispatcher import Dispatcher

log = logging.getLogger(__name__)

SWITCH = 5e-4  # seconds a server's thread may keep the interpreter from the others
LAST_WORDS = 2.0  # seconds for the scheduler to take note of a failure
LISTENING = "pslite: scheduler listening on "


def set_up_logging(settings: NodeSettings) -> None:
    """Log to stderr: warnings, with verbosity 1 connections, with 2 every message."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(settings.verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if settings.verbose:  # else the program's own settings count, if it has any
        for package in ("van", "postoffice", "kv", "pslite"):
            logging.getLogger(package).setLevel(level)


def shape_of(settings: NodeSettings) -> ClusterShape:
    """The cluster's shape as the postoffice wants it."""
    cluster = settings.job.cluster
    return ClusterShape(
        servers=cluster.servers,
        workers=cluster.workers,
        dispatchers=cluster.dispatchers,
        scheduler=_scheduler_of(settings),
        start_timeout=cluster.start_timeout,
        heartbeat_interval=cluster.heartbeat_interval,
        heartbeat_timeout=cluster.heartbeat_timeout,
        scheduler_timeout=cluster.scheduler_timeout,
        failures=cluster.failures,
    )


def _scheduler_of(settings: NodeSettings) -> str:
    """Where the scheduler listens: as etcd says, where a standby may have taken over."""
    cluster = settings.job.cluster
    if settings.role is not Role.SCHEDULER and cluster.etcd:
        found = scheduler_address(Etcd(cluster.etcd), settings.job.run.name)
        return found or settings.scheduler
    return settings.scheduler


def make_office(settings: NodeSettings) -> Postoffice:
    """This process' server or worker node, not yet started."""
    # A worker's thread computes most of the time, so another must see to its messages meanwhile.
    check_repeatable(settings.job)
    van = make_van(settings, background=settings.role is Role.WORKER)
    cluster = settings.job.cluster
    chaos = chaos_of(settings)
    if chaos is not None:
        van = chaos.around(van)
    place = join_address(cluster.advertised_host, 0)
    office = Postoffice(
        settings.role,
        van,
        shape_of(settings),
        bind=f"{cluster.transport}://{place}",
        rank=settings.rank,
        nonce=settings.life,
    )
    if settings.job.van.resend == "on":
        timeout = settings.job.van.resend_timeout
        office.resend_with(patience(timeout, settings.job.simulate.imposed))
    if chaos is not None:
        chaos.watch(office)
    return office


def chaos_of(settings: NodeSettings) -> Chaos | None:
    """The faults that this node is to meet, if any."""
    config = settings.job.chaos
    return Chaos(config, settings.run_dir, str(settings)) if config.plan else None


def run_node(settings: NodeSettings) -> None:
    """Serve as the scheduler, a server or a dispatcher until the cluster ends.

    Raises:
        ConfigError: `[server] app` cannot be loaded, or a role that does not serve.
        ClusterStartError, RegistrationError, AddressError: the cluster does not come together.
        ClusterStoppedError: a node failed; the text says which.
    """
    set_up_logging(settings)
    if settings.role is Role.SCHEDULER:
        _run_scheduler(settings)
    elif settings.role is Role.SERVER:
        _run_server(settings)
    elif settings.role is Role.DISPATCHER:
        _run_dispatcher(settings)
    else:
        raise ConfigError(
            f"a {settings.role} is no node that serves; a worker runs its own program, "
            f"which calls pslite.connect()",
            key="DMLC_ROLE",
        )


def _run_scheduler(settings: NodeSettings) -> None:
    from kv.dispatcher.balance_app import BalanceApp
    from kv.placement_app import PlacementApp
    from pslite.ordering import make_dealing, whole_at_signal

    check_repeatable(settings.job)
    van = make_van(settings, background=False)
    chaos = chaos_of(settings)
    if chaos is not None:
        van = chaos.around(van)
    office = SchedulerOffice(van, shape_of(settings), journal=_journal(settings))
    dealing, why = make_dealing(settings.job.run, settings.job.cluster.workers), ""
    desk = LeaseDesk(office, settings.run_dir, dealing=dealing)
    office.apps.append(desk)
    PlacementApp(office, settings.job.cluster.replicas, why_fixed(settings.job))
    if settings.job.balance.is_used:
        BalanceApp(office, settings.job.balance, settings.run_dir, settings.begins)
    if chaos is not None:
        chaos.watch(office)
    sync = settings.job.param_sync
    for key in sync.unused:  # said by one node of the job
        log.warning("[param_sync] %s is set, but mode %s does not use it", key, sync.mode)
    for fault in settings.job.chaos.parsed.processes if not settings.hears_launcher else ():
        log.warning("[chaos] plan: %s does not happen: only pslite local does that", fault)
    try:
        with whole_at_signal(None if dealing is None else dealing.close):
            print(f"{LISTENING}{place_of(office.listen())}", flush=True)
            if settings.hears_launcher:
                lost = partial(office.stop, "the launcher of this job has ended")
                office.van.every(LOOK, ObituaryReader(office.process_ended, lost).turn)
            office.start()
            office.serve()
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        raise
    finally:
        if dealing is not None:
            dealing.close(why)
        if chaos is not None:
            chaos.end()
        office.finalize()
        desk.close()


def _journal(settings: NodeSettings) -> Journal | None:
    """What the scheduler keeps its books in; in etcd, when this one may lead."""
    cluster = settings.job.cluster
    if cluster.etcd:
        journal = EtcdJournal(Etcd(cluster.etcd), settings.job.run.name)
        log.info("the scheduler waits until it may lead")
        journal.campaign()
        if settings.begins:
            journal.clear()
        return journal
    return FileJournal(cluster.journal) if cluster.journal else None


def start_app(reference: str, office: Postoffice) -> None:
    """Call `[server] app` with a server's postoffice, which has not started.

    Raises:
        ConfigError: it cannot be loaded or called, or wants to end the process.
    """
    function = load_function(reference, section="server", key="app")
    try:
        inspect.signature(function).bind(office)
    except (TypeError, ValueError) as error:
        problem = f"{reference} is called with the server's postoffice: {error}"
        raise ConfigError(problem, section="server", key="app") from None
    try:
        function(office)
    except SystemExit as error:
        problem = f"{reference} wants to end the process (SystemExit: {error.code})"
        raise ConfigError(problem, section="server", key="app") from None


def _run_server(settings: NodeSettings) -> None:
    from kv.checkpoint.server import CheckpointServer
    from kv.dispatcher.busy import BusyLink
    from kv.executor import threads_of
    from kv.replay.rules import checking
    from kv.replication.replicator import Replicator
    from kv.table_server import TableServer  # numba: the scheduler does without
    from pslite.ordering import order_of, whole_at_signal

    job = settings.job
    with _serving(settings) as office:
        order, chosen = order_of(settings), dict[str, Any]()
        if job.run.is_fixed:
            chosen["check"] = checking(
                job.cluster.workers,
                has_order=order is not None,
                dispatchers=job.cluster.dispatchers,
            )
        threads = None if order is None else order.threads
        tables = TableServer(
            office,
            job.param_sync.consistency,
            job.run.seed,
            job.server.key_cache,
            threads_of(job.server.threads) if threads is None else threads,
            job.server.spill_dir,
            job.param_sync.max_staleness,
            order,
            **chosen,
        )
        if job.balance.when_busy:
            unpacker = tables.unpacker
            unpacker.compress_when_busy(job.balance.when_busy)
            BusyLink(office, job.balance, unpacker.switch, unpacker.saved)
        run = settings.run_dir
        CheckpointServer(
            office,
            tables.engine,
            owned=lambda: tables.desk.slots.owner == office.rank,
            on_place=lambda url: note_place(run, url) if run is not None else None,
        )
        Replicator(tables)
        if job.server.app:
            start_app(job.server.app, office)
        with whole_at_signal(None if order is None else order.end), tables:
            office.start()
            office.serve()


def _run_dispatcher(settings: NodeSettings) -> None:
    from kv.dispatcher.dispatcher import Dispatcher

    job = settings.job
    with _serving(settings) as office:
        dispatcher = Dispatcher(
            office,
            job.param_sync.consistency,
            job.run.seed,
            job.dispatcher,
            job.dispatcher.parallel_aggregators,
            job.server.key_cache,
            job.param_sync.key_deltas,
            job.param_sync.max_staleness,
            job.param_sync.retry,
            may_move=job.cluster.replicas > 0,
            balance=job.balance,
        )
        if settings.run_dir is not None:
            office.before_goodbye.append(lambda: _note_facts(dispatcher, settings))
        with dispatcher:
            office.start()
            office.serve()


def _note_facts(dispatcher: Dispatcher, settings: NodeSettings) -> None:
    """Write into the run folder what a dispatcher has done, for who looks when the job is over."""
    if settings.run_dir is not None:
        path = settings.run_dir / f"dispatcher{dispatcher.office.rank}.json"
        try:
            path.write_text(json.dumps(dispatcher.facts(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error.strerror)


@contextmanager
def _serving(settings: NodeSettings) -> Iterator[Postoffice]:
    """The node of a process that answers others, until the cluster ends."""
    sys.setswitchinterval(SWITCH)
    keep_freed_memory()
    office = make_office(settings)
    failure: str | None = None
    try:
        yield office
    except ClusterStoppedError as error:
        log.info("%s ends: %s", office.name, error)
        raise SystemExit(CONSEQUENCE) from None  # who failed has said so
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    except KeyboardInterrupt:
        failure = "interrupted (Ctrl-C)"
        raise
    finally:
        # Ctrl-C in a terminal goes to all its processes, so the scheduler may be gone already.
        office.finalize(failure, None if failure is None else LAST_WORDS)
