"""A worker of a cluster: its tables' requests, its steps, barriers and gathers.

Fits `kv.protocols.Worker`, as `kv.local_worker.LocalWorker` does for one process. A request goes to
each server that owns some of its keys, all tables of a `pull_many` in one message, or in several
where it is large (`kv.cutting`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from kv.asking import Asking, Entry, Lines, Question, cut_in_pieces, server_ids
from kv.clipping import Clipping
from kv.compressing import CodedWrite, Encoders, compress
from kv.compression.settings import NO_RULES, WORKER_DISPATCHER, WORKER_SERVER, Rules
from kv.consistency.settings import Consistency
from kv.consistency.staleness import together
from kv.cutting import PIECE, SHARED_PIECE, Cut, cut_keys
from kv.defining import DefinesTables
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.busy import BusyLink
from kv.dispatcher.changing import Changing
from kv.dispatcher.way import (
    THROUGH,
    Way,
    addressed,
    is_dispatcher,
    told_directly,
    unfolded,
    unfolding,
)
from kv.errors import KVError, NonFiniteError, SettingError
from kv.gather import Gatherer
from kv.keylists.merged import MergedLists
from kv.keylists.sent import SentLists
from kv.keylists.signature import signature_of
from kv.leases.client import RemoteLeases
from kv.leases.pieces import DataSet
from kv.leases.reader import Shards
from kv.pipelining import Pipeline
from kv.placement import SlotMap
from kv.prefetching import Prefetched, Prefetches, PulledAhead
from kv.protocols import DenseTable, Read, Request, SparseTable, Write
from kv.pulling import DenseRead, Pull, Reading, SparseRead
from kv.pushing import DenseWrite, SparseWrite, Writing, pack
from kv.remote import remote_error
from kv.retrying import Retry
from kv.settings import GREATEST, learning_rate
from kv.spec import TableSpec
from kv.stale import StalePushes
from kv.table_protocol import PUSHES, TABLES_APP, Command, table_id
from kv.tables import (
    Keys,
    RemoteDenseTable,
    RemoteSparseTable,
    Table,
    Values,
    Wanted,
    own_table,
    wanted_of,
)
from postoffice.customer import Customer, Finish
from postoffice.errors import ClusterStoppedError
from postoffice.node import Group
from postoffice.postoffice import Postoffice
from postoffice.resending import Place
from postoffice.view import ClusterView
from van.buffers import Buffers
from van.errors import PsliteError
from van.message import Clock, Flag, Message, Meta

_CREATING, _READING = {"create": True}, {"create": False}  # bodies of pulls; nobody changes them
SHORTEST_LIST = 1500  # keys of a request; fewer are sent again, which is as quick as remembering


class RemoteWorker(DefinesTables[RemoteSparseTable, RemoteDenseTable]):
    """A worker node's tables, steps and collectives. See `kv.protocols.Worker`.

    Args:
        office: the node, not yet started.
        mode: the job's mode, of tables that name none.
        seed: of initial values of tables.
        key_cache: bytes of key lists that each server remembers for this worker; 0: none.
        key_deltas: whether keys are sent as differences where that is smaller: `on`, `off`, or
            `auto`, to servers on other hosts.
        piece: bytes of rows above which a request to one server is cut; None: as is quickest on
            the way to that server.
        may_move: other servers may come to own rows at any time, as where they have copies.
        max_staleness: whether servers refuse gradients that are staler; None: they do not.
        retry: how a push that is refused so is tried again, with the clock of now for its base.
        is_deterministic: nothing that this worker gets may depend on timing: rows come by their
            keys, and there is no prefetch beside other workers.
        compression: the job's, of tables that name none.
        balance: which of it only a busy link is to have.

    Attributes:
        encoders: what compresses gradients; its `stats` say what that saved.
        counts: key lists sent, named and sent again, bytes of keys and of values saved, prefetches
            used.
    """

    def __init__(
        self,
        office: Postoffice,
        mode: str | Consistency = "async",
        seed: int = 1,
        *,
        key_cache: int = 64 << 20,
        key_deltas: str = "auto",
        piece: int | None = None,
        may_move: bool = False,
        max_staleness: int | None = None,
        retry: Retry = Retry(),  # noqa: B008 (it is frozen)
        is_deterministic: bool = False,
        compression: Rules = NO_RULES,
        balance: BalanceConfig = BalanceConfig(),  # noqa: B008
    ) -> None:
        self.office = office
        self._mode, self._seed = Consistency.of(mode), seed
        self._customer = Customer(TABLES_APP, 0, office, make_error=remote_error)
        self._others: dict[int, Customer] = {}  # by application
        self._gatherer = Gatherer(office)
        self.leases = RemoteLeases(office)
        self._steps, self._may_move = 0, may_move
        self.is_deterministic = is_deterministic
        self._defined: dict[int, set[tuple[int, int]]] = {}  # table -> servers' lives that know it
        self._specs: dict[int, TableSpec] = {}
        self._bases: dict[tuple[int, int], int] = {}  # table, server -> clock of the last pull
        self.max_staleness = max_staleness
        self._stale: StalePushes | None = None
        self._retries: StalePushes | None = None
        self.way = Way(office)
        self._changing: Changing | None = None
        if self.way.is_open:
            self._changing = Changing(office, self._customer, self.way, self._introduction)
        self._between_steps = 0  # requests when the last step ended
        if max_staleness is not None:
            self._retries = StalePushes(self._customer, office.van, retry, seed)
            if not self.way.is_open:  # a dispatcher tries again itself
                self._stale = self._retries
        self._has_rounds = self._mode.counts_steps  # else ends of steps need not be said
        self._rests = self._has_begun = self._has_finished = False
        self._newest = SlotMap.even(max(1, office.shape.servers))
        self.slots = THROUGH if self.way.is_open else self._newest
        office.on_view.append(self._see)
        office.statuses["work"] = lambda: [self._steps, self._customer.requests]
        self._cut_before = 0  # requests below this timestamp were cut by an older map
        self._closed = False
        self.on_close: Callable[[], None] | None = None  # called once, after the goodbye
        self.counts: Counter[str] = Counter()
        self.buffers = Buffers()
        self._key_cache, self._key_deltas, self._piece = key_cache, key_deltas, piece
        self.merged = MergedLists()
        self._list_seed = secrets.randbits(64)
        self._sent = SentLists(key_cache)
        self._lines: Lines | None = None
        self._prefetches = Prefetches()
        self.encoders = Encoders(compression, self._customer.is_open)
        self.link = WORKER_DISPATCHER if self.way.is_open else WORKER_SERVER
        if balance.when_busy:
            self.encoders.compress_when_busy(balance.when_busy)
            BusyLink(
                office, balance, self.encoders.switch, lambda: self.counts["value_bytes_saved"]
            )

    @property
    def rank(self) -> int:
        return self.office.rank

    @property
    def num_workers(self) -> int:
        return self.office.shape.workers

    def _sparse(self, spec: TableSpec) -> RemoteSparseTable:
        return RemoteSparseTable(self, self._define(spec))

    def _dense(self, spec: TableSpec) -> RemoteDenseTable:
        return RemoteDenseTable(self, self._define(spec))

    def _define(self, spec: TableSpec) -> TableSpec:
        spec = self.encoders.resolve(spec.resolved(self._mode, self._seed))
        if spec.mode is not None and spec.mode.counts_steps:
            self._begin()
        self.ask_all(Command.DEFINE, body=spec.to_dict())
        self._defined[table_id(spec.name)] = self._lives(self._servers())
        self._specs[table_id(spec.name)] = spec
        if spec.mode is not None and spec.mode.counts_steps and not self._has_rounds:
            self._has_rounds = True
            if self._steps:  # those before the first table with rounds were not said
                self.ask_all(Command.STEP, body={"clock": self._steps - 1})
        return spec

    def _lives(self, servers: Sequence[int]) -> set[tuple[int, int]]:
        """The servers with their incarnations."""
        nodes = self.office.nodes
        return {(server, nodes[server].incarnation) for server in servers if server in nodes}

    def _define_where_new(self, tables: Sequence[Table], servers: Sequence[int]) -> None:
        """Define tables on servers that have come since they were defined."""
        for table in tables:
            lives = self._lives(servers)
            new = [server for server, _ in sorted(lives - self._defined[table.id])]
            if new:
                body = table.spec.to_dict()
                self._customer.wait(self._tell(Command.DEFINE, Flag.NONE, new, body=body))
                self._defined[table.id] |= lives

    def lines(self) -> Lines:
        """The way to the servers, found once the node has started."""
        if self._lines is None:
            self._lines = Lines.of(
                self.office,
                self.slots,
                self._key_deltas,
                self._sent,
                self.counts,
                self.buffers,
                self.way.node if self.slots is THROUGH else None,
            )
        return self._lines

    def _see(self, old: ClusterView, new: ClusterView) -> None:
        """What the scheduler says has changed; called by the thread that drives the van."""
        self.way.see(old, new)
        if new.map_version > old.map_version:
            slots = SlotMap.from_bytes(new.map_blob)
            self.learn_map(replace(slots, version=new.map_version))

    def learn_map(self, slots: SlotMap) -> None:
        """Know a newer slot map: requests are cut by it from the next one on."""
        if slots.version > self._newest.version:
            self._newest = slots

    def _adopt_map(self) -> None:
        """Between two requests, so that one is cut by one map."""
        if self._newest is not self.slots and not self.way.is_open:
            self.slots, self._lines, self.link = self._newest, None, WORKER_SERVER
            self._cut_before = self._customer.requests
            self._stale = self._retries

    def _change_way(self) -> None:
        """Before a request is made: go the way that is wanted now, where one may.

        Where steps are counted that is between two of them: the pushes of one go one way.
        """
        assert self._changing is not None
        if self._has_rounds and self._customer.requests != self._between_steps:
            return
        self._changing.change()
        self.slots = THROUGH if self.way.is_open else self._newest
        self._lines, self._stale = None, None if self.way.is_open else self._retries
        self.link = WORKER_DISPATCHER if self.way.is_open else WORKER_SERVER
        self._between_steps = self._customer.requests

    def _introduction(self) -> dict[str, Any]:
        """What a dispatcher must know of this worker."""
        return {
            "step": self._steps,
            "rests": self._rests or self._has_finished,
            "tables": [spec.to_dict() for spec in self._specs.values()],
        }

    def _keep_order(self) -> None:
        """Wait until what comes next cannot overtake a push that goes another way.

        That is one which was refused or sent to others, or was cut by an older map: its rows may
        have another owner by now, who has yet to get it.
        """

        def is_kept() -> bool:
            cut_before = self._cut_before
            older = (
                [p for p, _ in self._pushes_under_way() if p[0] < cut_before] if cut_before else []
            )
            return not older and not self._customer.astray

        self.office.wait(is_kept, what=lambda: "pushes whose rows have moved")
        self._cut_before = 0

    # -- moving values --------------------------------------------------------------------

    def pull_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> list[Values]:
        """Pull from many tables in one request per server; answers in the order of `reads`."""
        return self.pull_wanted([wanted_of(read) for read in reads], create, priority)

    def pull_wanted(self, wanted: Sequence[Wanted], create: bool, priority: int) -> list[Values]:
        """What tables call: read what they have prepared."""
        if self._prefetches:
            found = self._prefetches.take(self._prefetch_place(wanted, create), wanted)
            if found is not None:
                self.counts["prefetch_used"] += 1
                self._take(found)
                return found.values_for(wanted)
        if self._changing is not None and self.way.is_changing:
            self._change_way()
        pull = Pull([self._read(read) for read in wanted])
        request = self._start(pull, wanted, create, priority)
        try:
            self._customer.wait(request)
        except BaseException:
            self._customer.forget(request)  # what still comes is not put into the caller's memory
            raise
        self._bases.update(pull.clocks)
        return pull.results()

    def prefetch_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> None:
        """Start a pull whose answer the next `pull_many` of the same reads takes.

        Keys may stand in another order there, or more than once. The values are those of the time
        when the servers answer: later pushes, one's own as well, are not in them. In `sync` mode
        they are those of the step in which the prefetch was made. An error is raised by the pull.
        Of more than four prefetches that nobody has taken the first is dropped.

        Raises:
            SettingError: the job is deterministic and has other workers.
        """
        if self.is_deterministic and self.num_workers > 1:
            problem = "what it brings depends on when servers answer; pull, or do without it"
            raise SettingError("prefetch in a job with [run] deterministic", problem)
        if self._changing is not None and self.way.is_changing:
            self._change_way()
        wanted = [wanted_of(read).unique() for read in reads]
        pull = Pull([self._read(read) for read in wanted])
        request = self._start(pull, wanted, create, priority, is_quiet=True)
        place = self._prefetch_place(wanted, create)
        self.counts["prefetched"] += 1
        for dropped in self._prefetches.add(place, Prefetched(request, wanted, pull)):
            self.counts["prefetch_dropped"] += 1
            self._customer.forget(dropped.request)

    def pull_ahead(
        self, reads: Sequence[Read], *, steps: int = 1, create: bool = True, priority: int = 0
    ) -> PulledAhead:
        """Start a pull for the step that is `steps` after this one; see `kv.protocols.Worker`."""
        if self._changing is not None and self.way.is_changing:
            self._change_way()
        given = [wanted_of(read) for read in reads]
        wanted = [read.unique() for read in given]
        pull = Pull([self._read(read) for read in wanted])
        request = self._start(pull, wanted, create, priority, is_quiet=True, ahead=steps)
        prefetched = Prefetched(request, wanted, pull)
        return PulledAhead(prefetched, given, self._take, self._customer.forget)

    def _take(self, prefetched: Prefetched) -> None:
        """Wait for the values of a prefetch, which those pushed from now on were made with."""
        self._customer.wait(prefetched.request)
        self._bases.update(prefetched.pull.clocks)

    def pipeline(self, depth: int = 1) -> Pipeline:
        """Several steps under way; see `kv.protocols.Worker.pipeline`."""
        return Pipeline(self, depth)

    def _prefetch_place(self, wanted: Sequence[Wanted], create: bool) -> tuple[int, ...]:
        tables = [read.table.id for read in wanted]
        return (create, self._signature(wanted), *tables)

    def _start(
        self,
        pull: Pull,
        wanted: Sequence[Wanted],
        create: bool,
        priority: int,
        is_quiet: bool = False,
        ahead: int = 0,
    ) -> Request:
        question = Question(
            Command.PULL,
            Flag.PULL,
            [read.table.id for read in wanted],
            self._steps + ahead,
            self.slots,
            _CREATING if create else _READING,
            priority,
            self._signature_to_send(wanted),
        )
        return self._ask(question, pull.reads, pull, is_quiet=is_quiet)

    def _read(self, wanted: Wanted) -> Reading:
        table, out = wanted.table, wanted.out
        if isinstance(table, RemoteDenseTable):
            return DenseRead(table.name, table.shape, table.shares, table.cut, self.buffers, out)
        assert wanted.keylist is not None
        cut = self._cut(table, wanted.keylist.unique)
        return SparseRead(table.name, wanted.keylist, cut, self.buffers, out)

    def push_many(
        self,
        writes: Sequence[Write],
        *,
        weight: float = 1.0,
        priority: int = 0,
        clipping: Clipping | None = None,
    ) -> Request:
        """Push to many tables in one request per server. The caller's arrays may change after."""
        try:
            if clipping is not None:
                writes = clipping.clipped(writes)
            if self._changing is not None and self.way.is_changing:
                self._change_way()
            return self._start_push(_wanted_by(writes), writes, weight, priority)
        except NonFiniteError as error:
            raise self._unsent(error, writes) from None

    def _unsent(self, error: NonFiniteError, writes: Sequence[Write]) -> NonFiniteError:
        """The error of a push that was not sent, knowing whose it was; a server counts it."""
        tables = [own_table(write[0]) for write in writes]
        named = [table for table in tables if table.name == error.table]
        with contextlib.suppress(PsliteError):  # the count is not worth another error
            self._tell(Command.UNSENT, Flag.NONE, self._servers()[:1], named[:1], {"count": 1})
        return error.knowing(step=self._steps, worker=self.rank)

    def push_pull_many(
        self, writes: Sequence[Write], *, weight: float = 1.0, priority: int = 0
    ) -> list[Values]:
        """`push_many` and then `pull_many` of the same, in one request per server."""
        return self.push_pull_wanted(_wanted_by(writes), writes, weight, priority)

    def push_pull_wanted(
        self, wanted: Sequence[Wanted], writes: Sequence[Write], weight: float, priority: int
    ) -> list[Values]:
        """What tables call: write, and read what they have prepared."""
        if self._changing is not None and self.way.is_changing:
            self._change_way()
        pull = Pull([self._read(read) for read in wanted])
        try:
            request = self._start_push(wanted, writes, weight, priority, pull)
        except NonFiniteError as error:
            raise self._unsent(error, writes) from None
        try:
            self._customer.wait(request)
        except BaseException:
            self._customer.forget(request)
            raise
        self._bases.update(pull.clocks)
        return pull.results()

    def _start_push(
        self,
        wanted: Sequence[Wanted],
        writes: Sequence[Write],
        weight: float,
        priority: int,
        pull: Pull | None = None,
    ) -> Request:
        if not isinstance(weight, (int, float, np.number)) or not 0 <= weight <= GREATEST:
            raise SettingError("push", f"weight must be a finite number, 0 or more, not {weight!r}")
        entries = [
            self._gradients(read, read.values_of(write[-1]))
            for read, write in zip(wanted, writes, strict=True)
        ]
        body: dict[str, Any] = {} if weight == 1.0 else {"weight": float(weight)}
        if self._stale is not None and self._stale.retry.most:
            body["again"] = True
        question = Question(
            Command.PUSH if pull is None else Command.PUSH_PULL,
            Flag.PUSH if pull is None else Flag.PUSH | Flag.PULL,
            [read.table.id for read in wanted],
            self._steps,
            self.slots,
            body or None,
            priority,
            self._signature_to_send(wanted),
            self._bases,
        )
        return self._ask(question, entries, pull, writes=entries)

    def _gradients(self, wanted: Wanted, values: Values) -> Writing | CodedWrite:
        write, table = self._write(wanted, values, "gradients"), wanted.table
        if table.link is not self.link:
            table.take_link(self.link)
        encoder = table.encoder
        if encoder is None or encoder.is_idle:
            return write
        return CodedWrite(write, encoder, self.buffers)

    def _write(self, wanted: Wanted, values: Values, what: str) -> Writing:
        table, keylist = wanted.table, wanted.keylist
        if isinstance(table, RemoteDenseTable):
            return DenseWrite(table.name, what, values, table.shares, table.cut)
        assert keylist is not None
        is_shared = keylist.inverse is None  # else merged, into memory of its own
        cut = self._cut(table, keylist.unique)
        return SparseWrite(table.name, what, keylist, values, is_shared, cut, self.buffers)

    def _cut(self, table: Table, keys: Keys) -> Cut:
        # A refused push changes nothing, so where servers may refuse keys it goes in one piece.
        # Likewise what is clipped by the norm of all of it.
        spec = table.spec
        may_split = spec.missing != "error" and not spec.optimizer.clip_global_norm
        servers = len(self.lines().servers)
        # In a weighted mean a push counts by its weight wherever the keys of others are.
        is_everywhere = table.spec.aggregator == "weighted_mean"
        return cut_keys(keys, table.spec.dim, may_split, self.slots, servers, is_everywhere)

    def _signature_to_send(self, wanted: Sequence[Wanted]) -> int:
        """Of the key lists, if they are worth remembering; else 0."""
        keys = 0
        for read in wanted:
            if read.keylist is not None:
                keys += read.keylist.unique.size
        return self._signature(wanted) if keys >= SHORTEST_LIST and self._key_cache else 0

    def _signature(self, wanted: Sequence[Wanted]) -> int:
        lists = [
            (read.table.id, read.keylist.unique) for read in wanted if read.keylist is not None
        ]
        return signature_of(lists, self._list_seed)

    # -- requests -------------------------------------------------------------------------

    def _ask(
        self,
        question: Question,
        entries: Sequence[Entry],
        pull: Pull | None = None,
        finish: Finish | None = None,
        is_quiet: bool = False,
        writes: Sequence[Writing | CodedWrite] = (),
    ) -> Request:
        """Send a request about tables, cut by server and size; returns its timestamp.

        Args:
            pull: takes the answers, if the request reads.
            writes: the entries, if it writes.
        """
        if self._closed:
            raise KVError("this worker is closed")
        if self._cut_before or self._customer.astray:
            self._keep_order()
        lines = self.lines()
        cuts = [entry.cut for entry in entries]
        least = PIECE if self._piece is None else self._piece
        pieces = cut_in_pieces(cuts, len(lines.servers), self._piece_to, least)
        settling = None
        if writes:
            pack(writes, pieces, lines.empty)
            if self.encoders.are_used:
                is_named = question.signature != 0
                settling = compress(writes, pieces, question.command, is_named, self.counts)
        asking = Asking(
            question, entries, pieces, lines, pull, self._customer, lambda: self._newest, settling
        )
        takes = pull is not None or question.signature != 0 or settling is not None
        take: Callable[[Message], bool] | None = asking.take if takes else None
        if writes and self._stale is not None:
            take = self._stale.taking(take)
        made: list[int] = []
        try:
            request = self._customer.new_request(
                [lines.servers[piece.server] for piece in pieces],
                finish,
                take=take,
                recut=asking.recut,
                cuts=[piece.number for piece in pieces],
                is_quiet=is_quiet,
                after=None if settling is None else asking.note,
                made=made,
            )
            asking.send(request, self._customer.oldest)
        except BaseException:
            for timestamp in made:
                self._customer.forget(timestamp)  # nobody will answer it
            raise
        if settling is not None:
            self.encoders.follow(request, settling)
        self._adopt_map()
        return request

    def _servers(self) -> list[int]:
        """Node ids of who is asked about all: the servers that live, or the dispatcher."""
        self._adopt_map()
        return [self.way.node] if self.slots is THROUGH else self._living_servers()

    def _living_servers(self) -> list[int]:
        nodes, gone = self.office.nodes, self.office.view.gone
        return [s for s in server_ids(self.office, self._newest) if s in nodes and s not in gone]

    def _piece_to(self, server: int) -> int:
        """Bytes of rows in a piece to the server of that rank."""
        if self._piece is not None:
            return self._piece
        if self.slots.has_backups:  # what a server applies of a piece it applies under one lock
            return PIECE
        is_shared = self.office.van.shares_memory(self.lines().servers[server])
        return SHARED_PIECE if is_shared else PIECE

    def ask_all(
        self,
        command: Command,
        tables: Sequence[Table] = (),
        body: Any = None,
        finish: Finish | None = None,
    ) -> Any:
        """Ask every server the same and wait; the result of `finish` over the answers."""
        self._let_pushes_arrive()
        servers = self._servers()
        self._define_where_new(tables, servers)
        return self._customer.wait(self._tell(command, Flag.NONE, servers, tables, body, finish))

    def ask_one(self, server: int, command: Command, table: Table, body: Any) -> Message:
        """Ask one server about a table and wait; its answer."""
        self._let_pushes_arrive()
        asked = self._servers()
        if self.slots is THROUGH:
            (through,) = asked
            server, body = through, addressed(body, server)
        self._define_where_new([table], [server])
        request = self._tell(command, Flag.NONE, [server], [table], body, finish=list)
        answers: list[Message] = self._customer.wait(request)
        return answers[0]

    def ask_owners(
        self, command: Command, wanted: Wanted, values: Values | None = None
    ) -> list[Message]:
        """Ask the owners of keys or blocks, with the `values` of theirs, and wait; all answers."""
        self._let_pushes_arrive()
        if self._changing is not None and self.way.is_changing:
            self._change_way()
        question = Question(command, Flag.PUSH, [wanted.table.id], self._steps, self.slots)
        if values is None:
            request = self._ask(question, [self._read(wanted)], finish=unfolded)
        else:
            write = self._write(wanted, values, "values")
            request = self._ask(question, [write], finish=unfolded, writes=[write])
        answers: list[Message] = self._customer.wait(request)
        return answers

    def _pushes_under_way(self) -> list[tuple[Place, Message]]:
        """The messages of pushes that have no answer."""
        return [item for item in self._customer.unanswered() if item[1].meta.cmd in PUSHES]

    def _let_pushes_arrive(self) -> None:
        """Before what is not a pull or push: one that is sent again would come after it."""
        under_way = {place[0] for place, _ in self._pushes_under_way()}
        if under_way:
            self.office.wait(
                lambda: not any(map(self._customer.is_open, under_way)),
                what=lambda: "answers to the pushes before",
            )

    def _tell(
        self,
        command: Command,
        flags: Flag,
        servers: Sequence[int],
        tables: Sequence[Table] = (),
        body: Any = None,
        finish: Finish | None = None,
        before: Sequence[tuple[Place, Message]] = (),
    ) -> Request:
        """Send a request without arrays; returns its timestamp.

        Args:
            before: pushes that the servers must have had first.
        """
        if self._closed:
            raise KVError("this worker is closed")
        clocks: tuple[Clock, ...] = tuple((table.id, self._steps, ()) for table in tables)
        through = bool(servers) and is_dispatcher(servers[0])
        with self._customer.sending() as made:
            timestamp = self._customer.new_request(
                servers,
                unfolding(finish) if through else finish,
                recut=self._tell_directly if through else None,
                made=made,
            )
            oldest = self._customer.oldest
            for server in servers:
                meta = Meta(
                    recipient=server,
                    flags=flags,
                    app=TABLES_APP,
                    timestamp=timestamp,
                    oldest=oldest,
                    piece=1,
                    map_version=self.slots.version,
                    cmd=command,
                    clocks=clocks,
                    body=_after(body, before, server) if before else body,
                )
                self._customer.send(Message(meta))
        return timestamp

    def _tell_directly(self, message: Message) -> bool:
        """Tell the servers what a dispatcher was told that has died."""
        if message.meta.piece > 1:  # it was told them, and who has gone needs it no more
            return False
        first = message.meta.timestamp
        before = [item for item in self._pushes_under_way() if item[0][0] < first]
        made = told_directly(
            message, self._living_servers(), lambda body, server: _after(body, before, server)
        )
        for each in made:
            each.meta.map_version = self._newest.version
            self._customer.send(each)
        return True

    def set_lr(self, table: SparseTable | DenseTable, lr: float) -> None:
        """From the next update on the optimiser's learning rate is `lr`, on every server.

        Raises:
            SettingError: `lr` is no finite number of 0 or more.
        """
        self.ask_all(Command.SET_LR, [own_table(table)], {"lr": learning_rate(table.name, lr)})

    def staleness(self, table: SparseTable | DenseTable) -> dict[str, int]:
        """How stale the pushes to the table were, see `kv.protocols.Worker.staleness`."""
        return together(stats["staleness"] for stats in own_table(table).stats())

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Return when every server has answered.

        Raises:
            KVError: what a server's handler raised, naming table and node.
            RequestTimeoutError: not all have answered after `timeout` seconds.
            ClusterStoppedError: the cluster ended.
        """
        self._customer.wait(request, timeout)

    # -- keeping step ---------------------------------------------------------------------

    def customer_of(self, app: int) -> Customer:
        """This worker's end of its conversation with another application of the servers."""
        if app not in self._others:
            self._others[app] = Customer(app, 0, self.office, make_error=remote_error)
        return self._others[app]

    @property
    def steps(self) -> int:
        """Steps completed; of a worker that was started again, those of its former lives, too."""
        if self._has_rounds:
            self._begin()
        return self._steps

    def _begin(self) -> None:
        """Go on where a former life of this worker was, if there was one and the others wait.

        It may have said the end of a step to some servers only: that step counts everywhere. What
        it pushed after that is to be pushed again, so rounds forget it.
        """
        if self._has_begun:
            return
        self._has_begun = True
        office = self.office
        if office.shape.failures.on_worker == "restart" and office.node_id in office.view.fenced:
            self._steps = max(self._steps, self._tell_beginning(None))
            self._tell_beginning(self._steps)

    def _tell_beginning(self, clock: int | None) -> int:
        """Begin with that step, or None: ask; the most steps that a server knows of this worker."""
        known: int = self.ask_all(
            Command.BEGIN,
            body={"clock": clock},
            finish=lambda answers: max(answer.meta.body["completed"] for answer in answers),
        )
        return known

    def resume_at(self, steps: int) -> None:
        """Go on after so many steps; the servers know them already."""
        self._steps = steps

    @property
    def is_first(self) -> bool:
        """Whether this worker leads what all do together."""
        return self._gatherer.is_collector

    def ranks_here(self) -> set[int]:
        """Ranks of the workers that a barrier waits for."""
        return self._gatherer.awaited()

    def passed(self, barrier: str) -> int:
        """How often that barrier was passed, as far as this worker knows."""
        return self.office.passed(Group.WORKERS, barrier)

    def step(self) -> None:
        """This worker's step is over; raises the error of a push that nobody has waited for.

        The step counts all the same.
        """
        if self._has_rounds:
            # A push that is under way, or must be sent again, belongs before the step's end.
            if (self._may_move or self.office.view.map_version) and not self.way.is_open:
                # Another server may become the owner of a push's rows. It would not know that the
                # push is to come, so it must be there before any server hears of the step's end.
                self.office.wait(
                    lambda: not self._pushes_under_way(), what=lambda: "the pushes of a step"
                )
            before = self._pushes_under_way()
            flags, body = Flag.PUSH | Flag.EVERYWHERE, {"clock": self._steps}
            self._tell(Command.STEP, flags, self._servers(), body=body, before=before)
            self._between_steps = self._customer.requests
        self._steps += 1
        self._customer.raise_failed()

    def finish(self) -> None:
        """This worker pushes no more and nobody waits for its steps; it may still pull."""
        self._customer.wait_all()
        self.ask_all(Command.FINISH)
        self._has_finished = True

    def rest(self) -> None:
        """Nobody waits for this worker's steps from now on, though it may push and step again.

        A second call does nothing, nor does any where no table counts steps.
        """
        if self._has_rounds and not self._rests:
            self._rests = True
            self._customer.wait_all()
            self.ask_all(Command.FINISH, body={"rests": True})

    def barrier(self, name: str = "") -> None:
        """Return when all workers have come here and their pushes are answered."""
        self._customer.wait_all()
        self.office.barrier(Group.WORKERS, name)

    def gather(self, value: Any) -> list[Any] | None:
        """Collect a value of each worker at rank 0; see `kv.protocols.Worker.gather`."""
        return self._gatherer.gather(value)

    def shards(
        self,
        name: str,
        records: int,
        *,
        epochs: int = 1,
        unit: int = 1,
        grain: int = 1,
        in_parts: bool = False,
    ) -> Shards:
        """The pieces of a data set that fall to this worker; see `kv.protocols.Worker.shards`."""
        parts = self.num_workers if in_parts else 1
        size = {"records": records, "epochs": epochs, "unit": unit, "grain": grain}
        data = DataSet(name=name, parts=parts, **size)
        return Shards(self.leases, data, self._customer.wait_all, self.rest)

    def has_begun(self, name: str) -> bool:
        """Whether pieces of that data set were given away."""
        return name in self.leases.look().begun

    def close(self, failure: str | None = None) -> None:
        """Wait for what is under way, then say goodbye.

        Args:
            failure: why this worker ends early; nothing is waited for then.
        """
        if self._closed:
            return
        try:
            if failure is None and not self.office.is_stopped:
                self._customer.wait_all()
                self.ask_all(Command.FINISH)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._closed = True
            self.office.finalize(failure)
            if self.on_close is not None:
                self.on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # That another node failed is no failure of this one, and it is known where it matters.
        is_failure = error is not None and not isinstance(error, ClusterStoppedError)
        if isinstance(error, SystemExit):
            is_failure = error.code not in (None, 0)
        self.close(f"{type(error).__name__}: {error}" if is_failure else None)

    def __repr__(self) -> str:
        return f"<RemoteWorker {self.office!r} step={self._steps}>"


def _wanted_by(writes: Sequence[Write]) -> list[Wanted]:
    return [wanted_of(write[:-1] if len(write) == 3 else write[0]) for write in writes]


def _after(body: Any, before: Sequence[tuple[Place, Message]], server: int) -> dict[str, Any]:
    """The body of a request that `server` is to look at after those pushes to it."""
    after = [[timestamp, piece] for (timestamp, node, piece), _ in before if node == server]
    return {**body, "after": after} if after else body
