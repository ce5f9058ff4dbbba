"""Compressed pushes and pulls through dispatchers: what servers have applied, what workers keep and
what dispatchers keep is what was pushed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kv.dispatcher.upstream
import kv.remote_worker
from kv.compression.settings import Rules
from kv.consistency.settings import SSP, Async, Consistency, SemiSync, Sync
from kv.dispatcher.config import DispatcherConfig
from kv.remote_worker import RemoteWorker
from tests.kv.compression.test_on_a_cluster import CHAINS, KEYS, Ledger
from tests.kv.dispatcher.tier import Tier, storm

MODES = [Async(), SSP(2), Sync(), SemiSync(0.5)]
Seen = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def short_lists_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kv.remote_worker, kv.dispatcher.upstream):
        monkeypatch.setattr(module, "SHORTEST_LIST", 20)


def push_by_chance(
    worker: RemoteWorker, ledger: Ledger, seen: Seen, steps: int, seed: int = 0
) -> None:
    """Push to both tables step by step; what they hold when all have."""
    rng = np.random.default_rng([worker.rank, seed])
    table, dense = ledger.tables(worker)
    for step in range(steps):
        ledger.push(rng, table, dense, is_pull=step % 3 == 1)
        worker.step()
    worker.finish()
    ledger.keep(worker)
    worker.barrier("all have finished")
    seen.append((table.pull(np.arange(KEYS)), dense.pull()))


def keep_of_all(ledger: Ledger, tier: Tier) -> None:
    for dispatcher in tier.dispatchers.values():
        ledger.keep_of(dispatcher.servers.encoders)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        pytest.param(text, mode, marks=[] if (i + j) % len(MODES) == 0 else [pytest.mark.slow])
        for i, text in enumerate(CHAINS)
        for j, mode in enumerate(MODES)
    ],
    ids=str,
)
def test_nothing_is_lost_or_counted_twice_whatever_the_network_does(
    text: str, mode: Consistency
) -> None:
    seed, ledger, seen = len(text), Ledger(), Seen()
    config = DispatcherConfig(round_interval=0.3)
    tier = Tier(
        seed,
        workers=3,
        dispatchers=2 if seed % 2 else 1,
        mode=mode,
        config=config,
        plan=storm(seed),
        compression=Rules({"*": text}),
    )

    tier.train(lambda worker: push_by_chance(worker, ledger, seen, 6, seed))

    keep_of_all(ledger, tier)
    assert ledger.total("nbytes") < 0.95 * ledger.total("plain_nbytes")
    assert ledger.total("unsettled") == ledger.total("returned") == 0
    assert len(seen) == 3
    for rows, array in seen:
        ledger.check(rows, array)
