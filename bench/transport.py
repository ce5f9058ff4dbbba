"""Round trips and transfers of the van beside bare pyzmq, on this machine.

    python bench/transport.py                 # round trips, all transports
    python bench/transport.py --large         # arrays of 4 to 64 MB as well
    python bench/transport.py --json out.json

Two processes; this one asks, the other echoes. Both kinds alternate in short blocks, so that noise
of the machine meets all of them; the figures are the median over all blocks and the
first decile, which says what a quieter machine would show. `bare` is a DEALER
asking a ROUTER by blocking calls, one a frame, over the same transport. A large transfer is one
array one way, answered by a message without arrays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from van.config import VanConfig
from van.courier import ZmqVan
from van.message import Flag, Message, Meta

SHAPES = {"header": (), "8 B x 2": (8, 8), "32 B x 2": (32, 32), "8 KB x 2": (8192, 8192)}
LARGE = (65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
ASKER, ECHO = 9, 8
HEADER = b"h" * 60  # about what a header of the van takes


def van_config(transport: str) -> VanConfig:
    """Settings for one way of travelling, such as `tcp` or, with a larger piece, `tcp:16`."""
    way, _, mebibytes = transport.partition(":")
    chunk = int(mebibytes or 4) << 20
    return VanConfig(transport=way, chunk=chunk)  # type: ignore[arg-type]  # any text


# -- the other process --------------------------------------------------------------------


def echo_bare(address: str) -> None:
    """Send every message of a ROUTER back; a second frame of more than 64 KiB is not returned."""
    context: zmq.Context[Any] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(address)
    print(router.get_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        frames = [router.recv()]
        while router.getsockopt(zmq.RCVMORE):
            copy = len(frames) < 2 or len(frames[1]) != 61
            got = router.recv(copy=copy)
            frames.append(got if copy else b"")
        if len(frames) > 2 and frames[1] == b"":
            frames = frames[:2]
        for frame in frames[:-1]:
            router.send(frame, zmq.SNDMORE)
        router.send(frames[-1])


def echo_van(transport: str) -> None:
    """Answer every message with its small arrays."""
    van = ZmqVan(van_config(transport), background=False)

    def answer(message: Message) -> None:
        if message.meta.reply_to:
            van.connect(ASKER, message.meta.reply_to)
        small = [array for array in message.arrays if array.nbytes < 65536]
        meta = Meta(
            recipient=ASKER, flags=Flag.ANSWER | Flag.PULL, timestamp=message.meta.timestamp
        )
        van.send(Message(meta, small))

    van.receiver = answer
    print(van.bind("tcp://127.0.0.1:0"), flush=True)
    van.wait(lambda: False)


@contextlib.contextmanager
def echo(kind: str, place: str) -> Iterator[str]:
    """The other process; yields its address."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--echo", kind, place], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


# -- this process -------------------------------------------------------------------------

Trip = Callable[[], None]
"""One round trip."""


def bare_trips(address: str, stack: contextlib.ExitStack) -> Callable[[tuple[int, ...]], Trip]:
    """Round trips of bare pyzmq for given sizes of arrays."""
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    stack.callback(context.destroy, 0)
    dealer.connect(address)

    def trips(sizes: tuple[int, ...]) -> Trip:
        frames = [HEADER, *(b"a" * size for size in sizes)]

        def trip() -> None:
            for frame in frames[:-1]:
                dealer.send(frame, zmq.SNDMORE)
            dealer.send(frames[-1])
            dealer.recv()
            while dealer.getsockopt(zmq.RCVMORE):
                dealer.recv()

        return trip

    return trips


def bare_transfers(address: str, stack: contextlib.ExitStack) -> Callable[[tuple[int, ...]], Trip]:
    """One array to the other process without a copy, and an empty answer."""
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    stack.callback(context.destroy, 0)
    dealer.connect(address)

    def trips(sizes: tuple[int, ...]) -> Trip:
        array = np.ones(sizes[0], np.uint8)

        def trip() -> None:
            dealer.send(b"x" * 61, zmq.SNDMORE)
            dealer.send(array, copy=False)
            while True:
                dealer.recv()
                if not dealer.getsockopt(zmq.RCVMORE):
                    return

        return trip

    return trips


