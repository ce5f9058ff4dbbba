"""What every van does, whatever its messages travel by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from van.config import VanConfig
from van.courier import ZmqVan, new_context
from van.lane_connection import LaneConnection
from van.loopback import LoopbackNetwork
from van.message import Flag, Message, Meta
from van.van import Van
from van.virtual import VirtualNetwork
from van.wires import Wires

LIMIT = 30.0
WIRES = Wires(latency=0.001, bandwidth=1e9)
WAYS = ("tcp", "ipc", "local", "inproc", "loopback", "virtual")
ALONE = ("loopback", "virtual")  # they move only while somebody waits


class Pair:
    """Two vans that know each other: 9 asks, 8 is asked."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.context = None
        if way in ALONE:
            network = LoopbackNetwork(seed=1) if way == "loopback" else VirtualNetwork(WIRES)
            self.asker: Van = network.van()
            self.asked: Van = network.van()
        elif way == "inproc":
            self.context = new_context()
            self.asker = ZmqVan(context=self.context, background=False)
            self.asked = ZmqVan(context=self.context, background=False)
        else:
            config = VanConfig(transport=way, chunk=1 << 20)
            self.asker, self.asked = ZmqVan(config), ZmqVan(config, background=False)
        place = f"{way}://" if way in (*ALONE, "inproc") else "tcp://127.0.0.1:0"
        self.asker.bind(place + ("a" if place.endswith("://") else ""))
        self.asked.bind(place + ("b" if place.endswith("://") else ""))
        self.asker.connect(8, self.asked.address)
        self.asked.connect(9, self.asker.address)
        self.got: list[Message] = []
        self.asked.receiver = self.got.append

    def until(self, count: int) -> None:
        for _ in range(3000):
            if self.asked.wait(lambda: len(self.got) >= count, LIMIT if self.is_lone else 0.01):
                return
            self.asker.wait(lambda: True)
        raise AssertionError(f"{len(self.got)} of {count} messages came")

    @property
    def is_lone(self) -> bool:
        return self.way in ALONE

    def close(self) -> None:
        self.asker.close()
        self.asked.close()
        if self.context is not None:
            self.context.term()


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(request.param)
    yield pair
    pair.close()


def test_each_way_is_the_one_that_was_asked_for(pair: Pair) -> None:
    if isinstance(pair.asker, ZmqVan):
        peer = pair.asker._ends._peers[8]

        assert isinstance(peer, LaneConnection) == (pair.way == "local")
        assert pair.way in repr(peer) or pair.way == "local"


def test_messages_of_all_sizes_keep_their_order(pair: Pair) -> None:
    sizes = [0, 10, 3_000_000, 1, 70_000, 5, 2_500_000, 65_536, 0] * 3
    for number, size in enumerate(sizes):
        array = np.full(size, number, np.uint8)
        pair.asker.send(Message(Meta(recipient=8, timestamp=number), [array]))

    pair.until(len(sizes))

    assert [m.meta.timestamp for m in pair.got] == list(range(len(sizes)))
    for number, (message, size) in enumerate(zip(pair.got, sizes, strict=True)):
        assert message.arrays[0].shape == (size,)
        assert (message.arrays[0] == number).all()


def test_arrays_arrive_with_type_and_shape_read_only_and_aligned(pair: Pair) -> None:
    rng = np.random.default_rng(0)
    sent = [
        rng.integers(0, 2**63, 3).astype(np.uint64),
        rng.standard_normal((40, 3)).astype(np.float32),
        rng.standard_normal((2000, 64)).astype(np.float16),
        np.zeros((0, 5), np.int32),
        np.array(7.0),
        rng.standard_normal((3, 4)).T,
    ]
    pair.asker.send(Message(Meta(recipient=8, body={"a": [1, None]}), sent))

    pair.until(1)

    assert pair.got[0].meta.body == {"a": (1, None)}
    for got, array in zip(pair.got[0].arrays, sent, strict=True):
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.flags.aligned
        assert not got.flags.writeable
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("count", [30_000, 2_000_000])
def test_a_message_gives_away_only_what_nobody_else_has(pair: Pair, count: int) -> None:
    array = np.ones(count, np.float32)

    pair.asker.send(Message(Meta(recipient=8), [array]))
    pair.until(1)

    got = pair.got[0]
    assert got.is_ours == (pair.way in ("tcp", "ipc"))
    if got.is_ours:
        mine = got.arrays[0].view()
        mine.flags.writeable = True
        mine[:] = 2
        assert (array == 1).all()


def test_an_array_made_for_a_peer_travels_like_any_other(pair: Pair) -> None:
    array = pair.asker.empty(8, (500, 100), np.float32)
    array[:] = np.arange(50_000).reshape(500, 100)

    pair.asker.send(Message(Meta(recipient=8), [array, array[1:]]))
    pair.until(1)

    np.testing.assert_array_equal(pair.got[0].arrays[0], array)
    np.testing.assert_array_equal(pair.got[0].arrays[1], array[1:])


def test_a_handler_may_answer(pair: Pair) -> None:
    answers: list[int] = []
    pair.asker.receiver = lambda message: answers.append(message.meta.timestamp)
    meta = Meta(recipient=9, flags=Flag.ANSWER)

    def answer(message: Message) -> None:
        pair.got.append(message)
        meta.timestamp = message.meta.timestamp
        pair.asked.send(Message(meta, message.arrays))

    pair.asked.receiver = answer
    for number in range(5):
        pair.asker.send(Message(Meta(recipient=8, timestamp=number), [np.ones(100_000)]))
        pair.until(number + 1)
        assert pair.asker.wait(lambda number=number: len(answers) == number + 1, LIMIT)

    assert answers == [0, 1, 2, 3, 4]


def test_what_was_sent_and_received_is_counted(pair: Pair) -> None:
    for number in range(4):
        pair.asker.send(Message(Meta(recipient=8, timestamp=number)))
    pair.until(4)
    pair.asker.send(Message(Meta(recipient=77)))

    assert pair.asker.has_room(8)
    assert pair.asker.wait(lambda: pair.asker.counts["undeliverable"] == 1, LIMIT)
    assert pair.asker.counts["sent"] == 4
    assert pair.asked.counts["received"] == 4
