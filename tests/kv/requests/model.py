"""A cluster of 3 servers, 2 workers and 1 dispatcher on a bad network, around the cores under test.

The model is the edge: it keeps the messages under way, the values of pushes, the counters of the
servers and who knows which view. Beside them it keeps the truth: which push was applied, or failed,
how often in which slot. Every node may have former lives that still talk (`ghosts`).
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from kv.requests import (
    Answer,
    Failure,
    Incoming,
    Merged,
    Merging,
    Outgoing,
    Progress,
    Request,
    Signature,
    SlotState,
    View,
    Windows,
    Work,
)

SERVERS, WORKERS, DISPATCHER = (8, 10, 12), (9, 11), 1 << 20
SLOTS = 4
FAILURE = ("TableError", "planned")

Values = dict[int, int]  # slot -> what the push adds there
Inside = list[tuple[Signature, Values]]  # the workers' pushes in a payload


@dataclass(frozen=True)
class Parts:
    """The classes under test; a planted bug replaces one."""

    windows: type[Windows] = Windows
    incoming: type[Incoming] = Incoming
    outgoing: type[Outgoing] = Outgoing
    merging: type[Merging] = Merging


class Mood(enum.Enum):
    """How a server works."""

    QUICK = "at once"
    SLOW = "begins at once, ends when its mood changes"
    FAILING = "at once, but pushes fail"
    HOLDING = "holds everything until its mood changes"


class RoundGate:
    """A consistency mode that lets everything pass, or holds everything until the round closes."""

    def __init__(self) -> None:
        self.is_holding = False
        self.held: list[int] = []

    def admits(self, work: Work) -> bool:
        if self.is_holding:
            self.held.append(work.ticket)
        return not self.is_holding

    def dropped(self, ticket: int) -> None:
        self.held.remove(ticket)


@dataclass
class Server:
    core: Incoming
    gate: RoundGate
    counters: Values
    works: list[Work] = field(default_factory=list)
    mood: Mood = Mood.QUICK


@dataclass
class Issued:
    """A request of a worker, as the worker sees it."""

    signature: Signature
    values: Values  # of a push
    reads: dict[int, int] = field(default_factory=dict)  # of a pull: slot -> total when it was made
    is_done: bool = False
    is_abandoned: bool = False
    errors: tuple[Failure, ...] = ()


@dataclass
class Worker:
    core: Outgoing
    issued: dict[int, Issued] = field(default_factory=dict)


@dataclass
class Dispatcher:
    core: Merging
    open: Inside = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Letter:
    """A message under way; `values` are those an answer to a pull brings."""

    message: Request | Answer
    values: Values = field(default_factory=dict)

    @property
    def recipient(self) -> int:
        message = self.message
        return message.request.sender if isinstance(message, Answer) else message.recipient


class Cluster:
    """The nodes, the network, and the truth about them."""

    def __init__(self, parts: Parts | None = None) -> None:
        self.parts = parts or Parts()
        self.now = 0.0
        lives = dict.fromkeys([*SERVERS, *WORKERS, DISPATCHER], 1)
        owners = np.array([SERVERS[slot % 3] for slot in range(SLOTS)])
        self.view = View(epoch=1, map_version=1, owners=owners, incarnations=lives)
        self.letters: list[Letter] = []
        self.sent: list[Letter] = []  # every letter there ever was
        self.moves: list[tuple[SlotState, int]] = []  # a slot under way, with its counter
        self.servers = {node: self._server(node) for node in SERVERS}
        self.workers = {node: self._worker(node) for node in WORKERS}
        self.dispatchers = {1: self._dispatcher()}  # by incarnation
        self.ghosts: list[Worker] = []
        self.former: list[Issued] = []  # requests of workers' former lives
        self.applied: Counter[tuple[Signature, int]] = Counter()
        self.failed: Counter[tuple[Signature, int]] = Counter()
        self.totals = dict.fromkeys(range(SLOTS), 0)

    # What workers and the dispatcher start

    def push(
        self, node: int, values: Values, *, direct: bool, pull: bool, everywhere: bool
    ) -> None:
        worker = self._living(node)
        life = worker.core.view.incarnations.get(DISPATCHER)
        name = worker.core.stream.at(worker.core._next)
        reads = {slot: self.totals[slot] for slot in values} if pull and direct else {}
        timestamp, send = worker.core.request(
            np.array(sorted(values), np.int64),
            self.now,
            push=True,
            pull=bool(reads),
            everywhere=everywhere,
            via=None if direct or life is None else (DISPATCHER, life),
            payload=[(name, values)],
        )
        done = not worker.core.is_pending(timestamp)
        worker.issued[timestamp] = Issued(name, values, reads, is_done=done)
        self._post(send)

    def pull(self, node: int, slots: set[int]) -> None:
        worker = self._living(node)
        name = worker.core.stream.at(worker.core._next)
        reads = {slot: self.totals[slot] for slot in slots}
        timestamp, send = worker.core.request(np.array(sorted(slots)), self.now, pull=True)
        worker.issued[timestamp] = Issued(name, {}, reads)
        self._post(send)

    def abandon(self, node: int) -> None:
        """A worker gives its oldest request up: it may be applied or not, in each slot."""
        worker = self.workers[node]
        if worker.core.abandon(worker.core.oldest):
            issued = next(i for i in worker.issued.values() if not i.is_done)
            issued.is_done = issued.is_abandoned = True

    def flush(self) -> None:
        for dispatcher in self.dispatchers.values():
            core = dispatcher.core
            if core.pushes and not core.outgoing.is_fenced:
                inside, dispatcher.open = dispatcher.open, []
                self._merged(core.flush(self.now, payload=inside)[1])

    # What the network does

    def deliver(self, index: int) -> None:
        self.take(self.letters.pop(index % len(self.letters)))

    def deliver_all(self) -> None:
        while self.letters:
            self.deliver(0)

    def replay(self, index: int) -> None:
        """A copy of the letter sent `index` letters ago arrives, as a late duplicate would."""
        self.take(self.sent[-min(index, len(self.sent))])

    def intercept(self, node: int) -> list[Letter]:
        """Take what is under way to a node off the network."""
        caught = [letter for letter in self.letters if letter.recipient == node]
        self.letters = [letter for letter in self.letters if letter.recipient != node]
        return caught

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for worker in [*self.workers.values(), *self.ghosts]:
            self._post(worker.core.due(self.now))
        for dispatcher in self.dispatchers.values():
            self._post(dispatcher.core.due(self.now))

    # What the scheduler decides, and who hears of it when

    def move(self, slot: int, server: int) -> None:
        owners = self.view.owners.copy()
        owners[slot] = server
        self.view = replace(self.view, map_version=self.view.map_version + 1, owners=owners)

    def kill_dispatcher(self, *, returns: bool, haunts: bool) -> None:
        """Declare its present life dead; `haunts`: it is only cut off and goes on talking."""
        life = max(self.dispatchers, default=0)
        lives = {n: i for n, i in self.view.incarnations.items() if n != DISPATCHER}
        lives |= {DISPATCHER: self._last_dispatcher + 1} if returns else {}
        self._new_epoch(lives, DISPATCHER, self._last_dispatcher)
        if not haunts:
            self.dispatchers.pop(life, None)
        if returns:
            self.dispatchers[lives[DISPATCHER]] = self._dispatcher()

    def restart_worker(self, node: int, *, haunts: bool) -> None:
        worker = self._living(node)
        life = worker.core.stream.incarnation
        self._new_epoch({**self.view.incarnations, node: life + 1}, node, life)
        self.former += worker.issued.values()
        if haunts:
            self.ghosts.append(worker)
        self.workers[node] = self._worker(node)

    @property
    def behind(self) -> list[int]:
        """Nodes that do not know the newest view."""
        views = {node: server.core.view for node, server in self.servers.items()}
        views |= {node: worker.core.view for node, worker in self.workers.items()}
        behind = [node for node, view in views.items() if self.view.is_newer(view)]
        cores = [dispatcher.core.outgoing for dispatcher in self.dispatchers.values()]
        living = [core for core in cores if not core.is_fenced]
        return behind + [DISPATCHER] * any(self.view.is_newer(core.view) for core in living)

    def may_kill(self) -> bool:
        """Whether killing the dispatcher hits something, and is not yet too much for a run."""
        dispatcher = self.dispatchers.get(self.view.incarnations.get(DISPATCHER, 0))
        merges_something = dispatcher is not None and bool(dispatcher.core._in_hand)
        return merges_something and self._last_dispatcher < 4

    def may_restart(self) -> bool:
        """Whether restarting a worker is not yet too much for a run."""
        return sum(worker.core.stream.incarnation for worker in self.workers.values()) < 5

    def learn(self, node: int) -> None:
        if node in self.servers:
            self.servers[node].core.learn(self.view)
        elif node in self.workers:
            self._progress(self.workers[node], self.workers[node].core.learn(self.view, self.now))
        else:
            for dispatcher in self.dispatchers.values():
                self._merged(dispatcher.core.learn(self.view, self.now))

    # What servers do beside answering

    def change_mood(self, node: int, mood: Mood) -> None:
        """Close the round, if one is open, and end what is unfinished."""
        server = self.servers[node]
        server.mood = mood
        server.gate.is_holding = mood is Mood.HOLDING
        if mood is not Mood.HOLDING:
            tickets, server.gate.held = server.gate.held, []
            server.works += server.core.release(tickets)
        while server.works and mood is not Mood.SLOW:
            self._finish(server)

    def give(self, node: int) -> None:
        server = self.servers[node]
        for slot in server.core.leaving:
            state, answers = server.core.give(slot)
            self.moves.append((state, server.counters.pop(slot)))
            self._post(answers)

    def arrive(self, index: int, *, again: bool) -> None:
        """A slot comes to its new owner; `again`: a copy of it stays under way."""
        state, counter = self.moves.pop(index % len(self.moves))
        server = self.servers[state.owner]
        if state.map_version > server.core.view.map_version:
            server.core.learn(self.view)
        if server.core.adopt(state):
            server.counters[state.slot] = counter
        if again:
            self.moves.append((state, counter))

    # The end, and what must hold before and then

    def end(self) -> None:
        """Let all come to rest, then let every message come once more, and check each time."""
        self.settle()
        self.check_end()
        self.echo()
        self.check_end()
        self.check_memory()
        self.validate()

    def settle(self) -> None:
        """Heal the network and go on until nothing is left to do; fails if that never comes.

        In every second run the messages under way come before the news of the scheduler.
        """
        for i in range(60):
            for node in [*SERVERS, *WORKERS, DISPATCHER] if i or len(self.sent) % 2 else []:
                self.learn(node)
            for node in SERVERS:
                self.change_mood(node, Mood.QUICK)
                self.give(node)
            while self.moves:
                self.arrive(0, again=False)
            self.flush()
            self.deliver_all()
            if self._is_quiet():
                return
            cores = [w.core for w in self.workers.values()]
            cores += [d.core.outgoing for d in self.dispatchers.values()]
            due = [core.next_due for core in cores if core.next_due is not None]
            self.tick(max(min(due, default=0.0) - self.now, 0.0))
        waiting = [w.core for w in self.workers.values()]
        raise AssertionError(f"requests wait for ever: {waiting}")

    def echo(self) -> None:
        """A copy of every message there ever was arrives once more."""
        for letter in list(self.sent):
            self.take(letter)
        self.settle()

    def validate(self) -> None:
        """What holds after every step."""
        for node, server in self.servers.items():
            server.core.validate()
            assert set(server.counters) == set(np.flatnonzero(server.core.holdings.here)), (
                f"rows of {node}"
            )
            for slot, counter in server.counters.items():
                assert counter == self.totals[slot], f"slot {slot} at {node}"
        for worker in [*self.workers.values(), *self.ghosts]:
            worker.core.validate()
        for dispatcher in self.dispatchers.values():
            dispatcher.core.validate()
        homes = Counter(slot for server in self.servers.values() for slot in server.counters)
        assert max(homes.values(), default=0) <= 1, f"a slot is in two places: {homes}"

    def check_end(self) -> None:
        """What holds when all is quiet: every push of the living counted once, in every slot."""
        for worker in self.workers.values():
            for issued in worker.issued.values():
                name, errors = issued.signature, issued.errors
                assert issued.is_done, f"{name} never completed"
                if issued.is_abandoned:
                    continue
                counts = {s: (self.applied[name, s], self.failed[name, s]) for s in issued.values}
                assert all(sum(count) == 1 for count in counts.values()), f"{name}: {counts}"
                has_failed = any(failed for _, failed in counts.values())
                assert bool(errors) >= has_failed, f"{name}: an error got lost"
                assert not errors or self.failed, f"{name}: {errors} though nothing failed"
                assert all(error[:2] == FAILURE for error in errors), f"{name}: {errors}"
        everything = [i for w in self.workers.values() for i in w.issued.values()] + self.former
        for slot in range(SLOTS):
            pushed = sum(
                i.values.get(slot, 0) * self.applied[i.signature, slot] for i in everything
            )
            owner = self.servers[int(self.view.owners[slot])]
            assert owner.counters.get(slot) == self.totals[slot] == pushed, f"slot {slot}"

    def check_memory(self) -> None:
        """Once servers hear that all is answered, they remember nothing of the workers' pushes."""
        for node in WORKERS:
            self.pull(node, set(range(SLOTS)))
        self.settle()
        for server in self.servers.values():
            streams = server.core.windows._streams
            kept = {s: w.rows for s, w in streams.items() if s.sender in WORKERS and w.rows}
            assert not kept, f"kept for nothing: {kept}"
            assert len(server.core.entries) == 0

    # Inside

    @property
    def _last_dispatcher(self) -> int:
        living = self.view.incarnations.get(DISPATCHER, 0)
        return max(living, self.view.fenced.get(DISPATCHER, 0))

    def _new_epoch(self, lives: dict[int, int], node: int, dead: int) -> None:
        fenced = {**self.view.fenced, node: dead}
        epoch = self.view.epoch + 1
        self.view = replace(self.view, epoch=epoch, incarnations=lives, fenced=fenced)

    def _server(self, node: int) -> Server:
        gate = RoundGate()
        core = self.parts.incoming(node, 1, self.view, gate, windows=self.parts.windows(SLOTS))
        return Server(core, gate, dict.fromkeys(np.flatnonzero(core.holdings.here).tolist(), 0))

    def _worker(self, node: int) -> Worker:
        return Worker(self.parts.outgoing(node, self.view.incarnations[node], self.view))

    def _dispatcher(self) -> Dispatcher:
        life = self.view.incarnations[DISPATCHER]
        return Dispatcher(self.parts.merging(self.parts.outgoing(DISPATCHER, life, self.view)))

    def _living(self, node: int) -> Worker:
        worker = self.workers[node]
        assert not worker.core.is_fenced, f"{node} lives and was told that it is dead"
        return worker

    def _post(self, messages: list[Request] | list[Answer]) -> None:
        for message in messages:
            self._send(Letter(message))

    def _send(self, letter: Letter) -> None:
        self.letters.append(letter)
        self.sent.append(letter)

    def _finish(self, server: Server) -> None:
        """End the oldest work of a server: count it in the store and in the truth, and answer."""
        work = server.works.pop(0)
        fails = server.mood is Mood.FAILING and work.apply.size > 0
        truth = self.failed if fails else self.applied
        for name, values in work.request.payload if work.request.push else []:
            for slot in set(work.apply.tolist()) & set(values):
                truth[name, slot] += 1
                assert self.applied[name, slot] + self.failed[name, slot] == 1, f"{name} twice"
                if not fails:
                    server.counters[slot] += values[slot]
                    self.totals[slot] += values[slot]
        values = {slot: server.counters[slot] for slot in work.read.tolist()}
        answer = server.core.finish(work.ticket, FAILURE if fails else None)
        self._send(Letter(answer, values))

    def take(self, letter: Letter) -> None:
        message = letter.message
        if isinstance(message, Answer):
            self._take_answer(message, letter.values)
        elif message.recipient == DISPATCHER:
            self._take_at_dispatcher(message)
        else:
            self._take_at_server(self.servers[message.recipient], message)

    def _take_at_server(self, server: Server, request: Request) -> None:
        result = server.core.receive(request)
        if isinstance(result, Work):
            server.works.append(result)
            if server.mood is not Mood.SLOW:
                self._finish(server)
        elif result is not None:
            self._post([result])

    def _take_at_dispatcher(self, request: Request) -> None:
        lives = self.dispatchers
        present = max(lives, default=0)
        dispatcher = lives.get(request.recipient_incarnation) or lives.get(present)
        result = dispatcher.core.receive(request) if dispatcher else None
        if isinstance(result, Work):
            dispatcher.open += request.payload
        elif result is not None:
            self._post([result])

    def _take_answer(self, answer: Answer, values: Values) -> None:
        node, life = answer.request.sender, answer.request.incarnation
        if node == DISPATCHER:
            dispatcher = self.dispatchers.get(life) or next(iter(self.dispatchers.values()), None)
            if dispatcher is not None:
                self._merged(dispatcher.core.answer(answer, self.now))
            return
        ghosts = [g for g in self.ghosts if g.core.stream == answer.request.stream]
        for worker in [self.workers[node], *ghosts]:
            progress = worker.core.answer(answer, self.now)
            if progress is not None:
                self._check_read(worker, progress, values)
                self._progress(worker, [progress])

    def _progress(self, worker: Worker, changes: list[Progress]) -> None:
        for progress in changes:
            issued = worker.issued[progress.timestamp]
            assert not issued.is_done, f"{issued.signature} completed twice"
            issued.is_done, issued.errors = progress.done, progress.errors
            if progress.done and not progress.errors:
                counts = [self.applied[issued.signature, slot] for slot in issued.values]
                assert all(counts), f"{issued.signature} was acknowledged and is not applied"
            self._post(list(progress.send))

    def _check_read(self, worker: Worker, progress: Progress, values: Values) -> None:
        """A pull reads what was there at some moment between its making and its answer."""
        issued = worker.issued[progress.timestamp]
        for slot in set(progress.settled.tolist()) & set(issued.reads):
            if slot in values:
                low, high = issued.reads.pop(slot), self.totals[slot]
                assert low <= values[slot] <= high, f"{issued.signature} read {values[slot]}"

    def _merged(self, merged: Merged) -> None:
        self._post(list(merged.answers))
        self._post(list(merged.send))

    def _is_quiet(self) -> bool:
        waiting = any(not i.is_done for w in self.workers.values() for i in w.issued.values())
        in_hand = [d.core for d in self.dispatchers.values() if not d.core.outgoing.is_fenced]
        working = any(core.validate() or core._in_hand for core in in_hand)
        servers = any(s.works or s.gate.held or s.core.leaving for s in self.servers.values())
        under_way = self.letters or self.moves or self.behind
        return not (waiting or working or servers or under_way)
