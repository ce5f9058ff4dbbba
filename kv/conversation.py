"""A worker's conversation with those who have its tables: servers, or a dispatcher in their place.

A request goes to each server that owns some of its keys, all tables of a `pull_many` in one
message, or in several where it is large (`kv.cutting`). By which map it is cut, and which way it
goes, is decided between two requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kv.asking import Asking
from kv.compressing import CodedWrite, Encoders, compress
from kv.compression.settings import NO_RULES, WORKER_DISPATCHER, WORKER_SERVER, Rules
from kv.cutting import PIECE, SHARED_PIECE, cut_in_pieces
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.busy import BusyLink
from kv.dispatcher.changing import Changing
from kv.dispatcher.way import (
    THROUGH,
    Life,
    Way,
    addressed,
    is_dispatcher,
    told_directly,
    unfolding,
)
from kv.errors import KVError
from kv.given import timeout_of
from kv.keylists.sent import SentLists
from kv.lines import Lines, server_ids
from kv.placement import SlotMap
from kv.protocols import Request
from kv.pulling import Pull
from kv.pushing import Writing, pack
from kv.question import Entry, Question
from kv.remote import remote_error
from kv.retrying import Retry
from kv.stale import StalePushes
from kv.table_protocol import PUSHES, TABLES_APP, Command
from kv.tables import Table
from postoffice.customer import Customer
from postoffice.postoffice import Postoffice
from postoffice.request import Finish
from postoffice.resending import Place
from postoffice.view import ClusterView
from van.buffers import Buffers
from van.message import Clock, Flag, Message, Meta


class Conversation(ABC):
    """Sends a worker's requests. Arguments as for `kv.remote_worker.RemoteWorker`.

    Attributes:
        way: through a dispatcher, or not.
        slots: the map that requests are cut by; `THROUGH` for those to a dispatcher.
        link: which one gradients cross first, for their compression.
        encoders: what compresses gradients; its `stats` say what that saved.
        counts: key lists sent, named and sent again, bytes of keys and of values saved, prefetches
            used.
    """

    def __init__(
        self,
        office: Postoffice,
        *,
        seed: int,
        key_cache: int = 64 << 20,
        key_deltas: str = "auto",
        piece: int | None = None,
        max_staleness: int | None = None,
        retry: Retry = Retry(),
        compression: Rules = NO_RULES,
        balance: BalanceConfig = BalanceConfig(),
    ) -> None:
        self.office = office
        self._customer = Customer(TABLES_APP, 0, office, make_error=remote_error)
        self._others: dict[int, Customer] = {}  # by application
        self._steps = 0
        self._defined: dict[int, set[Life]] = {}  # table -> lives of servers that know it
        self.max_staleness = max_staleness
        self._retries: StalePushes | None = None
        if max_staleness is not None:
            self._retries = StalePushes(self._customer, office.van, retry, seed)
        self.way = Way(office)
        self._changing: Changing | None = None
        if self.way.is_possible:
            self._changing = Changing(office, self._customer, self.way, self._introduction)
        self._newest = SlotMap.even(max(1, office.shape.servers))
        self._lines: Lines | None = None
        self._take_way()
        office.on_view.append(self._see)
        self._cut_before = 0  # requests below this timestamp were cut by an older map
        self._closed = False
        self.counts: Counter[str] = Counter()
        self.buffers = Buffers()
        self._key_cache, self._key_deltas, self._piece = key_cache, key_deltas, piece
        self._sent = SentLists(key_cache)
        self.encoders = Encoders(compression, self._customer.is_open)
        if balance.when_busy:
            self.encoders.compress_when_busy(balance.when_busy)
            BusyLink(
                office, balance, self.encoders.switch, lambda: self.counts["value_bytes_saved"]
            )

    @property
    @abstractmethod
    def _may_change(self) -> bool:
        """Whether a request may go another way than the one before."""

    @abstractmethod
    def _introduction(self) -> dict[str, Any]:
        """What a dispatcher must know of this worker."""

    # -- which way, and by which map -------------------------------------------------------------

    def _take_way(self) -> None:
        """Requests go the way that is used from here on."""
        is_through = self.way.is_open
        self.slots = THROUGH if is_through else self._newest
        self._lines = None
        self.link = WORKER_DISPATCHER if is_through else WORKER_SERVER
        self._stale = None if is_through else self._retries  # a dispatcher tries again itself

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
            self._take_way()
            self._cut_before = self._customer.requests

    def _change_way(self) -> None:
        """Before a request is made: go the way that is wanted now, where one may."""
        if self._changing is None or not self._changing.is_due or not self._may_change:
            return
        self._changing.change()
        self._take_way()
        if self.way.used is not None:  # it was told all tables as this worker came
            for lives in self._defined.values():
                lives.add(self.way.used)

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

    # -- requests --------------------------------------------------------------------------------

    def _must_be_open(self) -> None:
        """Raise KVError if this worker is closed: what it would wait for cannot come any more."""
        if self._closed:
            raise KVError("this worker is closed")

    def _servers(self) -> list[int]:
        """Node ids of who is asked about all: the servers that live, or the dispatcher."""
        self._adopt_map()
        return [self.way.node] if self.slots is THROUGH else self._living_servers()

    def _living_servers(self) -> list[int]:
        nodes, gone = self.office.nodes, self.office.view.gone
        return [s for s in server_ids(self.office, self._newest) if s in nodes and s not in gone]

    def _lives(self, servers: Sequence[int]) -> set[Life]:
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

    def _piece_to(self, server: int) -> int:
        """Bytes of rows in a piece to the server of that rank."""
        if self._piece is not None:
            return self._piece
        if self.slots.has_backups:  # what a server applies of a piece it applies under one lock
            return PIECE
        is_shared = self.office.van.shares_memory(self.lines().servers[server])
        return SHARED_PIECE if is_shared else PIECE

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
        self._must_be_open()
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

    def ask_all(
        self,
        command: Command,
        tables: Sequence[Table] = (),
        body: Any = None,
        finish: Finish | None = None,
    ) -> Any:
        """Ask every server the same and wait; the result of `finish` over the answers."""
        self._let_pushes_arrive()
        self._change_way()
        servers = self._servers()
        self._define_where_new(tables, servers)
        return self._customer.wait(self._tell(command, Flag.NONE, servers, tables, body, finish))

    def ask_one(self, server: int, command: Command, table: Table, body: Any) -> Message:
        """Ask one server about a table and wait; its answer."""
        self._let_pushes_arrive()
        self._change_way()
        asked = self._servers()
        if self.slots is THROUGH:
            (through,) = asked
            server, body = through, addressed(body, server)
        self._define_where_new([table], [server])
        request = self._tell(command, Flag.NONE, [server], [table], body, finish=list)
        answers: list[Message] = self._customer.wait(request)
        return answers[0]

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Return when every server has answered.

        Raises:
            SettingError: `timeout` is no number.
            KVError: what a server's handler raised, naming table and node.
            RequestTimeoutError: not all have answered after `timeout` seconds.
            ClusterStoppedError: the cluster ended.
        """
        self._customer.wait(request, timeout_of(timeout))

    def customer_of(self, app: int) -> Customer:
        """This worker's end of its conversation with another application of the servers."""
        self._must_be_open()
        if app not in self._others:
            self._others[app] = Customer(app, 0, self.office, make_error=remote_error)
        return self._others[app]

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
        take: Callable[[Message], bool] | None = None,
    ) -> Request:
        """Send a request without arrays; returns its timestamp.

        Args:
            before: pushes that the servers must have had first.
            take: called with each answer.
        """
        self._must_be_open()
        clocks: tuple[Clock, ...] = tuple((table.id, self._steps, ()) for table in tables)
        through = bool(servers) and is_dispatcher(servers[0])
        with self._customer.sending() as made:
            timestamp = self._customer.new_request(
                servers,
                unfolding(finish) if through else finish,
                take=take,
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


def _after(body: Any, before: Sequence[tuple[Place, Message]], server: int) -> dict[str, Any]:
    """The body of a request that `server` is to look at after those pushes to it."""
    after = [[timestamp, piece] for (timestamp, node, piece), _ in before if node == server]
    return {**body, "after": after} if after else body
