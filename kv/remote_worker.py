"""A worker of a cluster: its tables' requests, its steps, barriers and gathers.

Fits `kv.protocols.Worker`, as `kv.local_worker.LocalWorker` does for one process. How its requests
reach servers is in `kv.conversation`, its steps are in `kv.keeping_step`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from kv.clipping import Clipping
from kv.compressing import CodedWrite
from kv.compression.settings import NO_RULES, Rules
from kv.consistency.settings import Consistency, SemiSync
from kv.consistency.staleness import together
from kv.cutting import Cut, cut_keys
from kv.defining import DefinesTables
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.way import unfolded
from kv.errors import NonFiniteError, SettingError
from kv.given import clipping_of, reads_of, steps_ahead, weight_of, writes_of
from kv.keeping_step import KeepsStep
from kv.keylists.merged import MergedLists
from kv.keylists.signature import signature_of
from kv.pipelining import Pipeline
from kv.prefetching import Prefetched, Prefetches, PulledAhead
from kv.protocols import DenseTable, Read, Request, SparseTable, Write
from kv.pulling import DenseRead, Pull, Reading, SparseRead
from kv.pushing import DenseWrite, SparseWrite, Writing
from kv.question import Question
from kv.retrying import Retry
from kv.settings import learning_rate
from kv.spec import TableSpec
from kv.table_protocol import Command, table_id
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
from postoffice.errors import ClusterStoppedError
from postoffice.postoffice import Postoffice
from van.errors import PsliteError
from van.message import Flag, Message

_CREATING, _READING = {"create": True}, {"create": False}  # bodies of pulls; nobody changes them
SHORTEST_LIST = 1500  # keys of a request; fewer are sent again, which is as quick as remembering


class RemoteWorker(KeepsStep, DefinesTables[RemoteSparseTable, RemoteDenseTable]):
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
        retry: Retry = Retry(),
        is_deterministic: bool = False,
        compression: Rules = NO_RULES,
        balance: BalanceConfig = BalanceConfig(),
    ) -> None:
        self._mode, self._seed = Consistency.of(mode), seed
        super().__init__(
            office,
            has_rounds=self._mode.counts_steps,
            may_move=may_move,
            seed=seed,
            key_cache=key_cache,
            key_deltas=key_deltas,
            piece=piece,
            max_staleness=max_staleness,
            retry=retry,
            compression=compression,
            balance=balance,
        )
        self.is_deterministic = is_deterministic
        self.on_close: Callable[[], None] | None = None  # called once, after the goodbye
        self.merged = MergedLists()
        self._list_seed = secrets.randbits(64)
        self._prefetches = Prefetches()

    def _sparse(self, spec: TableSpec) -> RemoteSparseTable:
        return RemoteSparseTable(self, self._define(spec))

    def _dense(self, spec: TableSpec) -> RemoteDenseTable:
        return RemoteDenseTable(self, self._define(spec))

    def _define(self, spec: TableSpec) -> TableSpec:
        spec = self.encoders.resolve(spec.resolved(self._mode, self._seed))
        if spec.mode is not None and spec.mode.counts_steps:
            self._begin()
        if isinstance(spec.mode, SemiSync):
            self._position.add(table_id(spec.name))
        self.ask_all(Command.DEFINE, body=spec.to_dict())
        self._specs[table_id(spec.name)] = spec
        self._defined[table_id(spec.name)] = self._lives(self._servers())
        if spec.mode is not None and spec.mode.counts_steps and not self._has_rounds:
            self._has_rounds = True
            if self._steps:  # those before the first table with rounds were not said
                self.ask_all(Command.STEP, body={"clock": self._steps - 1})
        return spec

    def pull_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> list[Values]:
        """Pull from many tables in one request per server; answers in the order of `reads`."""
        return self.pull_wanted([wanted_of(read) for read in reads_of(reads)], create, priority)

    def pull_wanted(self, wanted: Sequence[Wanted], create: bool, priority: int) -> list[Values]:
        """What tables call: read what they have prepared."""
        if self._prefetches:
            found = self._prefetches.take(self._prefetch_place(wanted, create), wanted)
            if found is not None:
                self.counts["prefetch_used"] += 1
                self._take(found)
                return found.values_for(wanted)
        if self._changing is not None:
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
        if self._changing is not None:
            self._change_way()
        wanted = [wanted_of(read).unique() for read in reads_of(reads)]
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
        steps = steps_ahead(steps)
        given = [wanted_of(read) for read in reads_of(reads)]
        self._change_way()
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
        writes, clipping = writes_of(writes), clipping_of(clipping)
        try:
            if clipping is not None:
                _wanted_by(writes)  # whether they can be written at all
                writes = clipping.clipped(writes)
            if self._changing is not None:
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
        writes = writes_of(writes)
        return self.push_pull_wanted(_wanted_by(writes), writes, weight, priority)

    def push_pull_wanted(
        self, wanted: Sequence[Wanted], writes: Sequence[Write], weight: float, priority: int
    ) -> list[Values]:
        """What tables call: write, and read what they have prepared."""
        if self._changing is not None:
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
        weight = weight_of(weight)
        entries = [
            self._gradients(read, read.values_of(write[-1]))
            for read, write in zip(wanted, writes, strict=True)
        ]
        body: dict[str, Any] = {} if weight == 1.0 else {"weight": weight}
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
        self._is_amid_step = True
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

    def ask_owners(
        self, command: Command, wanted: Wanted, values: Values | None = None
    ) -> list[Message]:
        """Ask the owners of keys or blocks, with the `values` of theirs, and wait; all answers."""
        self._let_pushes_arrive()
        self._change_way()
        question = Question(command, Flag.PUSH, [wanted.table.id], self._steps, self.slots)
        if values is None:
            request = self._ask(question, [self._read(wanted)], finish=unfolded)
        else:
            write = self._write(wanted, values, "values")
            request = self._ask(question, [write], finish=unfolded, writes=[write])
        answers: list[Message] = self._customer.wait(request)
        return answers

    def set_lr(self, table: SparseTable | DenseTable, lr: float) -> None:
        """From the next update on the optimiser's learning rate is `lr`, on every server.

        Raises:
            SettingError: `lr` is no finite number of 0 or more.
        """
        own = own_table(table)
        self.ask_all(Command.SET_LR, [own], {"lr": learning_rate(own.name, lr)})

    def staleness(self, table: SparseTable | DenseTable) -> dict[str, int]:
        """How stale the pushes to the table were, see `kv.protocols.Worker.staleness`."""
        return together(stats["staleness"] for stats in own_table(table).stats())

    def close(self, failure: str | None = None) -> None:
        """Wait for what is under way, then say goodbye.

        Args:
            failure: why this worker ends early; nothing is waited for then.
        """
        if self._closed:
            return
        try:
            if failure is None and not self.office.is_stopped:
                self._warn_of_steps()
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
