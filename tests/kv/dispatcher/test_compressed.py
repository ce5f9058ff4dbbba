"""Compressed pushes and pulls through dispatchers: what servers have applied, what workers keep and
what dispatchers keep is what was pushed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kv.dispatcher.upstream
import kv.remote_worker
from kv.compression.encoder import Encoder
from kv.compression.settings import Rules
from kv.consistency.settings import SSP, Async, Consistency, SemiSync, Sync
from kv.dispatcher.config import DispatcherConfig
from kv.errors import MissingKeyError
from kv.initializers import Zeros
from kv.optimizers import SGD
from kv.placement import SlotMap
from kv.remote_worker import RemoteWorker
from kv.table_protocol import table_id
from tests.kv.compression.test_on_a_cluster import CHAINS, DIM, KEYS, SHAPE, Ledger
from tests.kv.dispatcher.test_pushes import check_ones
from tests.kv.dispatcher.tier import Tier, storm

ROWS = np.arange(KEYS, dtype=np.uint64)
LAST = 6  # messages of which some may not have been applied
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


def kill_soon(tier: Tier, seed: int) -> None:
    """Beside the nodes: dispatcher 0 dies when it has passed on some pushes."""

    def kill() -> None:
        tier.wait(lambda: len(tier.dispatchers) == 2 and tier.counts.get("pushes", 0) > 4)
        tier.wait_for_events(random.Random(seed).randint(1, 60))
        tier.kill_dispatcher(0)

    tier.meddle(kill)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow) for s in range(4)] + [4])
def test_no_push_is_lost_or_counted_twice_when_a_dispatcher_dies(
    seed: int, mode: Consistency
) -> None:
    rules = Rules({"*": "fp16"})  # of whole numbers it loses nothing, so nobody keeps anything back
    tier = Tier(
        seed, workers=3, mode=mode, plan=None if seed % 2 else storm(seed), compression=rules
    )
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def program(worker: RemoteWorker) -> None:
        options: dict[str, Any] = {"optimizer": SGD(lr=1), "initializer": Zeros()}
        table = worker.sparse_table("t", DIM, **options)
        dense = worker.dense_table("d", [5000], **options)
        for _ in range(6):
            worker.push_many([(table, ROWS, np.ones((KEYS, DIM))), (dense, np.ones(5000))])
            table.push(ROWS[::2], np.ones((KEYS // 2, DIM)))
            worker.step()
        worker.finish()
        worker.barrier()
        seen.append((table.pull(ROWS), dense.pull()))

    kill_soon(tier, seed)
    tier.train(program)

    assert len(seen) == 3
    check_ones(seen, 18)


@pytest.mark.parametrize("text", ["topk:0.2+fp16", "selective:relative=0.5+delta+topk:0.3+fp16"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 6))]
)
def test_of_a_dispatcher_that_dies_nothing_is_lost_but_what_it_kept_back(
    monkeypatch: pytest.MonkeyPatch, text: str, seed: int
) -> None:
    ledger, seen = Ledger(), Seen()
    tier = Tier(seed, workers=3, plan=storm(seed), compression=Rules({"*": text}))
    states = watch_residuals(monkeypatch, tier)
    kill_soon(tier, seed)

    tier.train(lambda worker: push_by_chance(worker, ledger, seen, 8, seed))

    ledger.keep_of(tier.dispatchers[1].servers.encoders)
    lost = ledger.pushed - ledger.kept + seen[0][0]
    assert seed or np.abs(lost).max() > 0.1
    for row, last in enumerate(lost):
        assert any(np.allclose(last, kept, atol=2e-4) for kept in possible(states, row)), row


def possible(states: list[np.ndarray], row: int) -> Iterator[np.ndarray]:
    """What may be lost of a row: all that messages have kept back of it, but those at the end
    that no server has applied, in whatever order they came."""
    history = np.diff([state[row] for state in states], axis=0)
    changes = [change for change in history if change.any()]
    first, last = changes[:-LAST], changes[-LAST:]
    for applied in itertools.product((0, 1), repeat=len(last)):
        some = [change for change, is_applied in zip(last, applied, strict=True) if is_applied]
        yield np.sum([np.zeros(DIM), *first, *some], axis=0)


def watch_residuals(monkeypatch: pytest.MonkeyPatch, tier: Tier) -> list[np.ndarray]:
    """What dispatcher 0 has kept back of the sparse table at one time or another."""
    states = [np.zeros((KEYS, DIM))]
    encode = Encoder.encode

    def watching(encoder: Encoder, *what: Any, **how: Any) -> Any:
        coded = encode(encoder, *what, **how)
        dispatcher = tier.dispatchers.get(0)
        mine = dispatcher.servers.encoders._kept.get(table_id("user")) if dispatcher else None
        if mine is not None and encoder.kept is mine:
            keys, values = mine.items()
            state = np.zeros((KEYS, DIM))
            state[keys.astype(np.int64)] = values
            states.append(state)
        return coded

    monkeypatch.setattr(Encoder, "encode", watching)
    return states


@pytest.mark.parametrize("text", ["topk:0.2+fp16", "selective:relative=0.9+onebit", "delta+int8"])
def test_hot_rows_leave_compressed_ahead_of_the_rest(text: str) -> None:
    seed, ledger, seen = 5, Ledger(), Seen()
    config = DispatcherConfig(hot_uses=3, hot_interval=0.001)
    tier = Tier(seed, workers=3, config=config, plan=storm(seed), compression=Rules({"*": text}))

    tier.train(lambda worker: push_by_chance(worker, ledger, seen, 8))

    keep_of_all(ledger, tier)
    assert tier.counts["rows_ahead"] > KEYS
    for rows, array in seen:
        ledger.check(rows, array)


@pytest.mark.parametrize("text", ["topk:0.2+fp16", "delta+int8"])
def test_nothing_is_lost_when_a_server_dies_and_has_copies(text: str) -> None:
    ledger, seen = Ledger(), Seen()
    tier = Tier(3, workers=3, servers=2, replicas=1, compression=Rules({"*": text}))

    def kill() -> None:
        tier.wait_until_copied()
        tier.wait_for_events(40)
        tier.network.kill("server 1")
        tier.start_server(1)

    tier.meddle(kill)
    tier.train(lambda worker: push_by_chance(worker, ledger, seen, 12))

    keep_of_all(ledger, tier)
    assert ledger.total("unsettled") == 0
    for rows, array in seen:
        ledger.check(rows, array)


def test_a_dispatcher_that_has_forgotten_what_differences_refer_to_says_so() -> None:
    ledger, seen = Ledger(), Seen()
    tier = Tier(1, workers=2, dispatchers=1, compression=Rules({"*": "delta+int8"}))

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(worker.rank)
        table, dense = ledger.tables(worker)
        for step in range(6):
            worker.wait(ledger.push(rng, table, dense))
            if step == 2:
                tier.dispatchers[0].packing.forget(worker.office.node_id)
                for server in tier.servers.values():
                    server.tables.unpacker.forget(tier.dispatchers[0].office.node_id)
        ledger.keep(worker)
        worker.barrier()
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    tier.train(program)

    workers = sum(count["user"]["worker-dispatcher"]["restarted"] for count in ledger.counts)
    keep_of_all(ledger, tier)
    assert workers == 2
    assert ledger.counts[-1]["user"]["dispatcher-server"]["restarted"] >= 1
    for rows, array in seen:
        ledger.check(rows, array)


@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
@pytest.mark.parametrize("text", ["fp16", "int8"])
def test_pulled_values_are_packed_twice_and_lose_once(text: str, mode: Consistency) -> None:
    tier, seen = Tier(2, workers=2, dispatchers=1, mode=mode), []
    limits = {"fp16": 0.003, "int8": 0.02}

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("user", DIM, compression={"pull": text})
        dense = worker.dense_table("w", SHAPE, compression={"pull": text})
        rng = np.random.default_rng(1)
        rows, array = rng.standard_normal((KEYS, DIM)), rng.standard_normal(SHAPE)
        if worker.rank == 0:
            table.assign(ROWS, rows)
            dense.assign(array)
        worker.barrier()
        first, later = table.pull(ROWS), table.pull(ROWS[::3])
        seen.append((first - rows, later - rows[::3], dense.pull() - array))
        worker.step()

    tier.train(program)

    assert len(seen) == 2
    for errors in seen:
        for error in errors:
            assert 0 < np.abs(error).max() < limits[text]
    dispatcher = tier.dispatchers[0]
    for table in dispatcher.tables.named([table_id("user"), table_id("w")]):
        pulled = dispatcher.packing.facts(table)["pull"]
        assert pulled["nbytes"] < 0.7 * pulled["plain_nbytes"]


@pytest.mark.parametrize("text", ["topk:0.2+fp16", "selective:relative=0.9+onebit"])
def test_of_a_push_that_one_server_refuses_the_other_keeps_its_part(text: str) -> None:
    ledger, seen = Ledger(), Seen()
    tier = Tier(1, workers=1, dispatchers=1, compression=Rules({"*": text}))
    owners = SlotMap.even(2).owner_of(np.arange(KEYS + 1, dtype=np.uint64))
    is_other = owners[:KEYS] != owners[KEYS]

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(1)
        options: dict[str, Any] = {"optimizer": SGD(lr=1), "initializer": Zeros()}
        table = worker.sparse_table("user", DIM, missing="error", **options)
        dense = worker.dense_table("w", SHAPE, **options)
        table.assign(ROWS, np.zeros((KEYS, DIM)))
        for _ in range(5):
            worker.wait(ledger.push(rng, table, dense))
            grads = rng.standard_normal((KEYS + 1, DIM)).astype(np.float32)
            grads[KEYS] = 9.0  # so that it is sent
            request = table.push([*ROWS, KEYS], grads)  # one server has no row of the last key
            with pytest.raises(MissingKeyError):
                worker.wait(request)
            ledger.pushed[is_other] += grads[:KEYS][is_other]
        ledger.keep(worker)
        seen.append((table.pull(ROWS), dense.pull()))

    tier.train(program)

    keep_of_all(ledger, tier)
    for rows, array in seen:
        ledger.check(rows, array)
