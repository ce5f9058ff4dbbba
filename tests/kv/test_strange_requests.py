"""Requests of any form, as a wrong or hostile worker sends them.

Each is answered or kept, what must hold of the tables holds, and another worker's table has exactly
its own pushes in it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kv.initializers import Zeros
from kv.keylists.coding import encode
from kv.optimizers import SGD
from kv.policies import AfterSightings, ByAge
from kv.spec import TableSpec
from kv.table_protocol import Command, table_id
from kv.table_server import TableServer
from tests.kv.test_table_server import A, B, Office
from van.message import Message, Meta

OWN = "own"  # of worker B
SPECS = [
    TableSpec.sparse(OWN, 2, optimizer=SGD(lr=1.0), initializer=Zeros()),
    TableSpec.dense("dense", (4, 4)),
    TableSpec.sparse("free", 2),
    TableSpec.sparse("known", 2, missing="error"),
    TableSpec.sparse("refuses", 2, memory_limit=40_000),
    TableSpec.sparse("spills", 2, memory_limit=40_000, when_full="spill"),
    TableSpec.sparse("evicts", 2, memory_limit=40_000, when_full="evict", expiry=ByAge(1)),
    TableSpec.sparse("admits", 2, admission=AfterSightings(2)),
    TableSpec.sparse("weighs", 2, aggregator="weighted_mean", storage="float16"),
]
COMMANDS = [*set(Command) - {Command.STEP, Command.FINISH}, Command.PUSH, Command.PULL, -1, 99]
FIELDS = ("named", "coded", "rest", "weight", "create", "start", "count", "lr", "name")
THINGS: list[Any] = [None, True, 0, -1, 1.5, float("nan"), "x", (0,), [0, 2], [-1], {}, 1 << 63]


def some_keys(rng: random.Random) -> np.ndarray:
    keys = [rng.randrange(1 << rng.choice([3, 12, 64])) for _ in range(rng.choice([0, 1, 5, 600]))]
    return np.unique(np.array(keys, np.uint64))


def some_array(rng: random.Random) -> np.ndarray:
    coded = encode(np.arange(0, 2100, 3, dtype=np.uint64))
    assert coded is not None
    coded[rng.randrange(coded.size)] = rng.randrange(256)
    return rng.choice(
        [
            some_keys(rng),
            some_keys(rng)[::-1],
            np.full((rng.choice([0, 1, 5, 600]), 2), rng.choice([1, np.nan, np.inf]), np.float32),
            np.ones((1, 16), np.float32),
            np.ones(3, rng.choice(["f8", "i4", "u1", "?", "u8"])),
            np.array(5, np.uint64),
            coded,
        ]
    )


def arrays_that_fit(rng: random.Random, tables: list[str], has_values: bool) -> list[np.ndarray]:
    arrays = []
    for table in tables:
        keys = some_keys(rng)
        arrays += [] if table == "dense" else [keys]
        if has_values:
            shape = (1, 16) if table == "dense" else (keys.size, 2)
            arrays.append(np.ones(shape, np.float32))
    return arrays


def some_request(rng: random.Random) -> Message:
    command = rng.choice(COMMANDS)
    tables = [rng.choice(SPECS[1:]).name for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    arrays = [some_array(rng) for _ in range(rng.randrange(5))]
    if rng.random() < 0.5:
        arrays = arrays_that_fit(rng, tables, command in (Command.PUSH, Command.ASSIGN))
    body: Any = {name: rng.choice(THINGS) for name in rng.sample(FIELDS, rng.randrange(5))}
    if rng.random() < 0.1:
        body = rng.choice(THINGS)
    meta = Meta(
        sender=A,
        cmd=command,
        body=body,
        clocks=tuple((table_id(name), rng.choice([0, 0, 0, 1 << 50]), ()) for name in tables),
        key_list=rng.choice([0, 1, 2, 1 << 63]),
        incarnation=rng.randrange(2),
    )
    return Message(meta, arrays)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_strange_requests_are_answered_and_harm_nobody_else(threads: int, mode: str) -> None:
    rng, office = random.Random(5), Office()
    keys, ones = np.arange(700, dtype=np.uint64), np.ones((700, 2), np.float32)
    asked = 0
    with TableServer(office, mode, threads=threads, key_cache=1 << 16) as server:  # type: ignore[arg-type]

        def ask(message: Message) -> None:
            nonlocal asked
            asked += 1
            message.meta.timestamp = asked
            office.receive(message)

        def ask_as_b(command: Command, body: Any, *arrays: np.ndarray) -> None:
            clocks = ((table_id(OWN), 0, ()),)
            meta = Meta(sender=B, cmd=command, body=body, clocks=clocks, key_list=77)
            ask(Message(meta, list(arrays)))

        for spec in SPECS:
            ask(Message(Meta(sender=A, cmd=Command.DEFINE, body=spec.resolved(mode, 1).to_dict())))
        office.wait(lambda: len(office.sent) == len(SPECS))
        for number in range(600):
            ask(some_request(rng))
            if number % 100 == 0:
                ask_as_b(Command.PUSH, None, keys, ones)
        office.wait(lambda: len(office.sent) + len(server._held) == asked)
        if mode == "sync":
            for sender in (A, B):
                life = 1 if sender == A else 0  # the last of those that were heard
                end = Meta(sender=sender, incarnation=life, cmd=Command.STEP, body={"clock": 0})
                ask(Message(end))
            office.wait(lambda: len(office.sent) + len(server._held) == asked)
        ask_as_b(Command.PULL, {"create": True}, keys)
        office.wait(lambda: len(office.sent) + len(server._held) == asked)

        (answer,) = (m for m in office.sent if m.meta.timestamp == asked)
        assert (answer.arrays[0] == -6).all()
        server.engine.validate()
        server.lists.validate()
        assert not office.stopped
