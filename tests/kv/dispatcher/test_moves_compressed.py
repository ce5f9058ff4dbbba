"""Workers that go another way while their gradients are compressed: nothing is lost."""

from __future__ import annotations

import pytest

from kv.compression.settings import Rules
from kv.dispatcher.config import DispatcherConfig
from kv.remote_worker import RemoteWorker
from tests.kv.compression.test_on_a_cluster import Ledger
from tests.kv.dispatcher.moves import Mover
from tests.kv.dispatcher.test_compressed import Seen, keep_of_all, push_by_chance
from tests.kv.dispatcher.tier import SEEDS, Tier, storm


@pytest.mark.parametrize("text", ["topk:0.2+fp16", "delta+int8"])
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_kept_back_goes_along_with_its_worker(seed: int, mode: str, text: str) -> None:
    ledger, seen = Ledger(), Seen()
    tier = Tier(
        seed,
        workers=4,
        dispatchers=2,
        mode=mode,
        config=DispatcherConfig(round_interval=0.2),
        plan=storm(seed) if seed % 2 else None,
        compression=Rules({"*": text}),
    )
    mover = Mover(tier, seed, pause=30)

    def program(worker: RemoteWorker) -> None:
        mover.meet(worker)
        push_by_chance(worker, ledger, seen, 8, seed)

    tier.meddle(mover.run)
    tier.train(program)

    keep_of_all(ledger, tier)
    assert mover.changes > 5
    assert len(seen) == 4
    for rows, array in seen:
        ledger.check(rows, array)
