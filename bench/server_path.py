"""Microseconds that a table request costs on the server, without van and worker.

A stand-in for the node drops every answer, so what is left is the server's own path from the
message to the answer: who works on it and when, keys checked, the engine, the rows. The same
requests are given to a bare store beside it: what a request takes beyond that is book-keeping.
`listed` are pulls whose keys the server is to remember, and has not heard before.

    python bench/server_path.py
    python bench/server_path.py --keys 1 --profile
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import statistics
import time
from collections.abc import Callable

import numpy as np

from kv.kernels.jit import frozen
from kv.optimizers import Adagrad
from kv.spec import TableSpec
from kv.table_protocol import TABLES_APP, Command, table_id
from kv.table_server import TableServer
from postoffice.node import Node, Role
from postoffice.postoffice import ClusterShape, Postoffice
from van.loopback import LoopbackNetwork
from van.message import Flag, Message, Meta

ROWS, LISTS = 1_000_000, 64
WORKER = Node(Role.WORKER, 0, "w", 1)


class SilentOffice(Postoffice):
    """A server node whose answers go nowhere."""

    def __init__(self) -> None:
        shape = ClusterShape(servers=1, workers=1, scheduler="nowhere")
        super().__init__(Role.SERVER, LoopbackNetwork().van(), shape)
        server = Node(Role.SERVER, 0, "s", 1)
        self.nodes = {node.id: node for node in (server, WORKER)}
        self.node_id, self.error = server.id, None

    def send(self, message: Message) -> None:
        self.error = self.error or message.meta.error


class Served:
    """One table of a server, and requests about it."""

    def __init__(self, dim: int) -> None:
        self.office, self.dim, self.timestamps = SilentOffice(), dim, itertools.count()
        self.server = TableServer(self.office, threads=1)
        self.spec = TableSpec("t", "sparse", dim=dim, optimizer=Adagrad(lr=0.01))
        self.server.engine.define(self.spec)
        self.ask(Command.DEFINE, Flag.NONE, [], self.spec.to_dict(), ())
        keys = np.arange(1, ROWS + 1, dtype=np.uint64)
        for start in range(0, ROWS, 2000):
            self.ask(Command.PULL, Flag.PULL, [frozen(keys[start : start + 2000])])

    def ask(self, command, flags, arrays, body=None, clocks=None, key_list=0) -> None:
        timestamp = next(self.timestamps)
        meta = Meta(
            sender=WORKER.id,
            incarnation=1,
            flags=flags,
            app=TABLES_APP,
            timestamp=timestamp,
            oldest=timestamp,
            piece=1,
            cmd=command,
            clocks=((table_id("t"), 0, ()),) if clocks is None else clocks,
            body={"create": True} if command == Command.PULL else body,
            key_list=key_list,
        )
        self.office._receive_request(Message(meta, list(arrays)))
        assert self.office.error is None, self.office.error

    def pull(self, keys: np.ndarray) -> None:
        self.ask(Command.PULL, Flag.PULL, [keys])

    def pull_listed(self, keys: np.ndarray) -> None:
        self.ask(Command.PULL, Flag.PULL, [keys], key_list=next(self.timestamps) + 1)

    def push(self, keys: np.ndarray, grads: np.ndarray) -> None:
        self.ask(Command.PUSH, Flag.PUSH, [keys, grads])


def lists_of(count: int) -> list[np.ndarray]:
    """Increasing keys of rows that are there, as they arrive."""
    rng = np.random.default_rng(1)
    return [
        frozen(np.sort(rng.choice(ROWS, count, replace=False)).astype(np.uint64) + np.uint64(1))
        for _ in range(LISTS)
    ]


def measure(call: Callable[[np.ndarray], object], lists: list[np.ndarray], seconds: float) -> float:
    """The median time of `call` over the lists in turn, in microseconds."""
    times, stop, turns = [], time.perf_counter() + seconds, itertools.cycle(lists)
    while time.perf_counter() < stop or len(times) < 5:
        keys = next(turns)
        started = time.perf_counter()
        call(keys)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[1, 1_000, 10_000])
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    served = Served(options.dim)
    store = served.server.engine.tables[0].store.parts[0].store
    print(f"{'keys':>8} {'pull':>8} {'listed':>8} {'store':>8} {'push':>8} {'store':>8}   us")
    for count in options.keys:
        lists = lists_of(count)
        grads = frozen(np.full((count, options.dim), 1e-3, np.float32))
        out = np.empty((count, options.dim), np.float32)
        calls = {
            "pull": served.pull,
            "pull, remembered": served.pull_listed,
            "store pull": lambda keys, out=out: store.pull(keys, True, out),
            "push": lambda keys, grads=grads: served.push(keys, grads),
            "store push": lambda keys, grads=grads: store.push(keys, grads),
        }
        times = [measure(call, lists, options.seconds) for call in calls.values()]
        print(f"{count:>8} " + " ".join(f"{t:>8.1f}" for t in times))
        if options.profile:
            for call in (served.pull, calls["push"]):
                profile = cProfile.Profile()
                profile.runcall(lambda call=call, k=lists[0]: [call(k) for _ in range(2000)])
                pstats.Stats(profile).sort_stats("tottime").print_stats(22)
    served.server.close()


if __name__ == "__main__":
    main()
