"""What a dispatcher asks of servers: merged pushes, its workers' pulls, and what it passes on.

Towards servers it is a worker: requests are cut by the owners of their rows, sent again until they
are answered, and cut anew when rows move (`kv.asking`). A push goes to each server in one message:
two of one push could share a slot, by which servers remember what is inside.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kv.asking import Asking
from kv.compressing import CodedWrite, Encoders, compress
from kv.compression.settings import NO_RULES
from kv.cutting import Piece, cut_keys, pieces_of
from kv.dispatcher.aggregating import Part
from kv.dispatcher.ahead import AheadCoded, AheadWrite
from kv.dispatcher.asking import Upstream
from kv.dispatcher.copies import Copies
from kv.dispatcher.hotkeys import Masks
from kv.dispatcher.known_tables import KnownTable
from kv.dispatcher.receiving import Keys, Values
from kv.dispatcher.refreshing import Refresh, RowsHaveMovedError, reads_of
from kv.dispatcher.refusing import Error, Refusals
from kv.dispatcher.resolving import Resolved
from kv.dispatcher.versions import VersionClock
from kv.dispatcher.worker_pull import WorkerPull
from kv.errors import KVError
from kv.keylist import KeyList
from kv.keylists.sent import SentLists
from kv.keylists.signature import signature_of
from kv.lines import Lines, server_ids
from kv.placement import SlotMap
from kv.pulling import DenseRead, Pull, Reading, SparseRead
from kv.pushing import DenseWrite, SparseWrite, Writing, pack
from kv.question import Entry, Question
from kv.remote import remote_error
from kv.remote_worker import SHORTEST_LIST
from kv.retrying import Retry
from kv.stale import StalePushes
from kv.table_protocol import PUSHES, TABLES_APP, Command
from postoffice.postoffice import Postoffice
from postoffice.request import Recut, Take
from postoffice.view import ClusterView
from van.buffers import Buffers
from van.message import Clock, Flag, Message, Meta

_WHOLE = 1 << 62  # bytes of a piece: nothing is cut by size
Found = Pull | Refresh
"""What a pull brings: `results` and `clocks`."""

Answered = Callable[[BaseException | None, Error | None], None]
"""Called when a request is over: what went wrong, and how a server put it, if one did."""


class Servers:
    """The servers as a dispatcher reaches them.

    Args:
        office: the dispatcher's node.
        lock: the dispatcher's, which is held when something is called back.
        receive: takes what workers ask.
        key_cache, key_deltas: as for workers, see `kv.remote_worker`.
        max_staleness, retry, seed: of pushes that servers refuse as too stale, likewise.
        copy_size: bytes of a table's rows that are kept to be refreshed; 0: none.

    Attributes:
        versions: the clocks that they have answered with.
        slots: who owns what, as known here.
        encoders: what compresses merged gradients.
        copies: rows that were pulled.
    """

    def __init__(
        self,
        office: Postoffice,
        lock: threading.RLock,
        receive: Callable[[Message], None],
        key_cache: int = 64 << 20,
        key_deltas: str = "auto",
        max_staleness: int | None = None,
        retry: Retry = Retry(),
        seed: int = 1,
        copy_size: int = 0,
    ) -> None:
        self.copies = Copies(copy_size)
        self.office, self._lock, self.versions = office, lock, VersionClock()
        self.slots = SlotMap.even(max(1, office.shape.servers))
        self.counts: Counter[str] = Counter()
        self.pushes = Upstream(TABLES_APP, 0, office, remote_error, receive)
        self.encoders = Encoders(NO_RULES, self.pushes.is_open)
        self._stale: StalePushes | None = None
        if max_staleness is not None:
            self._stale = StalePushes(self.pushes, office.van, retry, seed)
        self._pulls: dict[int, Upstream] = {}
        self._key_deltas, self._key_cache, self._buffers = key_deltas, key_cache, Buffers()
        self._sent, self._list_seed = SentLists(key_cache), secrets.randbits(64)
        self._lines: Lines | None = None

    # -- who is there ---------------------------------------------------------------------------

    def see(self, view: ClusterView) -> None:
        """What the scheduler says has changed."""
        if view.map_version > self.slots.version:
            slots = SlotMap.from_bytes(view.map_blob)
            self.slots = replace(slots, version=view.map_version)
        self._lines = None  # servers may have come

    def living(self) -> list[int]:
        """Ids of the servers that live."""
        nodes, gone = self.office.nodes, self.office.view.gone
        return [s for s in server_ids(self.office, self.slots) if s in nodes and s not in gone]

    @property
    def lines(self) -> Lines:
        if self._lines is None:
            self._lines = Lines.of(
                self.office, self.slots, self._key_deltas, self._sent, self.counts, self._buffers
            )
        return self._lines

    def pulls_of(self, rank: int) -> Upstream:
        """By whom a worker's pulls are asked: one for each, so that none waits for another's."""
        if rank not in self._pulls:
            self._pulls[rank] = Upstream(TABLES_APP, 1 + rank, self.office, remote_error)
        return self._pulls[rank]

    # -- pushes ---------------------------------------------------------------------------------

    def push(
        self,
        tables: Sequence[KnownTable],
        parts: Sequence[Part],
        resolved: Resolved,
        answered: Answered,
        masks: Sequence[Masks] | None = None,
    ) -> None:
        """Send a push that stands for those it lists.

        Args:
            parts: by table keys, increasing, and gradients.
            answered: called when every server has it, or one has refused it.
            masks: if these are hot rows, sent ahead: by table which pushes have each of them.
        """
        places = range(len(tables))
        writes = [
            self._gradients(tables[i], *parts[i], None if masks is None else masks[i])
            for i in places
        ]
        is_single = len(resolved.constituents) == 1  # a merged list does not come again
        body: dict[str, Any] = {} if resolved.weight == 1.0 else {"weight": resolved.weight}
        if masks is not None:
            body["ahead"] = True
        if resolved.rests:
            body["rest"] = resolved.rests
        if self._stale is not None and self._stale.retry.most:
            body["again"] = True
        question = Question(
            Command.PUSH,
            Flag.PUSH,
            [table.id for table in tables],
            resolved.step,
            self.slots,
            body or None,
            resolved.priority,
            self._signature(tables, [keys for keys, _ in parts]) if is_single and not masks else 0,
            resolved.bases,
            tuple(map(tuple, resolved.constituents)),
        )
        self._ask(self.pushes, question, writes, answered, writes=writes)

    def _gradients(
        self, table: KnownTable, keys: Keys | None, values: Values, masks: Masks | None
    ) -> Writing | CodedWrite:
        write, encoder = self._write(table, keys, values), table.encoder
        if masks is not None:
            assert isinstance(write, SparseWrite), "blocks do not go ahead"
            if encoder is None:
                return AheadWrite(write, masks)
            return AheadCoded(write, encoder, self._buffers, masks)
        return write if encoder is None else CodedWrite(write, encoder, self._buffers)

    def _write(self, table: KnownTable, keys: Keys | None, values: Values) -> Writing:
        if keys is None:
            shares, cut = table.shares(self.slots), table.cut(self.slots)
            return DenseWrite(table.spec.name, "gradients", values, shares, cut)
        servers = len(self.lines.servers)
        is_everywhere = table.spec.aggregator == "weighted_mean"
        cut = cut_keys(keys, table.spec.dim, False, self.slots, servers, is_everywhere)
        keylist = KeyList(keys, None)
        return SparseWrite(table.spec.name, "gradients", keylist, values, False, cut, self._buffers)

    @property
    def pushes_under_way(self) -> list[tuple[int, int, int]]:
        """Timestamp, server and piece of the messages of pushes that have no answer."""
        under_way = self.pushes.unanswered()
        return [place for place, message in under_way if message.meta.cmd in PUSHES]

    # -- pulls ----------------------------------------------------------------------------------

    def pull(
        self,
        wanted: WorkerPull,
        done: Callable[[BaseException | None, Error | None, Found], None],
    ) -> None:
        """Ask for rows in the name of a worker, or for what has changed of those that are here.

        Args:
            done: called with the answers.
        """
        tables, keys = wanted.tables, wanted.keys
        reads = [self._read(table, some) for table, some in zip(tables, keys, strict=True)]
        question = Question(
            Command.PULL,
            Flag.PULL,
            [table.id for table in tables],
            wanted.step,
            self.slots,
            {"create": wanted.create, "rank": wanted.rank},
            wanted.priority,
            self._signature(tables, keys),
        )
        customer = self.pulls_of(wanted.rank)
        rows = reads_of(self.copies, tables, keys, reads) if wanted.create else None

        def ask_whole() -> None:
            pull = Pull(reads)
            ended: Answered = lambda error, said: done(error, said, pull)  # noqa: E731
            self._ask(customer, question, reads, ended, pull=pull)

        if rows is None:
            ask_whole()
            return
        refresh = Refresh(rows, self.counts)

        def answered(error: BaseException | None, said: Error | None) -> None:
            if isinstance(error, RowsHaveMovedError):
                ask_whole()
            else:
                done(error, said, refresh)

        asked = replace(question, command=Command.REFRESH)
        self._ask(customer, asked, rows, answered, finish=refresh.finish, recut=_give_up)

    def _signature(self, tables: Sequence[KnownTable], keys: Sequence[Keys | None]) -> int:
        """Of key lists that servers are to remember; 0 where they are too short."""
        lists = [(t.id, some) for t, some in zip(tables, keys, strict=True) if some is not None]
        if not self._key_cache or sum(some.size for _, some in lists) < SHORTEST_LIST:
            return 0
        return signature_of(lists, self._list_seed)

    def _read(self, table: KnownTable, keys: Keys | None) -> SparseRead | DenseRead:
        name, dim = table.spec.name, table.spec.dim
        if keys is None:
            shares, cut = table.shares(self.slots), table.cut(self.slots)
            return DenseRead(name, (table.blocks, dim), shares, cut, self._buffers)
        cut = cut_keys(keys, dim, False, self.slots, len(self.lines.servers))
        return SparseRead(name, KeyList(keys, None), cut, self._buffers)

    # -- what is passed on ------------------------------------------------------------------------

    def ask_owners(
        self,
        command: Command,
        table: KnownTable,
        keys: Keys | None,
        values: Values | None,
        rank: int,
        step: int,
        answered: Answered,
        finish: Callable[[list[Message]], Any],
    ) -> None:
        """Ask the owners of rows something else about them, or assign them `values`."""
        body = {"rank": rank}
        question = Question(command, Flag.PUSH, [table.id], step, self.slots, body)
        entry: Reading | Writing
        if values is None:
            entry = self._read(table, keys)
            self._ask(self.pushes, question, [entry], answered, finish=finish)
        else:
            entry = self._write(table, keys, values)
            self._ask(self.pushes, question, [entry], answered, writes=[entry], finish=finish)

    def tell(
        self,
        command: int,
        flags: Flag,
        servers: Sequence[int],
        clocks: tuple[Clock, ...],
        body_for: Callable[[int], Any],
        answered: Answered,
        finish: Callable[[list[Message]], Any] | None = None,
    ) -> None:
        """Send a request without arrays to servers."""
        refusals = Refusals(self.slots)

        def send(timestamp: int, oldest: int) -> None:
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
                    body=body_for(server),
                )
                self.pushes.send(Message(meta))

        answers: list[Message] = []

        def take(message: Message) -> bool:
            if message.meta.error is not None:
                refusals.note(message.meta)
            else:
                answers.append(message)
            return True

        def ended(error: BaseException | None) -> None:
            with self._lock:
                if error is None and finish is not None:
                    finish(sorted(answers, key=lambda answer: answer.meta.sender))
                answered(error, refusals.error())

        self.pushes.ask(servers, send, ended, take=take)

    def _ask(
        self,
        customer: Upstream,
        question: Question,
        entries: Sequence[Entry],
        answered: Answered,
        pull: Pull | None = None,
        writes: Sequence[Writing | CodedWrite] = (),
        finish: Callable[[list[Message]], Any] | None = None,
        recut: Recut | None = None,
    ) -> None:
        lines, settling = self.lines, None
        if question.body and "ahead" in question.body:  # its arrays come in threes
            lines = replace(lines, codes=[False] * len(lines.servers))
        cuts = [entry.cut for entry in entries]
        pieces: Sequence[Piece] = pieces_of(cuts, len(lines.servers), lambda server: _WHOLE)
        if writes:
            pack(writes, pieces, lines.empty)
            is_named = question.signature != 0
            settling = compress(writes, pieces, question.command, is_named, self.counts)
        newest = lambda: self.slots  # noqa: E731
        asking = Asking(question, entries, pieces, lines, pull, customer, newest, settling)
        refusals = Refusals(question.slots)
        answers: list[Message] = []

        def take(message: Message) -> bool:
            meta = message.meta
            if not asking.take(message):
                return False  # a server did not know the key list any more and is sent it
            if meta.error is not None:
                refusals.note(meta)
                return True
            self.versions.advance(meta.clocks)
            if finish is not None:
                answers.append(message)
            return True

        def ended(error: BaseException | None) -> None:
            with self._lock:
                if error is None and finish is not None:
                    try:
                        finish(sorted(answers, key=lambda answer: answer.meta.sender))
                    except KVError as problem:
                        error = problem
                answered(error, refusals.error())

        def late(message: Message) -> None:
            """An answer that comes after the request has failed."""
            if message.meta.error is not None:
                refusals.note(message.meta)
            if settling is not None:
                asking.note(message)

        taking: Take = take
        if writes and question.command in PUSHES and self._stale is not None:
            taking = self._stale.taking(take)
        request = customer.ask(
            [lines.servers[piece.server] for piece in pieces],
            asking.send,
            ended,
            take=taking,
            recut=asking.recut if recut is None else recut,
            after=late,
        )
        if settling is not None and request is not None:
            self.encoders.follow(request, settling)


def _give_up(message: Message) -> bool:
    """Cut no refresh anew: what is known of rows, another owner cannot tell."""
    raise RowsHaveMovedError("rows have moved meanwhile")
