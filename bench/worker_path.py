"""Microseconds that a table request costs on the worker, without van and server.

A stand-in for the node answers every message at once, so what is left is the worker's own path:
lists checked, cut and described, values copied, answers put into their places. The second table has
the stages in which lists and values are touched; what a request takes beyond them is the
description: cutting, headers, book-keeping.

    python bench/worker_path.py
    python bench/worker_path.py --keys 1 --profile
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kv.kernels.jit import frozen
from kv.kernels.merge import first_unsorted, merge_keys
from kv.kernels.rows import scatter
from kv.kernels.transfer import copy_finite, gather_pairs
from kv.keylists.coding import decode, encode
from kv.keylists.merged import MergedLists
from kv.keylists.signature import signature_of
from kv.placement import SlotMap
from kv.remote_worker import RemoteWorker
from kv.routing import split
from kv.table_protocol import Command
from postoffice.node import Node, Role
from postoffice.postoffice import ClusterShape, Postoffice
from van.loopback import LoopbackNetwork
from van.message import Kind, Message, Meta


class InstantOffice(Postoffice):
    """A node whose servers answer before `send` returns, with values of the right shapes."""

    def __init__(self, servers: int, dim: int) -> None:
        shape = ClusterShape(servers=servers, workers=1, scheduler="nowhere")
        super().__init__(Role.WORKER, LoopbackNetwork().van(), shape)
        nodes = [Node(Role.SERVER, rank, f"s{rank}", 1) for rank in range(servers)]
        self.nodes = {node.id: node for node in [*nodes, Node(Role.WORKER, 0, "w", 1)]}
        self.node_id = self.nodes[9].id
        self._values = np.zeros((1 << 21, dim), np.float32)
        self._values.flags.writeable = False
        self._lists: dict[int, list[Any]] = {}

    def send(self, message: Message) -> None:
        meta = message.meta
        arrays: list[Any] = []
        if meta.cmd == Command.PULL:
            lists = self._lists.setdefault(meta.key_list, message.arrays)
            named = meta.key_list and not message.arrays
            arrays = [self._values[: keys.size] for keys in (lists if named else message.arrays)]
        answer = Meta(
            sender=meta.recipient, kind=Kind.OK, timestamp=meta.timestamp, clocks=meta.clocks
        )
        self._customers[meta.app, meta.customer].take_answer(Message(answer, arrays))

    def wait(self, done: Callable[[], bool], *rest: Any) -> bool:
        assert done(), "an answer is missing"
        return True


def measure(call: Callable[[], object], seconds: float) -> float:
    """The median time of `call`, in microseconds."""
    call()
    times, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times) < 5:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[1, 1_000, 100_000])
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--servers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    print("requests, us")
    print(f"{'servers':>7} {'keys':>8} {'order':>18} {'pull':>9} {'push':>9}")
    for servers in options.servers:
        for count in options.keys:
            for order in ("increasing", "repeated", "repeated, known"):
                show(servers, count, order, options)
    print("\nstages, us")
    for count in options.keys:
        show_stages(count, options)


def show(servers: int, count: int, order: str, options: argparse.Namespace) -> None:
    """Print one line, and the profile if it is wanted."""
    worker = RemoteWorker(InstantOffice(servers, options.dim))
    table = worker.sparse_table("t", options.dim)
    keys = list_of(count, order)
    grads = np.ones((keys.size, options.dim), np.float32)

    if order == "repeated":
        worker.merged = MergedLists(limit=0)
    pull, push = (lambda: table.pull(keys)), (lambda: worker.wait(table.push(keys, grads)))
    times = [measure(call, options.seconds) for call in (pull, push)]
    print(f"{servers:>7} {count:>8} {order:>18} {times[0]:>9.1f} {times[1]:>9.1f}")
    if options.profile:
        for call in (pull, push):
            profile = cProfile.Profile()
            profile.runcall(lambda call=call: [call() for _ in range(1000)])
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def list_of(count: int, order: str) -> np.ndarray:
    """About `count` keys: increasing, or drawn from as many with repeats."""
    rng = np.random.default_rng(1)
    keys = np.unique(rng.integers(0, 10 * count, count, dtype=np.uint64))
    return keys if order == "increasing" else rng.choice(keys, count)


def show_stages(count: int, options: argparse.Namespace) -> None:
    """Print what the single passes over lists and values take."""
    keys, repeated = frozen(list_of(count, "increasing")), frozen(list_of(count, "repeated"))
    values = frozen(np.ones((keys.size, options.dim), np.float32))
    bits, out = values.view(np.uint32), np.empty(values.shape, np.float32)
    order, _ = split(SlotMap.even(2), keys, 2)
    out_keys, coded = np.empty(keys.size, np.uint64), encode(keys)
    stages: dict[str, Callable[[], object]] = {
        "check that a list increases": lambda: first_unsorted(keys),
        "merge a list": lambda: merge_keys(repeated),
        "signature of a list": lambda: signature_of([(1, keys)], 5),
        "cut a list for 2 servers": lambda: split(SlotMap.even(2), keys, 2),
        "copy gradients, 1 server": lambda: copy_finite(
            bits.reshape(-1), out.view(np.uint32).reshape(-1)
        ),
        "gather gradients, 2 servers": lambda: gather_pairs(
            keys, bits, order, out_keys, out.view(np.uint32)
        ),
        "put an answer, 1 server": lambda: np.copyto(out, values),
        "put answers, 2 servers": lambda: scatter(out, order, values),
        "code a list as differences": lambda: encode(keys),
    }
    if coded is not None:
        stages["decode it"] = lambda: decode(frozen(coded))
    print(f"{count} keys, dim {options.dim}")
    for name, stage in stages.items():
        print(f"    {name:<30} {measure(stage, options.seconds / 5):>9.1f}")


if __name__ == "__main__":
    main()