def van_trips(
    transport: str, address: str, stack: contextlib.ExitStack
) -> Callable[[tuple[int, ...]], Trip]:
    """Round trips from van to van."""
    van = ZmqVan(van_config(transport))
    stack.callback(van.close)
    answered = [0]

    def take(message: Message) -> None:
        answered[0] = message.meta.timestamp

    van.receiver = take
    van.bind("tcp://127.0.0.1:0")
    van.connect(ECHO, address)
    sent = [0]

    def trips(sizes: tuple[int, ...]) -> Trip:
        arrays = [np.ones(size, np.uint8) for size in sizes]
        if len(arrays) > 1:
            arrays = [array.view(np.uint64) for array in arrays]

        def trip() -> None:
            number = sent[0] = sent[0] + 1
            meta = Meta(recipient=ECHO, flags=Flag.PULL, timestamp=number)
            if number == 1:
                meta.reply_to = van.address
            van.send(Message(meta, list(arrays)))
            van.wait(lambda: answered[0] == number)

        return trip

    return trips


Found = dict[str, dict[str, tuple[float, float]]]
"""Microseconds, median and first decile, by case and kind."""


def summary(times: list[float]) -> tuple[float, float]:
    """Median and first decile."""
    return statistics.median(times), sorted(times)[len(times) // 10]


def alternate(trips: dict[str, Trip], blocks: int, length: int) -> dict[str, list[float]]:
    """Microseconds of each round trip, of all kinds in turn."""
    times: dict[str, list[float]] = {name: [] for name in trips}
    for _ in range(blocks):
        for name, trip in trips.items():
            for step in range(length + 2):
                start = time.perf_counter()
                trip()
                if step >= 2:
                    times[name].append(1e6 * (time.perf_counter() - start))
    return times


def run(transports: list[str], large: bool, blocks: int) -> Found:
    """Median and first decile by case and kind."""
    found: Found = {}
    with contextlib.ExitStack() as stack:
        bare = {
            name: stack.enter_context(echo("bare", place))
            for name, place in (("tcp", "tcp://127.0.0.1:*"), ("ipc", "ipc://@pslite-bench"))
        }
        makers = {f"bare {name}": bare_trips(at, stack) for name, at in bare.items()}
        movers = {f"bare {name}": bare_transfers(at, stack) for name, at in bare.items()}
        for transport in transports:
            address = stack.enter_context(echo("van", transport))
            maker = van_trips(transport, address, stack)
            makers[f"van {transport}"] = movers[f"van {transport}"] = maker
        for name, sizes in SHAPES.items():
            trips = {kind: maker(sizes) for kind, maker in makers.items()}
            times = alternate(trips, blocks, 100)
            found[name] = {kind: summary(taken) for kind, taken in times.items()}
        for nbytes in LARGE if large else ():
            trips = {kind: mover((nbytes,)) for kind, mover in movers.items()}
            times = alternate(trips, max(3, blocks // 4), max(4, min(50, (64 << 20) // nbytes)))
            found[f"{nbytes >> 10} KiB"] = {k: summary(t) for k, t in times.items()}
    return found


def show(found: Found) -> None:
    """Print the table: microseconds, and GB/s of large transfers."""
    kinds = list(next(iter(found.values())))
    print(f"{'us':>10}", *(f"{kind:>17}" for kind in kinds))
    for name, figures in found.items():
        print(f"{name:>10}", end=" ")
        for kind in kinds:
            median, decile = figures[kind]
            text = f"{median:.0f} ({decile:.0f})"
            if name.endswith("KiB"):
                text = f"{median:.0f} = {1024 * int(name[:-4]) / median / 1e3:.2f} GB/s"
            print(f"{text:>17}", end=" ")
        print()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--echo", nargs=2, help=argparse.SUPPRESS)
    ways = "comma separated; tcp:16 is tcp with [van] chunk = 16MiB"
    parser.add_argument("--transports", default="tcp,ipc,local", help=ways)
    parser.add_argument("--blocks", type=int, default=20, help="of 100 round trips each")
    parser.add_argument("--large", action="store_true", help="large arrays too")
    parser.add_argument("--json", type=Path, help="write the medians there")
    arguments = parser.parse_args()
    if arguments.echo:
        kind, place = arguments.echo
        echo_bare(place) if kind == "bare" else echo_van(place)
        return
    found = run(arguments.transports.split(","), arguments.large, arguments.blocks)
    show(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
