"""A worker of a cluster: its tables' requests, its steps, barriers and gathers.

Fits `kv.protocols.Worker`, as `kv.local_worker.LocalWorker` does for one process. A request goes to
each server that owns some of its keys, all tables of a `pull_many` in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kv.defining import DefinesTables
from kv.errors import KVError
from kv.gather import Gatherer
from kv.placement import SlotMap
from kv.protocols import Read, Request, Write
from kv.remote import remote_error
from kv.routing import split
from kv.spec import TableSpec
from kv.table_protocol import TABLES_APP, Command
from kv.tables import (
    Keys,
    RemoteDenseTable,
    RemoteSparseTable,
    Table,
    Values,
    answer_of,
    keys_of,
    merged_write,
    own_table,
)
from postoffice.customer import Customer, Finish
from postoffice.node import Group, Role
from postoffice.postoffice import Postoffice
from van.message import Clock, Flag, Message, Meta

Requests = dict[int, tuple[tuple[Clock, ...], list[NDArray[Any]]]]
"""What each server is asked: its tables' clocks and its arrays."""


class RemoteWorker(DefinesTables[RemoteSparseTable, RemoteDenseTable]):
    """A worker node's tables, steps and collectives. See `kv.protocols.Worker`.

    Args:
        office: the node, not yet started.
        mode: the job's mode, of tables that name none.
        seed: of initial values of tables.
    """

    def __init__(self, office: Postoffice, mode: str = "async", seed: int = 1) -> None:
        self.office = office
        self._mode, self._seed = mode, seed
        self._customer = Customer(TABLES_APP, 0, office, make_error=remote_error)
        self._gatherer = Gatherer(office)
        self._steps = 0
        self._has_rounds = mode != "async"  # a table may work in rounds: ends of steps are said
        self._slots = SlotMap.even(max(1, office.shape.servers))
        self._closed = False
        self.on_close: Callable[[], None] | None = None  # called once, after the goodbye

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
        spec = spec.resolved(self._mode, self._seed)
        self.ask_all(Command.DEFINE, body=spec.to_dict())
        if spec.mode != "async" and not self._has_rounds:
            self._has_rounds = True
            if self._steps:  # those before the first table with rounds were not said
                self.ask_all(Command.STEP, body={"clock": self._steps - 1})
        return spec

    # -- moving values --------------------------------------------------------------------

    def pull_many(self, reads: Sequence[Read], *, create: bool = True) -> list[Values]:
        """Pull from many tables in one request per server; answers in the order of `reads`."""
        tables = [own_table(read[0] if isinstance(read, tuple) else read) for read in reads]
        keylists = [keys_of(read) for read in reads]
        cuts = [self._cut(keylist.unique) for keylist in keylists]
        outs = [
            np.empty((keylist.unique.size, table.spec.dim), np.float32)
            for table, keylist in zip(tables, keylists, strict=True)
        ]
        wanted = self._per_server(cuts)

        def finish(answers: list[Message]) -> None:
            for answer in answers:
                places = wanted[answer.meta.sender]
                for place, values in zip(places, answer.arrays, strict=True):
                    group = cuts[place][answer.meta.sender]
                    if values.shape != (len(group), outs[place].shape[1]):
                        raise KVError(f"a server answered with values of shape {values.shape}")
                    outs[place][group] = values

        requests: Requests = {
            server: (
                self._clocks([tables[place] for place in places]),
                [keylists[place].unique[cuts[place][server]] for place in places],
            )
            for server, places in wanted.items()
        }
        self.wait(self._ask(Command.PULL, Flag.PULL, requests, {"create": create}, finish))
        return [
            answer_of(table, keylist, out)
            for table, keylist, out in zip(tables, keylists, outs, strict=True)
        ]

    def push_many(self, writes: Sequence[Write]) -> Request:
        """Push to many tables in one request per server. The caller's arrays may change after."""
        tables = [own_table(write[0]) for write in writes]
        merged = [merged_write(write) for write in writes]
        cuts = [self._cut(keys) for keys, _ in merged]
        requests: Requests = {}
        for server, places in self._per_server(cuts).items():
            arrays: list[NDArray[Any]] = []
            for place in places:
                keys, grads = merged[place]
                group = cuts[place][server]
                # Indexing copies: the van may send from this memory after we return.
                arrays += [keys[group], grads[group]]
            requests[server] = (self._clocks([tables[place] for place in places]), arrays)
        return self._ask(Command.PUSH, Flag.PUSH, requests)

    def _cut(self, keys: Keys) -> dict[int, NDArray[np.int64]]:
        """Positions of `keys` by the server that owns them; servers without any are left out."""
        servers = self.office.members(Role.SERVER)
        order, counts = split(self._slots, keys, len(servers))
        groups = np.split(order, np.cumsum(counts)[:-1])
        return {s: group for s, group in zip(servers, groups, strict=True) if group.size}

    @staticmethod
    def _per_server(cuts: Sequence[dict[int, Any]]) -> dict[int, list[int]]:
        """Which of the tables (by place in the request) each server has keys of."""
        wanted: dict[int, list[int]] = {}
        for place, cut in enumerate(cuts):
            for server in cut:
                wanted.setdefault(server, []).append(place)
        return wanted

    def _clocks(self, tables: Sequence[Table]) -> tuple[Clock, ...]:
        return tuple((table.id, self._steps, ()) for table in tables)

    # -- requests -------------------------------------------------------------------------

    def _ask(
        self,
        command: Command,
        flags: Flag,
        requests: Requests,
        body: Any = None,
        finish: Finish | None = None,
    ) -> int:
        """Send one message per server; returns the request's timestamp."""
        if self._closed:
            raise KVError("this worker is closed")
        timestamp = self._customer.new_request(list(requests), finish)
        oldest = self._customer.oldest
        with self._customer.sending(timestamp):
            for server, (clocks, arrays) in requests.items():
                meta = Meta(
                    recipient=server,
                    flags=flags,
                    app=TABLES_APP,
                    timestamp=timestamp,
                    oldest=oldest,
                    piece=1,
                    cmd=command,
                    clocks=clocks,
                    body=body,
                )
                self.office.send(Message(meta, arrays))
        return timestamp

    def ask_all(
        self,
        command: Command,
        tables: Sequence[Table] = (),
        body: Any = None,
        finish: Finish | None = None,
    ) -> Any:
        """Ask every server the same and wait; the result of `finish` over the answers."""
        clocks = self._clocks(tables)
        servers = self.office.members(Role.SERVER)
        requests = {server: (clocks, list[NDArray[Any]]()) for server in servers}
        return self._customer.wait(self._ask(command, Flag.NONE, requests, body, finish))

    def ask_one(self, server: int, command: Command, table: Table, body: Any) -> Message:
        """Ask one server about a table and wait; its answer."""
        request = self._ask(
            command, Flag.NONE, {server: (self._clocks([table]), [])}, body, finish=list
        )
        answers: list[Message] = self._customer.wait(request)
        return answers[0]

    def ask_owners(
        self, command: Command, table: Table, keys: Keys, values: Values | None = None
    ) -> list[Message]:
        """Ask the owners of `keys`, with the `values` of theirs, and wait; all answers."""
        requests: Requests = {}
        for server, group in self._cut(keys).items():
            arrays: list[NDArray[Any]] = [keys[group]]
            if values is not None:
                arrays.append(values[group])
            requests[server] = (self._clocks([table]), arrays)
        timestamp = self._ask(command, Flag.PUSH, requests, finish=list)
        answers: list[Message] = self._customer.wait(timestamp)
        return answers

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Return when every server has answered.

        Raises:
            KVError: what a server's handler raised, naming table and node.
            RequestTimeoutError: not all have answered after `timeout` seconds.
            ClusterStoppedError: the cluster ended.
        """
        self._customer.wait(request, timeout)

    # -- keeping step ---------------------------------------------------------------------

    def step(self) -> None:
        """This worker's step is over; raises the error of a push that nobody has waited for."""
        self._customer.raise_failed()
        if self._has_rounds:
            servers = self.office.members(Role.SERVER)
            requests: Requests = {server: ((), []) for server in servers}
            flags = Flag.PUSH | Flag.EVERYWHERE
            self._ask(Command.STEP, flags, requests, {"clock": self._steps})
        self._steps += 1

    def barrier(self, name: str = "") -> None:
        """Return when all workers have come here and their pushes are answered."""
        self._customer.wait_all()
        self.office.barrier(Group.WORKERS, name)

    def gather(self, value: Any) -> list[Any] | None:
        """Collect a value of each worker at rank 0; see `kv.protocols.Worker.gather`."""
        return self._gatherer.gather(value)

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
        is_failure = error is not None
        if isinstance(error, SystemExit):
            is_failure = error.code not in (None, 0)
        self.close(f"{type(error).__name__}: {error}" if is_failure else None)

    def __repr__(self) -> str:
        return f"<RemoteWorker {self.office!r} step={self._steps}>"
