"""A dispatcher that does not keep up: its workers go past it, then to another one, then back."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from kv.dispatcher.balance_config import BalanceConfig
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.tier import SEEDS, Tier, is_data
from van.faults import FaultPlan, Faults

BALANCE = BalanceConfig(
    overflow=True,
    check_interval=0.1,
    queue_high=20,
    queue_low=6,
    patience=0.3,
    calm=2.0,
    hold=1.0,
    move_after=1.0,
)
KEYS = np.arange(20, dtype=np.uint64)


class Load:
    """Workers that push ten times a second of the network's time, until all is as it was.

    Attributes:
        pushes: of all of them.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier, self.pushes, self.is_over = tier, 0, False
        self.seen: list[np.ndarray] = []

    def push(self, worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), missing="zeros")
        under_way: deque[int] = deque()
        while not self.is_over:
            under_way.append(table.push(KEYS, -np.ones((20, 1))))
            self.pushes += 1
            worker.step()
            worker.office.van.wait(lambda: False, 0.1)
            if len(under_way) > 200:
                worker.wait(under_way.popleft())
        worker.finish()
        worker.barrier()
        self.seen.append(table.pull(KEYS).ravel())

    def decided(self) -> list[str]:
        app = self._tier.balance_app
        return [] if app is None else [decision.what for decision in app.last]

    def meddle(self) -> None:
        """Let the dispatcher keep up when workers were moved; end when they are back."""
        tier = self._tier
        tier.wait(lambda: "move" in self.decided())
        tier.slow.clear()
        tier.wait(lambda: "home" in self.decided() and self._is_as_it_was())
        self.is_over = True

    def _is_as_it_was(self) -> bool:
        found = [dispatcher.workers for _, dispatcher in sorted(self._tier.dispatchers.items())]
        return found == [[0, 1], [2, 3]]


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_workers_spill_move_and_come_back_and_every_push_counts_once(
    seed: int, mode: str, tmp_path: Path
) -> None:
    tier = Tier(
        seed,
        workers=4,
        mode=mode,
        balance=BALANCE,
        slow={0: 2.0},
        plan=FaultPlan(seed, Faults.all(0.05), hits=is_data) if seed % 2 else None,
        run_dir=tmp_path,
    )
    load = Load(tier)

    tier.meddle(load.meddle)
    tier.train(load.push)

    lines = [json.loads(line) for line in (tmp_path / "balance.jsonl").read_text().splitlines()]
    whats = [line["what"] for line in lines]
    assert whats.index("spill") < whats.index("move") < whats.index("home")
    assert set(whats) <= {"spill", "return", "move", "home"}
    assert len(lines) <= (24 if seed % 2 else 12)
    first = lines[0]
    assert (first["metric"], first["node"]) == ("queue", "dispatcher 0")
    assert first["workers"] in ([0], [1])
    assert first["value"] >= first["mark"] == BALANCE.queue_high
    moves = [line for line in lines if line["what"] in ("move", "home")]
    assert [line["epoch"] for line in moves] == sorted({line["epoch"] for line in moves})
    assert len(load.seen) == 4
    for rows in load.seen:
        np.testing.assert_array_equal(rows, load.pushes)
