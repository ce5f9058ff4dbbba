"""Compression only while a link is busy: nothing of a gradient is lost when it ends or begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.compressing import Encoders
from kv.compression.encoder import Encoder
from kv.compression.kept import Kept, KeptBlocks, KeptRows
from kv.compression.schemes import Chain
from kv.compression.settings import WORKER_SERVER, Rules
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.packing import Packing
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from kv.spec import TableSpec
from tests.kv.dispatcher.tier import SEEDS, Tier, storm

KEYS, DIM = np.arange(60, dtype=np.uint64), 4


@pytest.mark.parametrize("chain", ["topk:0.25", "onebit", "fp16", "selective:relative=0.9+int8"])
@given(switches=st.lists(st.booleans(), min_size=1, max_size=8), seed=st.integers(0, 2**32 - 1))
def test_what_was_kept_back_goes_with_the_next_plain_message_about_its_rows(
    chain: str, switches: list[bool], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    for kept in (KeptRows("t", DIM, 1 << 20), KeptBlocks(KEYS.size, DIM)):
        encoder = Encoder(Chain.parse(chain), DIM, kept, by_row=isinstance(kept, KeptBlocks))
        pushed, sent = np.zeros((KEYS.size, DIM)), np.zeros((KEYS.size, DIM))

        for is_on in [*switches, False]:
            encoder.is_on = is_on
            grads = rng.standard_normal(pushed.shape).astype(np.float32)
            coded = encoder.encode(KEYS, grads)
            pushed += grads
            which, values = coded.plain()
            sent[slice(None) if which is None else which] += values

        np.testing.assert_allclose(sent, pushed, atol=1e-4)
        assert kept.is_empty
        assert encoder.is_idle


@pytest.mark.parametrize("kept", [KeptRows("t", DIM, 1 << 20), KeptBlocks(60, DIM)])
def test_rows_that_are_not_pushed_keep_what_they_have(kept: Kept) -> None:
    encoder = Encoder(Chain.parse("topk:0.25"), DIM, kept, isinstance(kept, KeptBlocks))
    encoder.encode(KEYS, np.ones((60, DIM), np.float32))
    encoder.is_on = False

    first = encoder.encode(KEYS[:30], np.zeros((30, DIM), np.float32))
    assert not encoder.is_idle
    second = encoder.encode(KEYS, np.zeros((60, DIM), np.float32))

    assert encoder.is_idle
    assert first.array.sum() + second.array.sum() == 60 * DIM * 0.75
    assert second.array[:30].sum() == 0


def test_a_plain_message_that_was_refused_gives_back_what_it_took_along() -> None:
    encoder = Encoder(Chain.parse("topk:0.25"), DIM, KeptRows("t", DIM, 1 << 20))
    grads = np.ones((60, DIM), np.float32)
    encoder.encode(KEYS, grads)
    encoder.is_on = False
    coded = encoder.encode(KEYS, grads)

    encoder.give_back(KEYS, grads, coded)

    assert not encoder.is_idle
    again = encoder.encode(KEYS, np.zeros_like(grads))
    assert again.array.sum() == 60 * DIM * 0.75


def test_only_tables_that_are_named_are_switched() -> None:
    encoders = Encoders(Rules({"*": "fp16", "none": "none"}), lambda request: False)
    encoders.compress_when_busy(["dense", "user"])
    specs = [
        TableSpec.sparse("user", 4),
        TableSpec.sparse("item", 4),
        TableSpec.dense("w", (9000,)),
    ]
    made = [
        encoders.of(encoders.resolve(spec.resolved("async", 1)), WORKER_SERVER) for spec in specs
    ]

    def on() -> list[bool]:
        return [encoder.is_on for encoder in made if encoder is not None]

    assert on() == [False, True, False]
    assert encoders.switch(True) == ["user", "w"]
    assert on() == [True] * 3
    assert encoders.switch(True) == []
    assert encoders.switch(False) == ["user", "w"]
    encoders.compress_when_busy(["usr"])
    assert "[balance] when_busy: usr" in encoders.unused()


def test_a_dispatcher_switches_what_goes_to_servers_and_what_goes_to_workers() -> None:
    packing = Packing(Encoders(Rules({}), lambda request: False))
    packing.compress_when_busy(["sparse"])
    job = Encoders(Rules({"sparse": "topk:0.25", "sparse@pull": "fp16"}), lambda request: False)
    spec = job.resolve(TableSpec.sparse("t", DIM).resolved("async", 1))

    encoder = packing.define(spec)

    assert encoder is not None
    assert not encoder.is_on
    assert packing.switch(True) == ["t"]
    assert encoder.is_on
    assert packing.switch(True) == []
    encoder.encode(KEYS, np.ones((60, DIM), np.float32))
    assert packing.saved() > 0
    assert packing.switch(False) == ["t"]
    assert not encoder.is_on


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dispatcher_with_an_idle_link_sends_all_of_every_gradient(
    seed: int, tmp_path: Path
) -> None:
    """Its chain loses three numbers of four, but only on a busy link."""
    tier = Tier(
        seed,
        workers=2,
        servers=1,
        dispatchers=1,
        mode="async",
        compression=Rules({"t": "topk:0.25"}),
        balance=replace(BALANCE, link_rate=1e12),
        run_dir=tmp_path,
    )
    burst = Burst(pulls=True)

    tier.train(burst.run)

    for rows in burst.seen:
        np.testing.assert_array_equal(rows, burst.pushes)


BALANCE = BalanceConfig(
    check_interval=0.25,
    patience=0.5,
    calm=2.0,
    hold=1.0,
    when_busy=("t",),
    link_rate=200_000.0,
)


class Burst:
    """Workers that push much for some seconds of the network's time, then little.

    Args:
        pulls: they wait for a push and pull after it; else they wait for nothing.
    """

    def __init__(self, pulls: bool) -> None:
        self.pushes, self.pulls = 0, pulls
        self.stats: list[dict[str, Any]] = []
        self.seen: list[np.ndarray] = []

    def run(self, worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", DIM, optimizer=SGD(lr=1), missing="zeros")
        for pause, seconds in ((0.05, 8.0), (0.5, 20.0)):
            began = worker.office.van.now()
            while worker.office.van.now() - began < seconds:
                request = table.push(KEYS, -np.ones((KEYS.size, DIM)))
                if self.pulls:
                    worker.wait(request)
                    table.pull(KEYS)
                self.pushes += 1
                worker.step()
                worker.office.van.wait(lambda: False, pause)
        worker.finish()
        worker.barrier()
        self.stats.append(worker.encoders.stats()["t"])
        self.seen.append(table.pull(KEYS))


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_busy_link_compresses_and_every_push_arrives_in_the_end(
    seed: int, mode: str, tmp_path: Path
) -> None:
    tier = Tier(
        seed,
        workers=2,
        servers=1,
        dispatchers=0,
        mode=mode,
        compression=Rules({"t": "topk:0.25", "t@pull": "bf16"}),
        balance=BALANCE,
        plan=storm(seed) if seed % 2 else None,
        run_dir=tmp_path,
    )
    burst = Burst(pulls=not seed % 2)

    tier.train(burst.run)

    lines = [json.loads(line) for line in (tmp_path / "balance.jsonl").read_text().splitlines()]
    for node in ["worker 0", "worker 1", *(["server 0"] if burst.pulls else [])]:
        whats = [line["what"] for line in lines if line["node"] == node]
        assert whats == ["compress", "plain"]
    assert all(line["metric"] == "bandwidth" and line["table"] == "t" for line in lines)
    for stats in burst.stats:
        assert stats[WORKER_SERVER]["messages"] > 0
        assert stats[WORKER_SERVER]["released"] > 0
        assert stats["residuals"]["rows"] == 0
    for rows in burst.seen:
        np.testing.assert_array_equal(rows, burst.pushes)
