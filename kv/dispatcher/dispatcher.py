"""The dispatcher of a cluster: takes what its workers ask, gives servers fewer and merged pushes.

    with Dispatcher(office, ...) as dispatcher: office.serve()

What workers ask is taken, by command, by the modules beside it (`kv.dispatcher` lists them); here
is the node: its life, what it hears of others, and what it tells. One lock covers all of it for the
time of a decision; rows are added up without it, by the executor's threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from kv.consistency.progress import Progress
from kv.consistency.settings import Consistency
from kv.delivery.repeats import Repeats
from kv.dispatcher.answering import Answers
from kv.dispatcher.assignment import workers_of
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.balancing import Balancer
from kv.dispatcher.buffers import Pairs
from kv.dispatcher.busy import BusyLink
from kv.dispatcher.cache import RowCache
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.defining import Defined, Defining
from kv.dispatcher.ends import Ends
from kv.dispatcher.hotkeys import HotKeys
from kv.dispatcher.joining import Joining
from kv.dispatcher.known_tables import KnownTable, KnownTables
from kv.dispatcher.measuring import Measures
from kv.dispatcher.members import Members
from kv.dispatcher.merging import Merging
from kv.dispatcher.packing import Packing
from kv.dispatcher.pulls import Pulls
from kv.dispatcher.pushes import Pushes
from kv.dispatcher.reading import Reader
from kv.dispatcher.relaying import Relay
from kv.dispatcher.sending import Sending
from kv.dispatcher.upstream import Servers
from kv.executor import Executor
from kv.keylists.kept import KeptLists
from kv.retrying import Retry
from kv.spec import TableSpec
from kv.table_protocol import WITH_KEYS, WITH_VALUES, Command
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import Postoffice
from postoffice.view import ClusterView
from van.message import Message, Meta

_VALUED = frozenset(map(int, WITH_VALUES))
_OUTRIGHT = (Command.ASSIGN, Command.DELETE)


class Dispatcher:
    """One dispatcher node.

    Args:
        office: the node, not yet started.
        mode, seed: the job's, of tables that name none.
        config: its settings.
        threads: that add up pushes; 0 does so in the thread that drives the van.
        key_cache: bytes of key lists remembered for each worker.
        key_deltas, max_staleness, retry: see `upstream.Servers`.
        may_move: rows may get another owner at any time.
        balance: when it has too much to do.

    Attributes:
        tables: those that its workers have defined.
        servers: asked and told in the workers' place.
        failure: what ended a thread of the executor; None: nothing.
        counts: of pushes, merges, rows and pulls, see `facts`.
        flushes: buffers that have left, by cause.
        steps: ends of workers' steps that servers have not heard of.
        balancer: sends workers past this dispatcher; None where that is not wanted.
    """

    def __init__(
        self,
        office: Postoffice,
        mode: str | Consistency = "async",
        seed: int = 1,
        config: DispatcherConfig = DispatcherConfig(),
        threads: int = 0,
        key_cache: int = 64 << 20,
        key_deltas: str = "auto",
        max_staleness: int | None = None,
        retry: Retry = Retry(),
        may_move: bool = False,
        balance: BalanceConfig = BalanceConfig(),
    ) -> None:
        self.office, self.config = office, config
        self.tables = KnownTables()
        self._lock = threading.RLock()
        self.servers = Servers(
            office,
            self._lock,
            self._receive,
            key_cache,
            key_deltas,
            max_staleness,
            retry,
            seed,
            config.cache_size if config.cache_refresh else 0,
        )
        self.executor = Executor(threads, self._break, "pslite dispatcher")
        self.failure: BaseException | None = None
        self.counts: Counter[str] = Counter()
        self._repeats = Repeats(office)
        self._lists = KeptLists(key_cache)
        self._pairs = Pairs()
        self.measures = Measures(self._pairs, self.tables, office.van.now)
        self.measures.offer(office.metrics)
        self._members = members = Members(Progress(office.shape.workers))
        self.balancer: Balancer | None = None
        if balance.overflow:
            self.balancer = Balancer(office, balance, self.measures, lambda: members.active)
        self._balance_every = balance.check_interval
        self.packing = packing = Packing(self.servers.encoders)
        if balance.when_busy:
            packing.compress_when_busy(balance.when_busy)
            decisions = None if self.balancer is None else self.balancer.decisions
            BusyLink(office, balance, packing.switch, packing.saved, decisions)
        define = Defining(self.tables, packing, self.executor, self._lock).define
        self._relay = Relay(self.servers, self.tables, Consistency.of(mode), seed, define)
        self._answers = Answers(office, self._lock, self._repeats, self._note_answer)
        cache = RowCache(config, self.servers.versions, 2 * office.shape.workers)
        self._reader = Reader(self.servers, cache, self.counts, lambda: office.van.now())
        hot = HotKeys(config.hot_uses, seed) if config.hot_uses else None
        self._handlers = self._parts(define, hot, may_move)
        self.flushes, self._steps = self._merging.flushes, self._ends.steps
        self._has_begun = False
        office.on_view.append(self._see)
        office.queries.offer("dispatcher", self.facts)
        office.statuses["kept_back"] = lambda: list(self.servers.encoders.kept_back())

    def _parts(
        self, define: Callable[[TableSpec, Defined], None], hot: HotKeys | None, may_move: bool
    ) -> dict[int, Callable[[Message], None]]:
        """Who takes what workers ask, by command."""
        office, lock, config, servers = self.office, self._lock, self.config, self.servers
        tables, members, counts, packing = self.tables, self._members, self.counts, self.packing
        pairs, answers = self._pairs, self._answers
        pulls = Pulls(tables, members.progress, self._reader, packing, answers, counts)
        self._sending = sending = Sending(
            office, lock, servers, tables, pairs, pulls, answers, counts
        )
        self._merging = merging = Merging(
            office, lock, config, self.executor, pairs, members, self.measures, sending, answers
        )
        if self.balancer is not None:
            merging.flushing.leaving = self.balancer.leaving
        self._ends = ends = Ends(
            servers, self._repeats, members, pairs, merging, sending, packing, answers, may_move
        )
        merging.on_sent = ends.say
        sending.on_answer += [merging.look_at_all, ends.say]
        pushes = Pushes(office, servers, tables, pairs, members, merging, counts, hot, may_move)
        joining = Joining(
            office, lock, members, pulls, merging, ends, self.balancer, define, answers
        )
        return {
            Command.PUSH: pushes.take,
            Command.PUSH_PULL: pushes.take,
            Command.PULL: pulls.take,
            Command.STEP: ends.step,
            Command.FINISH: ends.finish,
            Command.BEGIN: ends.begin_again,
            Command.JOIN: joining.join,
            Command.LEAVE: joining.leave,
        }

    # -- life -------------------------------------------------------------------

    def close(self, *, drain: bool = True) -> None:
        """End the threads."""
        self.executor.close(drain=drain and self.failure is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=False)
        if self.failure is not None:
            raise self.failure from None

    def _break(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.office.stop(f"a thread of this dispatcher ended: {type(error).__name__}: {error}")

    @property
    def workers(self) -> list[int]:
        """The ranks of this dispatcher's workers."""
        return sorted(self._members.ranks)

    def _begin(self, is_again: bool) -> None:
        """The node has a rank."""
        self._has_begun = True
        shape = self.office.shape
        own = workers_of(self.office.rank, shape.workers, shape.dispatchers)
        self._members.begin(own, is_again)
        self.office.van.every(self.config.flush_interval / 2, self._tick)
        if self.balancer is not None:
            self.office.van.every(self._balance_every, self._look_at_load)

    def _see(self, old: ClusterView, new: ClusterView) -> None:
        with self._lock:
            if not self._has_begun:
                self._begin(is_again=self.office.node_id in new.fenced)
            self.servers.see(new)
            if self.balancer is not None:
                self.balancer.see()
            for server in self.servers.living():
                self.office.reach(server)  # only this thread may make connections
            for node in sorted(new.dead - old.dead | new.gone - old.gone):
                role, rank = role_and_rank(node)
                if role is Role.WORKER:
                    self._lists.forget(node)
                    self.packing.forget(node)
                    if node in new.gone or self.office.shape.failures.on_worker != "restart":
                        self._merging.lose(rank)

    def _look_at_load(self) -> None:
        with self._lock:
            assert self.balancer is not None
            self.balancer.look()
            self._merging.look_at_all()

    def _tick(self) -> None:
        with self._lock:
            self._merging.look_at_all()

    # -- requests of workers -------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        meta = message.meta
        with self._lock:
            if not self._repeats.is_new(meta):
                return
            try:
                if meta.cmd in WITH_KEYS:
                    self._complete(message)
                handler = self._handlers.get(meta.cmd)
                if handler is not None:
                    handler(message)
                else:
                    self._relay.take(message, self._answers.answer, self._answers.fail)
            except Exception as error:  # of a request that nobody can work on
                self._answers.refuse(message, error)
            if self._steps.early:
                self._ends.take_early()

    def _complete(self, message: Message) -> None:
        """Bring named and coded key lists and compressed values into their places."""
        tables = self.tables.of(message.meta)
        dense = [table.is_dense for table in tables]
        self._lists.complete(message, dense, message.meta.cmd in _VALUED)
        self.packing.unpack(message, tables)

    def _note_answer(self, meta: Meta) -> None:
        """A request is answered: rows that were set outright are not here as they are now."""
        if meta.cmd in _OUTRIGHT:
            for table in self.tables.of(meta):
                self._reader.cache.forget(table)
                self.servers.copies.drop(table)

    # -- telling -------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What somebody outside the cluster is told."""
        with self._lock:
            return {
                "workers": self.workers,
                "spilled": [] if self.balancer is None else self.balancer.spilled,
                "queue": self._pairs.waiting,
                "latency": self.measures.mean,
                "under_way": self._sending.under_way,
                "steps": len(self._steps),
                "flushes": dict(self.flushes),
                "tables": [self._facts_of(table) for table in self.tables.all()],
                **{name: self.counts[name] for name in _COUNTED},
                **{name: self.servers.counts[name] for name in _REFRESHED},
            }

    def _facts_of(self, table: KnownTable) -> dict[str, Any]:
        found: dict[str, Any] = {"name": table.spec.name}
        found |= {"cached_nbytes": self._reader.cache.nbytes(table)}
        found |= self.servers.copies.facts(table)
        if table.spec.compression is not None:
            found["compression"] = self.packing.facts(table)
        return found


_COUNTED = (
    "pushes",
    "merges",
    "rows_in",
    "rows_out",
    "pulls",
    "cache_hits",
    "cache_misses",
    "rows_ahead",
)
_REFRESHED = ("refreshed_rows", "unchanged_rows", "refresh_bytes_saved")
