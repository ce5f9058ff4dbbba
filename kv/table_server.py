"""Tables on a server: requests in, the engine asked, answers out.

The thread that drives the node's van takes every request. It answers a short one itself if nothing
of that worker about those tables is under way, so that the answer costs no change of threads; the
others go to an executor, which works on them in turns. So a long request delays a short one, of
whomever, by a chunk of its work at most, and control messages not at all.

A worker's requests about one table are executed in the order in which they came; others' do not
wait for them. A pull that the consistency mode does not answer yet is kept aside, and comes again
when a clock has advanced. Which requests are looked at, and which are only answered once more, is
the business of `kv.delivery`; what is done for each command is in `kv.serving`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kv.consistency.settings import Consistency
from kv.delivery.desk import Desk
from kv.dispatcher.assignment import dispatcher_of
from kv.engine import Engine
from kv.engine_table import Table
from kv.errors import KVError
from kv.executor import Executor, Turns, run_through
from kv.keylists.kept import KeptLists
from kv.packed import PACKED
from kv.placement import SlotMap, slot_of
from kv.replay.order import LANE, Order
from kv.serving.answers import Answers
from kv.serving.at_once import AtOnce
from kv.serving.commands import Answering, Commands
from kv.serving.held import HeldPulls
from kv.serving.memory import AnswerMemory
from kv.serving.pulls import Pulls
from kv.serving.ranks import Ranks
from kv.serving.reads import Reads
from kv.serving.rounds import SETTLING, Rounds
from kv.serving.tables import ServedTables
from kv.serving.writes import Writes
from kv.spec import TableSpec
from kv.table_protocol import READS, STEPS, TABLES_APP, WITH_KEYS, WITH_VALUES, Command
from kv.unpacking import Unpacker
from postoffice.customer import Customer
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.view import ClusterView
from van.buffers import Buffers
from van.message import Flag, Message, Meta

SHORT = 1 << 18  # floats that a request may move to be answered at once, about a millisecond
ALONE = 1 << 20  # likewise, where nothing else is there to be done
LONG = 1 << 62  # likewise, more than any moves

_STEP = int(Command.STEP)
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
        engine: has the tables.
        executor: has the threads.
        lists, unpacker: what is remembered of workers' key lists, and of compressed values.
        failure: what ended this node, an error that is no request's; None: nothing.
        desk: which requests are new here; its `windows` go with slots that move.
        follows_map: whether each newer map of the scheduler is taken as it comes; else who moves
            rows calls `learn_map`.
        keep_answer: with replicas: called, in any thread, with a request that has changed something
            and its answer; True: it is not sent now, but by `answer` when the backups have what
            changed. Repeats hear HELD meanwhile.
        find_or_define, table_of: see `ServedTables.find_or_define` and `of_id`.
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
        self.office, self._order = office, order
        self.lists = KeptLists(key_cache)
        self.unpacker = Unpacker()
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
        tables = ServedTables(self.engine, self.unpacker, check)
        self.find_or_define, self.table_of = tables.find_or_define, tables.of_id
        self._tables, self._of = tables.by_id, tables.of
        answers = Answers(office, tables.of)
        self._give, self._error = answers.send, answers.error
        self.executor = Executor(threads, self._fail, "pslite server")
        self.failure: BaseException | None = None
        self._short, self._alone = (SHORT, ALONE) if threads else (LONG, LONG)
        self.desk = Desk(
            SlotMap.even(max(1, office.shape.servers)),
            lambda: office.node_id,
            self._of,
            self._complete,
            self._give,
        )
        self.follows_map = True
        self.keep_answer: Callable[[Message, Message], bool] | None = None
        self._held, self._van_thread = HeldPulls(), 0
        ranks, memory = Ranks(), AnswerMemory(office, Buffers())
        self._at_once = AtOnce(self.engine, self.desk, ranks, memory).commands
        self._handlers = self._parts(tables, ranks, memory)
        self._work_on: Callable[[Message], None] = self._dispatch  # work on what is ready for it
        receive: Callable[[Message], None] = self._receive
        if order is not None:  # each request has its turn, however short it is
            order.attach(office, self._dispatch, self._refuse, self._give_up)
            receive = order.receiving(receive, self._give)
            self._work_on, self._at_once = order.dispatch, {}
        Customer(TABLES_APP, 0, office, receive)
        office.on_view.append(self._see)
        office.queries.offer("tables", tables.facts)

    def _parts(self, tables: ServedTables, ranks: Ranks, memory: AnswerMemory) -> Commands:
        """Who works on requests, by command."""
        office, engine, desk = self.office, self.engine, self.desk
        self._rounds = Rounds(
            office, engine, self.executor, tables, ranks, self._forget, self.answer_held
        )
        pulls = Pulls(office, engine, tables, desk, ranks, self._held, memory, self.unpacker)
        writes = Writes(office, engine, tables, desk, ranks, pulls.pull)
        return {
            **tables.commands,
            **pulls.commands,
            **writes.commands,
            **Reads(engine, tables).commands,
            **self._rounds.commands,
        }

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
                    self._rounds.lose(node)
        for node in new.dead - old.dead:
            if role_and_rank(node)[0] is Role.DISPATCHER:
                self._forget(node)
        if new.map_version > old.map_version and self.follows_map:
            self.learn_map(replace(SlotMap.from_bytes(new.map_blob), version=new.map_version))

    def _forget(self, node: int) -> None:
        """Drop what is kept of the requests of a node that is no more."""
        self.lists.forget(node)
        self.unpacker.forget(node)

    def learn_map(self, slots: SlotMap) -> None:
        """Know a newer slot map; by the thread that drives the van, with no work on moved slots."""
        self.desk.rank = self.office.rank
        self.desk.learn(slots)

    # -- who works on a request, and when ---------------------------------------------------

    def _receive(self, message: Message) -> None:
        self._van_thread = threading.get_ident()
        meta = message.meta
        try:
            stream = self.desk.admit(message)
            if stream is None:
                return
            if meta.cmd == _STEP and not self._rounds.is_watching:
                self._rounds.watch()
            if meta.key_list or (meta.body and ("coded" in meta.body or PACKED in meta.body)):
                self._complete(message)
            if meta.timestamp in stream.entries or not self._is_answered_at_once(message):
                stream.in_hand.add((meta.timestamp, meta.piece))
                self._work_on(message)
        except Exception as error:
            self._refuse(message, error)

    def _complete(self, message: Message) -> None:
        """Bring the request's key lists, which may be named or coded, into their places."""
        tables, has_values = self._of(message.meta), message.meta.cmd in _VALUED
        self.lists.complete(message, [table.is_dense for _, table, _ in tables], has_values)
        is_packed = has_values and message.meta.body and PACKED in message.meta.body
        if is_packed and self._cost(message) <= self._short:
            self.unpacker.unpack(message, tables)  # what takes longer is done in its turn

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

    @property
    def _does_anybody_wait(self) -> bool:
        """Whether there is other work for the thread that drives the van, which asks."""
        return not self.executor.is_idle or self.office.van.has_more

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
        cost = self._cost(message)
        is_short = cost <= self._short
        turns = self._answering(message, handler)
        if is_free and (is_short or (cost <= self._alone and not self._does_anybody_wait)):
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

    # -- its answer ---------------------------------------------------------------------------

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

    # -- pulls that wait ----------------------------------------------------------------------

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


def _group_of(shape: ClusterShape) -> Callable[[int], int] | None:
    """By worker the dispatcher that adds up its pushes with those of others; None: nobody does."""
    if not shape.dispatchers:
        return None
    return partial(dispatcher_of, workers=shape.workers, dispatchers=shape.dispatchers)
