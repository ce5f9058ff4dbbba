"""Rounds that do not wait for everybody, on several servers: somebody may always go on.

Modes alone, joined by lines whose order a seed decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from kv.consistency.base import Context
from kv.consistency.modes import mode_of
from kv.consistency.position import Position
from kv.consistency.progress import Progress
from kv.consistency.settings import SSP, Consistency, SemiSync, Sync

WORKERS, STEPS = 4, 20


class Said(NamedTuple):
    """What a worker says to a server; `table` is that of a pull."""

    what: str
    step: int = 0
    position: int = -1
    table: int = 0
    life: int = 0


class Server:
    """Tables whose rounds this server closes by itself, and pulls that wait."""

    def __init__(self, modes: Sequence[Consistency]) -> None:
        self.progress = Progress(WORKERS)
        made = [Context(str(mode), self.progress, settings=mode, now=lambda: 0.0) for mode in modes]
        self.modes = [mode_of(context) for context in made]
        self.held: list[tuple[int, Said]] = []

    def take(self, rank: int, said: Said) -> None:
        is_new = False
        if said.what == "pull":
            self.held.append((rank, said))
        elif said.what == "step":
            is_new = self.progress.step(rank, said.step, said.position)
        elif said.what == "finish":
            is_new = self.progress.finish(rank)
        elif said.what == "lose":
            is_new = self.progress.lose(rank)
        elif said.what == "begin":
            is_new = self.progress.begin_again(rank, said.life, said.step, said.position)
        for mode in self.modes if is_new else ():
            for due in mode.due():
                mode.total(due)
            mode.settled()
            mode.validate()

    def answers(self) -> list[tuple[int, Said, int]]:
        """Pulls that may be answered, each with its clock."""
        may = [(r, s) for r, s in self.held if self.modes[s.table].may_pull(r, s.step)]
        self.held = [entry for entry in self.held if entry not in may]
        return [(rank, said, self.modes[said.table].clock) for rank, said in may]


class Job:
    """Workers that pull from tables, of servers, and end steps; some die.

    Args:
        says: whether workers say where they are; else each server takes a step for one of the
            round that is open there.
        dies: how a worker that has died is followed: "" none dies, "lose", "begin".
        pulls: the share of the pulls that is made; below 1 worker 0 makes none.
    """

    def __init__(
        self,
        modes: Sequence[Consistency],
        servers: int,
        seed: int,
        says: bool = True,
        dies: str = "",
        pulls: float = 1.0,
    ) -> None:
        self.chance, self.says, self.pulls = np.random.default_rng(seed), says, pulls
        self.servers = [Server(modes) for _ in range(servers)]
        self.semi = [number for number, mode in enumerate(modes) if isinstance(mode, SemiSync)]
        self.lines: dict[tuple[int, int], deque[Said]] = {
            (rank, number): deque() for rank in range(WORKERS) for number in range(servers)
        }
        self.steps = self.chance.integers(STEPS // 2, STEPS, WORKERS).tolist()
        self.speeds = self.chance.choice([1.0, 1.0, 0.2, 0.05], WORKERS)
        self.dies = {int(self.chance.integers(WORKERS)): dies} if dies else {}
        self.dies_at = int(self.chance.integers(1, STEPS // 2))
        self.done, self.life = [0] * WORKERS, [0] * WORKERS
        self.over: set[int] = set()
        self.clocks: list[dict[tuple[int, int], int]] = [{} for _ in range(WORKERS)]
        self.positions = [self._position() for _ in range(WORKERS)]
        self.missing = [0] * WORKERS
        for rank in range(WORKERS):
            self.pull(rank)

    def _position(self) -> Position:
        position = Position()
        for table in self.semi:
            position.add(table)
        return position

    def say(self, rank: int, said: Said) -> None:
        for number in range(len(self.servers)):
            self.lines[rank, number].append(said)

    def pull(self, rank: int) -> None:
        share = 0.0 if rank == 0 and self.pulls < 1 else self.pulls
        for number, server in enumerate(self.servers):
            for table in range(len(server.modes)):
                if self.chance.random() < share:
                    pull = Said("pull", self.done[rank], table=table, life=self.life[rank])
                    self.lines[rank, number].append(pull)
                    self.missing[rank] += 1

    def end_step(self, rank: int) -> None:
        latest = max(m.clock for s in self.servers for m in (s.modes[t] for t in self.semi))
        position = self.positions[rank]
        clocks = [(table, clock) for (table, _), clock in self.clocks[rank].items()]
        said = position.step(clocks, lambda: position.hear(latest))
        self.say(rank, Said("step", self.done[rank], said))
        self.done[rank] += 1
        if self.dies.get(rank) and self.done[rank] == self.dies_at:
            self.die(rank, self.dies.pop(rank))
        elif self.done[rank] == self.steps[rank]:
            self.over.add(rank)
            self.say(rank, Said("finish"))
        else:
            self.pull(rank)

    def die(self, rank: int, then: str) -> None:
        """Some servers have heard of the end of its step, some have not."""
        for number in range(len(self.servers)):
            if self.chance.random() < 0.5:
                self.lines[rank, number].clear()
            else:
                self.deliver(rank, number)
        if then == "lose":
            self.over.add(rank)
            self.say(rank, Said("lose"))
            return
        self.life[rank] += 1
        self.done[rank] = max(server.progress.completed[rank] for server in self.servers)
        self.positions[rank], self.clocks[rank] = self._position(), {}
        self.positions[rank].begin_at(max(s.progress.positions[rank] for s in self.servers))
        begun = self.positions[rank].next
        self.say(rank, Said("begin", self.done[rank], begun, life=self.life[rank]))
        self.pull(rank)

    def deliver(self, rank: int, number: int) -> None:
        server, line = self.servers[number], self.lines[rank, number]
        while line:
            said = line.popleft()
            if said.what == "step" and not self.says:
                here = max(server.modes[0].clock, server.progress.positions[rank]) + 1
                said = said._replace(position=here)
            server.take(rank, said)
            for other, pull, clock in server.answers():
                if pull.life == self.life[other]:
                    self.clocks[other][pull.table, number] = clock
                    self.missing[other] -= 1
            if self.chance.random() < 0.5:
                break

    def run(self) -> list[int]:
        """The workers that wait for ever."""
        while True:
            able = [
                rank for rank in range(WORKERS) if rank not in self.over and not self.missing[rank]
            ]
            loaded = [line for line, waiting in self.lines.items() if waiting]
            if not able and not loaded:
                return sorted(set(range(WORKERS)) - self.over)
            weights = np.array([self.speeds[rank] for rank in able] + [1.0] * len(loaded))
            pick = int(self.chance.choice(weights.size, p=weights / weights.sum()))
            if pick < len(able):
                self.end_step(able[pick])
            else:
                self.deliver(*loaded[pick - len(able)])


QUORUMS = [SemiSync(), SemiSync(2), SemiSync(4), SemiSync(0.5), SemiSync(backup_workers=1)]


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("mode", QUORUMS, ids=repr)
def test_nobody_waits_for_ever(mode: Consistency, servers: int) -> None:
    for seed in range(20):
        assert Job([mode], servers, seed).run() == [], f"seed {seed}"


def test_they_would_if_each_server_took_a_step_for_one_of_its_open_round() -> None:
    stuck = [seed for seed in range(60) if Job([SemiSync(3)], 2, seed, says=False).run()]

    assert stuck


@pytest.mark.parametrize("dies", ["lose", "begin"])
@pytest.mark.parametrize("mode", QUORUMS, ids=repr)
def test_nor_when_a_worker_has_died(mode: Consistency, dies: str) -> None:
    for seed in range(20):
        assert Job([mode], 3, seed, dies=dies).run() == [], f"seed {seed}"


@pytest.mark.parametrize("mode", QUORUMS, ids=repr)
def test_nor_where_some_pull_a_part_and_one_never_does(mode: Consistency) -> None:
    for seed in range(20):
        assert Job([mode], 2, seed, pulls=0.5).run() == [], f"seed {seed}"


@pytest.mark.parametrize(
    "modes",
    [
        [SemiSync(3), SemiSync(3)],
        [SemiSync(1), SemiSync(3), SemiSync(4)],
        [SemiSync(3), Sync()],
        [SemiSync(1), SemiSync(3), Sync()],
        [SSP(1), SemiSync(1), SemiSync(4)],
    ],
    ids=repr,
)
def test_nor_with_several_tables(modes: list[Consistency]) -> None:
    for seed in range(50):
        assert Job(modes, 2, seed).run() == [], f"seed {seed}"
