"""Tables on a server: requests in, the engine asked, answers out.

The thread that drives the node's van takes every request. It answers a short one itself if nothing
of that worker about those tables is under way, so that the answer costs no change of threads; the
others go to an executor, which works on them in turns. So a long request delays a short one, of
whomever, by a chunk of its work at most, and control messages not at all.

A worker's requests about one table are executed in the order in which they came; others' do not
wait for them. A pull that the consistency mode does not answer yet is kept aside, and comes again
when a clock has advanced. Which requests are looked at, and which are only answered once more, is
the business of `kv.delivery`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kv.at_once import Answers, AtOnce, Ranks
from kv.consistency.settings import Consistency
from kv.delivery.desk import Desk
from kv.dispatcher.assignment import dispatcher_of
from kv.engine import MOST_ROWS, Engine
from kv.engine_table import Table
from kv.errors import KVError, TableConflictError, UnknownTableError, VersionMismatchError
from kv.executor import Executor, Turns, run_through
from kv.held import HeldPulls
from kv.keylists.kept import KeptLists
from kv.packed import PACKED
from kv.placement import SlotMap, slot_of
from kv.refreshing import answering, note_packed
from kv.rehearsal import Rehearsal
from kv.replay.order import LANE, Order
from kv.server import error_answer
from kv.spec import TableSpec
from kv.table_messages import (
    bases_of,
    clocks_of,
    counted,
    error_of,
    is_whole,
    leave_pull,
    next_array,
    no_more,
    writes_of,
)
from kv.table_protocol import (
    READS,
    STEPS,
    TABLES_APP,
    WITH_KEYS,
    WITH_VALUES,
    Command,
    table_id,
)
from kv.unpacking import Unpacker
from postoffice.customer import Customer
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.view import ClusterView
from van.buffers import Buffers
from van.errors import CodecError, PsliteError
from van.message import Flag, Message, Meta, answer_to

log = logging.getLogger(__name__)

SHORT = 1 << 18  # floats that a request may move to be answered at once, one or two milliseconds
LONG = 1 << 62
SETTLING = "rounds"  # the lane of what closes rounds

Answering = Turns[Message | None]
_STEP = int(Command.STEP)
_LOOK = 0.02  # seconds between two looks at rounds that close after a time
_NO_TABLE: tuple[int, Table | None] = (-1, None)
_VALUED = frozenset(map(int, WITH_VALUES))


class TableServer:
    """Serves the tables of one server node: `with TableServer(office): office.serve()`.

    Args:
        office: the node, not yet started.
        mode: of tables that name none.
        seed: of initial values.
        key_cache: bytes of key lists remembered for each worker.
        threads: that work on long requests; 0 works on all in the thread that drives the van.
        spill_dir: where tables with when_full=spill keep rows.
        max_staleness: see `Engine`.
        order: writes down in which order requests are worked on, or keeps to what is written.
        check: raises for a definition that this job cannot have.

    Attributes:
        desk: which requests are new here; its `windows` go with slots that move.
        follows_map: whether each newer map of the scheduler is taken as it comes; else who moves
            rows calls `learn_map`.
        keep_answer: with replicas: called, in any thread, with a request that has changed something
            and its answer; True: it is not sent now, but by `answer` when the backups have what
            changed. Repeats hear HELD meanwhile.
    """

    def __init__(
        self,
        office: Postoffice,
        mode: str | Consistency = "async",
        seed: int = 1,
        key_cache: int = 64 << 20,
        threads: int = 0,
        spill_dir: str = "",
        max_staleness: int | None = None,
        order: Order | None = None,
        check: Callable[[TableSpec], None] = lambda spec: None,
    ) -> None:
        self.office, self._order, self._check = office, order, check
        self.lists = KeptLists(key_cache)
        self.unpacker = Unpacker()
        self._buffers = Buffers()
        self.engine = Engine(
            office.shape.workers,
            mode,
            seed,
            self._owns,
            parts=max(1, threads),
            spill_dir=spill_dir,
            now=lambda: office.van.now(),
            max_staleness=max_staleness,
            server=lambda: office.rank,
            group_of=_group_of(office.shape),
        )
        self._rehearsal = Rehearsal(self.engine.parts)
        self.executor = Executor(threads, self._fail, "pslite server")
        self.failure: BaseException | None = None
        self._short = SHORT if threads else LONG
        self.desk = Desk(
            SlotMap.even(max(1, office.shape.servers)),
            lambda: office.node_id,
            self._of,
            self._complete,
            self._give,
        )
        self.follows_map = True
        self.keep_answer: Callable[[Message, Message], bool] | None = None
        self._tables: dict[int, tuple[int, Table]] = {}  # id -> number and table of the engine
        self._held = HeldPulls()
        self._van_thread = 0
        self._watches_windows = self._is_settling = False
        self._handlers: dict[int, Callable[[Message], Answering]] = {
            Command.DEFINE: self._define,
            Command.PULL: self._pull,
            Command.PUSH: self._push,
            Command.PUSH_PULL: self._push_pull,
            Command.STEP: self._step,
            Command.FINISH: self._finish,
            Command.BEGIN: self._begin,
            Command.ASSIGN: self._assign,
            Command.DELETE: self._delete,
            Command.SIZE: self._size,
            Command.SCAN: self._scan,
            Command.SET_LR: self._set_lr,
            Command.STATS: self._stats,
            Command.META: self._meta,
            Command.CHANGED: self._changed,
            Command.UNSENT: self._unsent,
            Command.REFRESH: self._refresh,
        }
        self._ranks = Ranks()
        self._answers = Answers(office, self._buffers)
        self._at_once = AtOnce(self.engine, self.desk, self._ranks, self._answers).commands
        self._work_on: Callable[[Message], None] = self._dispatch  # work on what is ready for it
        receive: Callable[[Message], None] = self._receive
        if order is not None:  # each request has its turn, however short it is
            order.attach(office, self._dispatch, self._refuse, self._give_up)
            receive = order.receiving(receive, self._give)
            self._work_on, self._at_once = order.dispatch, {}
        Customer(TABLES_APP, 0, office, receive)
        office.on_view.append(self._see)
        office.queries.offer("tables", self._facts)

    def close(self, *, drain: bool = True) -> None:
        """End the threads, after the requests there are, or without."""
        self.executor.close(drain=drain and self.failure is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; what ended a thread is raised, since the node stops because of it."""
        self.close(drain=error is None)
        error = self.failure or error
        if self._order is not None:
            self._order.end("" if error is None else f"{type(error).__name__}: {error}")
        if self.failure is not None:
            raise self.failure from None

    def _fail(self, error: BaseException) -> None:
        """A thread of the executor is gone: without it requests would wait for ever."""
        self._give_up(error, "a thread of this server ended: ")

    def _give_up(self, error: BaseException, what: str = "") -> None:
        """End this node because of an error that is no request's."""
        self.failure = self.failure or error
        self.office.stop(f"{what}{type(error).__name__}: {error}")

    def _owns(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        owner: NDArray[np.bool_] = self.desk.slots.owner[slot_of(keys)] == self.office.rank
        return owner

    def _see(self, old: ClusterView, new: ClusterView) -> None:
        """What the scheduler says has changed; called by the thread that drives the van."""
        for node, life in new.fenced.items():
            self.desk.windows.fence(node, life)
        if self.office.shape.failures.on_worker == "continue":
            for node, life in sorted(new.fenced.items()):  # whoever has its seat by now
                if not old.is_fenced(node, life):
                    self._lose(node)
        for node in new.dead - old.dead:
            if role_and_rank(node)[0] is Role.DISPATCHER:
                self.lists.forget(node)
                self.unpacker.forget(node)
        if new.map_version > old.map_version and self.follows_map:
            self.learn_map(replace(SlotMap.from_bytes(new.map_blob), version=new.map_version))

    def _lose(self, node: int) -> None:
        """A node has died and the job goes on: nobody waits for it, if it was a worker."""
        role, rank = role_and_rank(node)
        if role is Role.WORKER and rank < self.engine.progress.num_workers:
            self.lists.forget(node)
            self.unpacker.forget(node)
            lanes = [SETTLING, *((node, table) for table in list(self._tables))]
            self.executor.submit(self._and_let_go(self.engine.losing(rank)), lanes)

    def _and_let_go(self, settling: Turns[bool]) -> Turns[None]:
        """Close rounds that no request closes; a round that fails is said to nobody but the log."""
        try:
            yield from self._letting_go(settling)
        except KVError as error:
            log.warning("%s: %s", self.office.name, error)

    def _letting_go(self, settling: Turns[bool]) -> Turns[None]:
        """Close rounds; if a clock has advanced, pulls that waited for it are answered."""
        has_advanced = True  # where a round failed, too, others go on
        try:
            has_advanced = yield from settling
        finally:
            if has_advanced:
                self.answer_held()

    def _watch_windows(self) -> None:
        """Look every so often whether a round is to be closed because its time is over."""
        if self.engine.has_windows:
            self._watches_windows = True
            self.office.van.every(_LOOK, self._look_at_windows)

    def _look_at_windows(self) -> None:
        due_at = self.engine.due_at
        if due_at is not None and self.engine.now() >= due_at and not self._is_settling:
            self._is_settling = True
            self.executor.submit(self._closing_windows(), [SETTLING])

    def _closing_windows(self) -> Turns[None]:
        self._is_settling = False
        yield from self._and_let_go(self.engine.settling())

    def learn_map(self, slots: SlotMap) -> None:
        """Know a newer slot map; by the thread that drives the van, with no work on moved slots."""
        self.desk.rank = self.office.rank
        self.desk.learn(slots)

    def _facts(self) -> list[dict[str, Any]]:
        """What somebody outside the cluster is told of the tables."""
        return [self._stats_of(table) for _, table in list(self._tables.values())]

    def _stats_of(self, table: Table) -> dict[str, Any]:
        seen = self.unpacker.stats(table.id)
        return table.stats() | ({"compression": seen} if seen else {})

    # -- who works on a request, and when ---------------------------------------------------

    def _receive(self, message: Message) -> None:
        self._van_thread = threading.get_ident()
        meta = message.meta
        try:
            stream = self.desk.admit(message)
            if stream is None:
                return
            if meta.cmd == _STEP and not self._watches_windows:
                self._watch_windows()
            if meta.key_list or (meta.body and ("coded" in meta.body or PACKED in meta.body)):
                self._complete(message)
            if meta.timestamp in stream.entries or not self._is_answered_at_once(message):
                stream.in_hand.add((meta.timestamp, meta.piece))
                self._work_on(message)
        except Exception as error:
            self._refuse(message, error)

    def _refuse(self, message: Message, error: Exception) -> None:
        """Answer a request that nobody can work on."""
        self.desk.let_go(message.meta)
        self._give(self._error(message, error), message)

    def _is_answered_at_once(self, message: Message) -> bool:
        """Answer a short pull or push of one sparse table, if nothing is in its way.

        This is `_dispatch` for what most requests are, without turns and lanes.
        """
        meta = message.meta
        work = self._at_once.get(meta.cmd)
        if work is None or len(meta.clocks) != 1 or not message.arrays or meta.constituents:
            return False
        identity, step, _ = meta.clocks[0]
        number, table = self._tables.get(identity, _NO_TABLE)
        if table is None or table.is_dense or table.cost(message.arrays[0]) > self._short:
            return False
        if not (self.executor.is_idle or self.executor.is_free([(meta.sender, identity)])):
            return False
        try:
            answer = work(message, number, table, step)
        except Exception as error:
            self._send(message, self._error(message, error))
            return True
        if answer is None:
            return False
        if self.unpacker.packs:
            self.unpacker.pack(answer, [(number, table, step)])
        if self.keep_answer is None:  # what there is to remember is remembered
            self._give(answer, message)
            if self.desk.has_early:
                self._go_on()
        else:
            self._send(message, answer)
        return True

    def _dispatch(self, message: Message) -> None:
        """Work on `message` now, or have it worked on."""
        meta = message.meta
        handler = self._handlers.get(meta.cmd)
        if handler is None:
            raise KVError(f"tables know no command {meta.cmd}")
        is_here = threading.get_ident() == self._van_thread
        lanes: list[Hashable] = []
        is_free = is_here and self.executor.is_idle
        if not is_free:
            lanes = self._lanes(meta)
            is_free = is_here and self.executor.is_free(lanes)
        # Looked at after the lanes: what a step costs is what the requests before it have left.
        is_short = self._cost(message) <= self._short
        turns = self._answering(message, handler)
        if is_free and is_short:
            run_through(turns)
            return
        lanes = lanes or self._lanes(meta)
        if is_here:
            self.office.reach(meta.sender)  # only this thread may make connections
        self.executor.submit(turns, lanes, is_short)

    def _cost(self, message: Message) -> int:
        """About how many floats a request moves."""
        command, meta = message.meta.cmd, message.meta
        if command in WITH_KEYS:
            arrays, cost = iter(message.arrays), 0
            for _, table, _ in self._of(meta):
                cost += table.cost(None if table.is_dense else next(arrays, None))
                if command in _VALUED:
                    next(arrays, None)
            return cost
        if command in STEPS:
            return self.engine.held
        if command == Command.SCAN:
            return sum(table.store.chunk * table.spec.dim for _, table, _ in self._of(meta))
        if command == Command.DEFINE:
            return 0 if meta.body.get("name") in self.engine.numbers else LONG
        return 0

    def _lanes(self, meta: Meta) -> list[Hashable]:
        """A request waits for the requests before it in each of these."""
        if self._order is not None:
            return [LANE]
        if meta.cmd in STEPS:
            return [SETTLING, *((meta.sender, table) for table in list(self._tables))]
        return list(dict.fromkeys((meta.sender, table) for table, *_ in meta.clocks))

    def _answering(self, message: Message, handler: Callable[[Message], Answering]) -> Turns[None]:
        meta = message.meta
        try:
            if meta.body and PACKED in meta.body and meta.cmd in _VALUED:
                self.unpacker.unpack(message, self._of(meta))
            answer = yield from handler(message)
        except Exception as error:
            answer = self._error(message, error)
        if answer is not None:
            if self._order is not None:
                self._order.answered(message, answer)
            self._send(message, answer)

    def _error(self, message: Message, error: Exception) -> Message:
        log.debug("request failed: %r", message, exc_info=error)
        answer = error_answer(message.meta, error_of(message.meta, error), self.office.node_id)
        if isinstance(error, VersionMismatchError):  # so that the worker can renew its base
            answer.meta.clocks = clocks_of(self._of(message.meta), self.office.rank)
        return answer

    def _send(self, message: Message, answer: Message) -> None:
        """The work on a request is over: answer, now or when that is safe."""
        if (
            self.keep_answer is not None
            and (message.meta.cmd not in READS or message.meta.flags & Flag.PUSH)
            and self.keep_answer(message, answer)
        ):
            return
        self.answer(message, answer)

    def answer(self, message: Message, answer: Message) -> None:
        """Answer a request for good; any thread."""
        self.desk.settle(message, answer)
        self._give(answer, message)
        if self.desk.has_early:
            self._go_on()

    def _go_on(self) -> None:
        """Work on the ends of steps that waited for a push which has come now."""
        for step in self.desk.released():
            self._work_on(step)

    def _give(self, answer: Message, message: Message | None = None) -> None:
        try:
            try:
                self.office.send(answer)
            except CodecError as error:  # too large for the van
                if message is None:
                    raise
                self.office.send(error_answer(message.meta, error, self.office.node_id))
        except PsliteError as error:  # nobody can be told, and nobody else should suffer
            log.warning("%s cannot send %r: %s", self.office.name, answer, error)

    # -- what requests are about ------------------------------------------------------------

    def _complete(self, message: Message) -> None:
        """Bring the request's key lists, which may be named or coded, into their places."""
        tables, has_values = self._of(message.meta), message.meta.cmd in _VALUED
        self.lists.complete(message, [table.is_dense for _, table, _ in tables], has_values)
        is_packed = has_values and message.meta.body and PACKED in message.meta.body
        if is_packed and self._cost(message) <= self._short:
            self.unpacker.unpack(message, tables)  # what takes longer is done in its turn

    def _of(self, meta: Meta) -> list[tuple[int, Table, int]]:
        """The tables of a request, by number and itself, and the worker's step for each."""
        found = []
        for identity, clock, _ in meta.clocks:
            known = self._tables.get(identity)
            if known is None:
                raise UnknownTableError(f"id {identity:x}", "it is not defined on this server")
            found.append((*known, clock))
        return found

    def _one(self, meta: Meta) -> int:
        """The number of the one table of a request."""
        ((number, _, _),) = self._of(meta)
        return number

    # -- commands ---------------------------------------------------------------------------

    def _define(self, message: Message) -> Answering:
        self.find_or_define(TableSpec.from_dict(message.meta.body))
        return Message(answer_to(message.meta))
        yield

    def find_or_define(self, spec: TableSpec) -> Table:
        """Make a table, its kernels loaded, or find it.

        Raises:
            TableConflictError: the name, or its id, stands for another definition.
        """
        identity = table_id(spec.name)
        if spec.name not in self.engine.numbers:
            resolved = spec.resolved(self.engine.default_mode, self.engine.seed)
            self._check(resolved)
            self._rehearsal.play(resolved)
        number = self.engine.define(spec)
        known, table = self._tables.setdefault(identity, (number, self.engine.table(number)))
        if known != number:
            raise TableConflictError(spec.name, "its id is that of another table; rename it")
        self.unpacker.define(spec, identity)
        return table

    def table_of(self, identity: int) -> Table | None:
        """The table of that id; None: it is not defined here."""
        return self._tables.get(identity, _NO_TABLE)[1]

    def _pull(self, message: Message) -> Answering:
        meta = message.meta
        tables = self._of(meta)
        if self._must_hold(message, tables):
            return None
        create = bool(meta.body["create"])
        arrays = iter(message.arrays)
        values: list[NDArray[Any]] = []
        empty = self._answers.empty_for(meta.sender)
        for _, table, _ in tables:
            keys = None if is_whole(meta, table) else next_array(arrays)
            if keys is not None and meta.key_list:
                table.remember(keys)
            values.append((yield from table.pulling(keys, create, empty)))
            if table.mode.notes_pulls:
                table.answered(self._ranks.of(meta), keys, values[-1])
        no_more(arrays)
        answer = Message(answer_to(meta, clocks=clocks_of(tables, self.office.rank)), values)
        if self.unpacker.packs:
            self.unpacker.pack(answer, tables)
        return answer

    def _must_hold(self, message: Message, tables: Sequence[tuple[int, Table, int]]) -> bool:
        """Whether a pull has to wait; it is then kept."""
        rank = self._ranks.of(message.meta)
        self.engine.progress.check_rank(rank)
        return self._held.keep(message, tables, rank)

    def answer_held(self) -> None:
        """A clock has advanced: let those go on that may."""
        self._let_on(self._held.ready())

    def look_at_held(self) -> None:
        """Slots have changed hands: see which of those that wait are still for this server."""
        self._let_on(self._held.take_all())

    def _let_on(self, held: Sequence[Message]) -> None:
        for message in held:
            if self.desk.is_served(message):
                self._work_on(message)

    def _push(self, message: Message) -> Answering:
        meta = message.meta
        tables = self._of(meta)
        clocks = {clock for *_, clock in tables}
        if len(clocks) > 1:
            raise KVError(f"one push belongs to one step, not to {sorted(clocks)}")
        body = meta.body or {}
        yield from self.engine.pushing(
            self._ranks.of(meta),
            clocks.pop() if clocks else 0,
            self.desk.left_of(meta, writes_of(message, tables)),
            float(body.get("weight", 1.0)),
            int(body.get("rest", 0)),
            meta,
            bases_of(meta),
        )
        self.desk.note_push(message)
        return Message(answer_to(meta, clocks=clocks_of(tables, self.office.rank)))

    def _push_pull(self, message: Message) -> Answering:
        yield from self._push(message)
        leave_pull(message, self._of(message.meta))
        return (yield from self._pull(message))

    def _step(self, message: Message) -> Answering:
        meta = message.meta
        steps = meta.body.get("steps")  # of several workers, where a dispatcher says it
        if steps is None:
            steps = [(self._ranks.of(meta), meta.body["clock"])]
        for rank, clock in steps:
            yield from self._letting_go(self.engine.stepping(int(rank), int(clock)))
        return Message(answer_to(meta))

    def _finish(self, message: Message) -> Answering:
        meta = message.meta
        rests = bool(meta.body and meta.body.get("rests"))
        if not rests and role_and_rank(meta.sender)[0] is Role.WORKER:
            self.lists.forget(meta.sender)
            self.unpacker.forget(meta.sender)
        leave = self.engine.losing if rests else self.engine.finishing
        yield from self._letting_go(leave(self._ranks.of(meta)))
        return Message(answer_to(meta))

    def _begin(self, message: Message) -> Answering:
        meta = message.meta
        rank, step = self._ranks.of(meta), meta.body["clock"]
        if step is not None:
            beginning = self.engine.beginning(rank, meta.incarnation, int(step))
            yield from self._letting_go(beginning)
        self.engine.progress.check_rank(rank)
        completed = self.engine.progress.completed[rank]
        return Message(answer_to(meta, body={"completed": completed}))

    def _assign(self, message: Message) -> Answering:
        writes = writes_of(message, self._of(message.meta))
        for write in self.desk.left_of(message.meta, writes):
            yield from self.engine.assigning(*write)
        return Message(answer_to(message.meta))

    def _delete(self, message: Message) -> Answering:
        (keys,) = message.arrays
        count = yield from self.engine.deleting(self._one(message.meta), keys)
        return counted(message.meta, count)

    def _size(self, message: Message) -> Answering:
        return counted(message.meta, self.engine.size(self._one(message.meta)))
        yield

    def _scan(self, message: Message) -> Answering:
        number, body = self._one(message.meta), message.meta.body
        keys, values, go_on = self.engine.scan(number, int(body["start"]), int(body["count"]))
        arrays: list[NDArray[Any]] = [keys, values]
        return Message(answer_to(message.meta, body={"next": go_on}), arrays)
        yield

    def _meta(self, message: Message) -> Answering:
        ((_, table, _),) = self._of(message.meta)
        (keys,) = message.arrays
        columns = yield from table.describing(keys)
        return Message(answer_to(message.meta), list(columns))

    def _changed(self, message: Message) -> Answering:
        ((_, table, _),), body = self._of(message.meta), message.meta.body
        count = max(1, min(int(body["count"]), MOST_ROWS))
        since, until = body["since"], body["until"] or table.store.versions
        keys, values, go_on = table.changed(int(body["start"]), count, since, until)
        answer = answer_to(message.meta, body={"next": go_on, "until": list(until)})
        return Message(answer, [keys, values])
        yield

    def _refresh(self, message: Message) -> Answering:
        tables = self._of(message.meta)
        if self._must_hold(message, tables):
            return None
        office = self.office
        answer = yield from answering(message, tables, office.incarnation, self.desk.map_version)
        answer.meta.clocks = clocks_of(tables, office.rank)
        if self.unpacker.packs:
            self.unpacker.pack(answer, tables)
            note_packed(answer)
        return answer

    def _set_lr(self, message: Message) -> Answering:
        self.engine.set_lr(self._one(message.meta), float(message.meta.body["lr"]))
        return Message(answer_to(message.meta))
        yield

    def _unsent(self, message: Message) -> Answering:
        self.engine.note_non_finite(self._one(message.meta), int(message.meta.body["count"]))
        return Message(answer_to(message.meta))
        yield

    def _stats(self, message: Message) -> Answering:
        ((_, table, _),) = self._of(message.meta)
        return Message(answer_to(message.meta, body=self._stats_of(table)))
        yield


def _group_of(shape: ClusterShape) -> Callable[[int], int] | None:
    """By worker the dispatcher that adds up its pushes with those of others; None: nobody does."""
    if not shape.dispatchers:
        return None
    return partial(dispatcher_of, workers=shape.workers, dispatchers=shape.dispatchers)
