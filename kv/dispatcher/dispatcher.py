"""The dispatcher of a cluster: takes what its workers ask, gives servers fewer and merged pushes.

    with Dispatcher(office, ...) as dispatcher: office.serve()

What it decides is in the modules beside it; here messages and answers meet. One lock covers all of
it for the time of a decision; rows are added up without it, by the executor's threads.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from kv.consistency.progress import Progress
from kv.consistency.settings import Consistency
from kv.delivery.repeats import Repeats
from kv.dispatcher.aggregating import Part, aggregating, in_order, tables_of
from kv.dispatcher.answering import Answers
from kv.dispatcher.assignment import workers_of
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.balancing import Balancer
from kv.dispatcher.buffers import Buffer, Pair, Pairs, Place
from kv.dispatcher.busy import BusyLink
from kv.dispatcher.cache import RowCache
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.flushing import Cause, Flushing
from kv.dispatcher.hotkeys import HotKeys, masks_of, parted
from kv.dispatcher.known_tables import KnownTable, KnownTables
from kv.dispatcher.measuring import Measures
from kv.dispatcher.members import Members
from kv.dispatcher.packing import Packing
from kv.dispatcher.reading import Reader
from kv.dispatcher.receiving import Keys, Shard, Values, received
from kv.dispatcher.refusing import Error
from kv.dispatcher.relaying import Relay
from kv.dispatcher.resolving import resolve
from kv.dispatcher.restarting import Restarts
from kv.dispatcher.stepping import Steps, said_to_all
from kv.dispatcher.upstream import Servers
from kv.dispatcher.worker_pull import WorkerPull
from kv.executor import Executor, Turns
from kv.keylists.kept import KeptLists
from kv.retrying import Retry
from kv.spec import TableSpec
from kv.table_protocol import WITH_KEYS, WITH_VALUES, Command
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import Postoffice
from postoffice.view import ClusterView
from van.errors import PsliteError
from van.message import Clock, Flag, Message, Meta, answer_to

_VALUED = frozenset(map(int, WITH_VALUES))
_ANY_STEP = 1 << 62
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
    """

    def __init__(
        self,
        office: Postoffice,
        mode: str | Consistency = "async",
        seed: int = 1,
        config: DispatcherConfig = DispatcherConfig(),  # noqa: B008 (it is frozen)
        threads: int = 0,
        key_cache: int = 64 << 20,
        key_deltas: str = "auto",
        max_staleness: int | None = None,
        retry: Retry = Retry(),  # noqa: B008
        may_move: bool = False,
        balance: BalanceConfig = BalanceConfig(),  # noqa: B008
    ) -> None:
        self.office, self.config, self._may_move = office, config, may_move
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
        self.flushes: Counter[str] = Counter()
        self._repeats = Repeats(office)
        self._lists = KeptLists(key_cache)
        self._pairs, self._flushing, self._steps = Pairs(), Flushing(config), Steps()
        self.measures = Measures(self._pairs, self.tables, office.van.now)
        self.measures.offer(office.metrics)
        self._progress = Progress(office.shape.workers)
        self._members = Members(self._progress)
        self.balancer: Balancer | None = None
        if balance.overflow:
            active = lambda: self._members.active  # noqa: E731
            self.balancer = Balancer(office, balance, self.measures, active)
            self._flushing.leaving = self.balancer.leaving
        self._balance_every = balance.check_interval
        self.packing = packing = Packing(self.servers.encoders)
        if balance.when_busy:
            packing.compress_when_busy(balance.when_busy)
            decisions = None if self.balancer is None else self.balancer.decisions
            BusyLink(office, balance, packing.switch, packing.saved, decisions)
        of_job = Consistency.of(mode), seed
        self._relay = Relay(self.servers, self.tables, *of_job, self._define)
        self._answers = Answers(office, self._lock, self._repeats, self._note_answer)
        self._hot = HotKeys(config.hot_uses, seed) if config.hot_uses else None
        self._pushed_at: dict[int, float] = {}  # by rank, when the last push was answered
        cache = RowCache(config, self.servers.versions, 2 * office.shape.workers)
        self._reader = Reader(self.servers, cache, self.counts, lambda: office.van.now())
        self._under_way = 0
        self._with_servers: Counter[int] = Counter()  # by rank, shards that have no answer
        say = self._answers.answer, self._answers.fail
        self._restarts = Restarts(self.servers, self._progress, self._pairs, self._steps, *say)
        self._handlers: dict[int, Callable[[Message], None]] = {
            Command.PUSH: self._push,
            Command.PUSH_PULL: self._push,
            Command.PULL: self._pull,
            Command.STEP: self._step,
            Command.FINISH: self._finish,
            Command.BEGIN: self._begin_again,
            Command.JOIN: self._join,
            Command.LEAVE: self._leave,
        }
        self._has_begun = False
        office.on_view.append(self._see)
        office.queries.offer("dispatcher", self.facts)
        office.statuses["kept_back"] = lambda: list(self.servers.encoders.kept_back())

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
            self.servers.see(old, new)
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
                        self._lose(rank)

    def _lose(self, rank: int) -> None:
        """Nobody waits for a worker any more; what it has pushed in its step is not merged."""
        if self._members.lose(rank):
            for pair in self._pairs:
                if rank in pair.filling.workers:
                    pair.in_pieces |= pair.round is not None
            self._look_at_all()

    def _look_at_load(self) -> None:
        with self._lock:
            assert self.balancer is not None
            self.balancer.look()
            self._look_at_all()

    def _tick(self) -> None:
        with self._lock:
            self._look_at_all()

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
                for step, rank in self._steps.come(self._has_come):
                    self._take_step(step, rank)

    def _complete(self, message: Message) -> None:
        """Bring named and coded key lists and compressed values into their places."""
        tables = self.tables.of(message.meta)
        dense = [table.is_dense for table in tables]
        self._lists.complete(message, dense, message.meta.cmd in _VALUED)
        self.packing.unpack(message, tables)

    def _define(self, spec: TableSpec, defined: Callable[[BaseException | None], None]) -> None:
        """Know a table that servers have taken."""
        if spec.compression is None:
            self.tables.add(spec)
            defined(None)
        else:
            self.executor.submit(self._defining(spec, defined))

    def _defining(
        self, spec: TableSpec, defined: Callable[[BaseException | None], None]
    ) -> Turns[None]:
        """The same of a table with compression, whose kernels have to be loaded."""
        try:
            encoder = self.packing.define(spec)
        except Exception as error:  # the worker hears so
            defined(error)
            return
        with self._lock:
            self.tables.add(spec, encoder)
        defined(None)
        return
        yield

    def _push(self, message: Message) -> None:
        tables = self.tables.of(message.meta)
        shard = received(message, tables)
        is_merged = all(table.may_merge for table in tables)
        has_rounds = any(table.has_rounds for table in tables)
        self.counts["pushes"] += 1
        self.counts["rows_in"] += shard.rows
        place: Place = (shard.tables, None, False)
        if has_rounds and is_merged:
            place = ((), shard.step, False)
        elif is_merged and self._hot is not None and self._stays_put:
            ahead, shard = parted(shard, self._hot)
            if ahead is not None:
                self.counts["rows_ahead"] += ahead.rows
                self._fill((ahead.tables, None, True), ahead, True)
        self._fill(place, shard, is_merged)

    def _fill(self, place: Place, shard: Shard, is_merged: bool) -> None:
        pair = self._pairs.of(place, is_merged)
        if pair.round is not None and not self._members.is_whole(pair.round):
            pair.in_pieces = True
        pair.filling.add(shard, self.office.van.now())
        self._look_at(pair)

    @property
    def _stays_put(self) -> bool:
        """Whether rows keep their owners: which of them came ahead is known to these alone."""
        return not self._may_move and not self.servers.slots.version

    # -- buffers that leave -------------------------------------------------------------------

    def _look_at_all(self) -> None:
        for pair in self._pairs:
            self._look_at(pair)

    def _look_at(self, pair: Pair) -> None:
        """Send a buffer on if it is time."""
        while pair.leaving is None and self._under_way < self.config.max_under_way:
            slowest, waiting = self._progress.slowest(), self._pairs.waiting
            now = self.office.van.now()
            cause = self._flushing.cause(pair, now, self._members.active, slowest, waiting)
            if cause is None:
                return
            self.flushes[cause] += 1
            buffer = pair.swap(now)
            shards = in_order(buffer.shards)
            pair.in_pieces |= pair.round is not None and cause is not Cause.ROUND
            self._under_way += 1
            if not pair.is_merged or pair.in_pieces:
                self._under_way += len(shards) - 1
                for shard in shards:
                    self._send(shard.parts, [shard])
                self._has_left(pair)
            else:
                self.executor.submit(self._merging(pair, buffer, shards))

    def _merging(self, pair: Pair, buffer: Buffer, shards: Sequence[Shard]) -> Turns[None]:
        config = self.config
        try:
            parts = yield from aggregating(
                shards, config.parallel_aggregators, config.max_shard_size
            )
        except PsliteError as error:
            with self._lock:
                self._under_way -= 1
                for shard in shards:
                    self._answers.refuse(shard.message, error)
                self._has_left(pair)
            return
        with self._lock:
            self._send(parts, shards)
            self.measures.summed(buffer)
            self._has_left(pair)
            self._look_at(pair)

    def _send(self, parts: Sequence[Part], shards: Sequence[Shard]) -> None:
        tables = self.tables.named(tables_of(shards))
        self._with_servers.update(shard.rank for shard in shards)
        self.counts["merges"] += 1
        self.counts["rows_out"] += sum(len(values) for _, values in parts)

        def answered(error: BaseException | None, said: Error | None) -> None:
            with self._lock:
                self._under_way -= 1
                self._with_servers.subtract(shard.rank for shard in shards)
                for shard in shards:
                    if shard.cold is None:
                        self._pushed(shard, error, said)
                    elif error is None:
                        shard.cold.waits -= 1
                    else:
                        self._drop(shard.cold, error, said)
                self._look_at_all()
                self._say_steps()

        try:
            masks = None
            if shards[0].cold is not None:
                masks = [
                    masks_of(keys, [_keys_in(shard, table.id) for shard in shards])
                    for table, (keys, _) in zip(tables, parts, strict=True)
                    if keys is not None
                ]
            self.servers.push(tables, parts, resolve(shards), answered, masks)
        except PsliteError as error:  # such as numbers that are not finite
            answered(error, None)

    def _drop(self, cold: Shard, error: BaseException, said: Error | None) -> None:
        """The hot rows of a push were refused, and so is the rest."""
        for pair in self._pairs:
            if cold in pair.filling.shards:
                pair.filling.shards.remove(cold)
        self._pushed(cold, error, said and said._replace(failed=b""))

    def _has_left(self, pair: Pair) -> None:
        """A buffer has been sent: another may leave, and ends of steps may follow it."""
        pair.leaving = None
        self._pairs.drop_rounds(self._progress.slowest())
        self._say_steps()

    def _pushed(self, shard: Shard, error: BaseException | None, said: Error | None) -> None:
        """All servers have answered a worker's push."""
        message = shard.message
        self._pushed_at[shard.rank] = self.office.van.now()
        if error is not None:
            self._answers.fail(message, error, said)
        elif message.meta.cmd == Command.PUSH_PULL:
            # Of the message: hot rows that went ahead are in no part of this shard.
            parts = received(message, self.tables.of(message.meta)).parts
            self._ask_rows(message, [keys for keys, _ in parts], True)
        else:
            clocks = self.servers.versions.clocks(shard.tables)
            self._answers.answer(message, Message(answer_to(message.meta, clocks=clocks)))

    # -- pulls -------------------------------------------------------------------

    def _pull(self, message: Message) -> None:
        tables = self.tables.of(message.meta)
        arrays = iter(message.arrays)
        keys = [None if table.is_dense else next(arrays) for table in tables]
        self._ask_rows(message, keys, bool(message.meta.body["create"]))

    def _ask_rows(self, message: Message, keys: Sequence[Any], create: bool) -> None:
        meta = message.meta
        tables = self.tables.of(meta)
        step = max((step for _, step, _ in meta.clocks), default=0)
        rank = role_and_rank(meta.sender)[1]
        self.counts["pulls"] += 1

        def done(
            error: BaseException | None,
            said: Error | None,
            values: list[Values],
            clocks: tuple[Clock, ...],
        ) -> None:
            if error is not None:
                self._answers.fail(message, error, said)
            else:
                answer = Message(answer_to(meta, clocks=clocks), list(values))
                self.packing.pack(answer, tables)
                self._answers.answer(message, answer)

        # Where nobody waits for a worker, rounds close without it.
        may_share = meta.cmd == Command.PULL and not self._progress.finished[rank]
        pushed = self._pushed_at.get(rank, -math.inf)
        pull = WorkerPull(tables, keys, rank, step, create, meta.priority)
        self._reader.read(pull, done, may_share, pushed)

    # -- steps -------------------------------------------------------------------

    def _step(self, message: Message) -> None:
        rank = role_and_rank(message.meta.sender)[1]
        if self._has_come(message):
            self._take_step(message, rank)
        else:
            self._steps.early.append((message, rank))

    def _has_come(self, message: Message) -> bool:
        """Whether all pushes that belong before the end of a step are here, or done."""
        stream = self._repeats.windows.find(message.meta)
        after = (message.meta.body or {}).get("after", ())
        return stream is None or all(stream.has_come(int(ts), int(piece)) for ts, piece in after)

    def _take_step(self, message: Message, rank: int) -> None:
        step = int(message.meta.body["clock"])
        self._progress.step(rank, step)
        self._steps.wait(message, rank, step)
        for pair in self._pairs:
            if pair.round is not None:
                self._look_at(pair)
        self._pairs.drop_rounds(self._progress.slowest())
        self._say_steps()

    def _say_steps(self) -> None:
        """Tell servers of the ends of steps whose pushes have been sent, and of new beginnings."""
        self._say_ends()
        self._restarts.say(self._holds)
        for message in self._members.gone(self._holds_of):
            self._answers.answer(message, Message(answer_to(message.meta)))

    def _say_ends(self) -> None:
        ready = self._steps.ready(self._holds)
        if not ready:
            return
        before = self.servers.pushes_under_way
        steps = [[rank, step, said.meta.body.get("position", -1)] for said, rank, step in ready]

        def body_for(server: int) -> dict[str, Any]:
            after = [[timestamp, piece] for timestamp, node, piece in before if node == server]
            return {"steps": steps, "after": after} if after else {"steps": steps}

        answers: list[Message] = []

        def answered(error: BaseException | None, said: Error | None) -> None:
            self._steps.said(ready)
            for message, _, _ in ready:
                self._answers.done(message, error, said, said_to_all(answers))
            self._say_steps()

        self.servers.tell(
            Command.STEP,
            Flag.PUSH | Flag.EVERYWHERE,
            self.servers.living(),
            (),
            body_for,
            answered,
            answers.extend,
        )

    def _begin_again(self, message: Message) -> None:
        self._restarts.take(message)
        self._look_at_all()
        self._say_steps()

    def _holds(self, rank: int, step: int) -> bool:
        """Whether something of a worker up to a step is not where servers must have it."""
        if self._pairs.holds(rank, step):
            return True
        # Where rows may move another server may become the owner of a push's rows, and would not
        # know that it is to come: all must have it before any hears of the step's end.
        return self._may_move and self._with_servers[rank] > 0

    def _holds_of(self, rank: int) -> bool:
        """Whether anything of a worker is here that servers have not answered."""
        is_with_servers = self._with_servers[rank] > 0 or self._steps.is_saying(rank)
        return is_with_servers or self._pairs.holds(rank, _ANY_STEP)

    def _finish(self, message: Message) -> None:
        rank = role_and_rank(message.meta.sender)[1]
        rests = bool(message.meta.body and message.meta.body.get("rests"))
        self._lose(rank) if rests else self._lose_finished(rank)
        if not rests:
            self.packing.forget(message.meta.sender)
        body = {"rank": rank, "rests": True} if rests else {"rank": rank}

        def answered(error: BaseException | None, said: Error | None) -> None:
            self._answers.done(message, error, said)

        self.servers.tell(
            Command.FINISH, message.meta.flags, self.servers.living(), (), lambda _: body, answered
        )

    def _lose_finished(self, rank: int) -> None:
        if self._progress.finish(rank):
            self._look_at_all()

    # -- workers that come and go (`kv.dispatcher.changing`) ------------------------------------

    def _join(self, message: Message) -> None:
        """A worker comes, its pushes answered: it gets no row that was asked for before."""
        specs = iter([TableSpec.from_dict(packed) for packed in message.meta.body["tables"]])

        def go_on(error: BaseException | None) -> None:
            with self._lock:
                spec = next(specs, None)
                if error is not None:
                    self._answers.refuse(message, error)
                elif spec is not None:
                    self._define(spec, go_on)
                else:
                    self._joined(message)

        go_on(None)

    def _joined(self, message: Message) -> None:
        """All tables of a worker that comes are known."""
        rank, body = role_and_rank(message.meta.sender)[1], message.meta.body
        step, position = int(body["step"]), int(body["position"])
        was_elsewhere = self._members.come(rank, step, position, bool(body["rests"]))
        self._pushed_at[rank] = self.office.van.now()
        if self.balancer is not None:
            self.balancer.joined(rank, was_elsewhere)
        self._answers.answer(message, Message(answer_to(message.meta)))

    def _leave(self, message: Message) -> None:
        """A worker goes: nobody here waits for it. It is answered behind all of its pushes; only a
        former life of it may have left some."""
        meta = message.meta
        rank = role_and_rank(meta.sender)[1]
        self._steps.forget_former(meta.sender, meta.incarnation)
        self._members.go(message, rank)
        if self.balancer is not None:
            self.balancer.left(rank)
        self._lose(rank)
        self._pairs.drop_rounds(self._progress.slowest())
        self._say_steps()

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
                "under_way": self._under_way,
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


def _keys_in(shard: Shard, table: int) -> Keys:
    """A shard's keys of a sparse table; none, if it has nothing of it."""
    for name, (keys, _) in zip(shard.tables, shard.parts, strict=True):
        if name == table and keys is not None:
            return keys
    return np.empty(0, np.uint64)


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
