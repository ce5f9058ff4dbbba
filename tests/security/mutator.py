"""Malformed messages of every kind, all of them decided by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np

from van import lane_packets as packets
from van.codec import encode, join
from van.config import VanConfig
from van.lane_packets import PacketKind, Tables
from van.message import Control, Flag, Kind, Message, Meta
from van.slabs import Place

CONFIG = VanConfig()
NOWHERE = "tcp://127.0.0.1:1"
ODD: list[Any] = [None, True, 0, -1, 7, 2**63, 2**64 - 1, 1.5, "", "x", b"\xff", [], [[]], {}]
ODD += [{"a": None}, ["worker"], "worker", "server", float("inf"), [1, 2, 3], "\0", "ü" * 50]
WORDS = ["role", "rank", "group", "name", "count", "passed", "error", "failure", "reason", "topic"]
WORDS += ["number", "you", "nodes", "create", "clock", "start", "table", "definition", "facts"]


def odd_body(rng: random.Random) -> Any:
    """A body of no sense, often with words that mean something."""
    if rng.random() < 0.3:
        return rng.choice(ODD)
    return {rng.choice(WORDS): rng.choice(ODD) for _ in range(rng.randint(0, 4))}


def odd_arrays(rng: random.Random) -> list[np.ndarray]:
    """Some arrays of any type and shape."""
    kinds = ["<u8", "<f4", "u1", "<f8", "<i4"]
    shapes = [(0,), (1,), (3,), (2, 2), (5, 1), (1, 0, 2)]
    return [
        np.zeros(rng.choice(shapes), rng.choice(kinds)) + rng.randint(0, 3)
        for _ in range(rng.randint(0, 4))
    ]


def odd_message(rng: random.Random) -> Message:
    """A message that the codec takes and nothing else should."""
    meta = Meta(
        sender=rng.choice([0, 1, 8, 9, 11, 77, 1 << 20, 2**64 - 1]),
        reply_to=rng.choice(["", "x", NOWHERE, "inproc://x", "tcp://", "tcp://h:1#k"]),
        recipient=rng.choice([0, 1, 8, 9, 99]),
        incarnation=rng.choice([0, 1, 2**64 - 1]),
        control=rng.choice(list(Control)),
        flags=Flag(rng.randrange(16)),
        kind=rng.choice(list(Kind)),
        app=rng.choice([0, 1, 103, 1 << 32]),
        customer=rng.choice([0, 1, 2**32]),
        timestamp=rng.choice([0, 1, 2**63]),
        cmd=rng.randint(-3, 14),
        priority=rng.randint(-2, 2),
        clocks=rng.choice([(), ((7, 0, ()),), ((2**40, 5, ((8, 1),)),)]),
        key_list=rng.choice([0, 1, 2**64 - 1]),
        chunk=rng.choice([(0, 1), (0, 1), (0, 3), (5, 2), (1, 2), (0, 2**40)]),
        body=odd_body(rng),
    )
    return Message(meta, odd_arrays(rng))


def frames_of(message: Message, rng: random.Random) -> list[bytes]:
    """The frames of a message, in one or in several."""
    frames = encode(message, CONFIG)
    if rng.random() < 0.5:
        return [bytes(join(frames))]
    return [bytes(memoryview(frame)) if len(frame) else b"" for frame in frames]


def with_odd_field(message: Message, rng: random.Random) -> list[bytes]:
    """A header in which one field is of a wrong type or out of its range."""
    frames = [bytes(memoryview(f)) if len(f) else b"" for f in encode(message, CONFIG)]
    fields = list(msgpack.unpackb(frames[0], strict_map_key=False))
    fields[rng.randrange(len(fields))] = rng.choice(ODD)
    if rng.random() < 0.1:
        fields = fields[: rng.randint(0, len(fields))]
    return [msgpack.packb(fields), *frames[1:]]


def bent(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """Frames of which some bytes are changed, cut off, put in, or whole frames are."""
    bent_frames = list(frames)
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(bent_frames))
        data = bytearray(bent_frames[where])
        how = rng.randrange(6)
        if how == 0 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif how == 1:
            data = data[: rng.randint(0, len(data))]
        elif how == 2:
            data += rng.randbytes(rng.randint(1, 9))
        elif how == 3:
            bent_frames.insert(rng.randint(0, len(bent_frames)), rng.randbytes(rng.randint(0, 40)))
            continue
        elif how == 4 and data:
            place = rng.randrange(len(data))
            data[place : place + 9] = bytes([rng.choice((0xCF, 0xD3, 0xDF, 0xC6))]) + b"\xff" * 8
        elif how == 5 and len(bent_frames) > 1:
            del bent_frames[where]
            continue
        bent_frames[where] = bytes(data)
    return bent_frames


def messages(seed: int, count: int) -> Iterator[list[bytes]]:
    """`count` messages for a ZeroMQ socket: strange, with a wrong field, bent, or noise."""
    rng = random.Random(seed)
    makers: list[Callable[[], list[bytes]]] = [
        lambda: frames_of(odd_message(rng), rng),
        lambda: with_odd_field(odd_message(rng), rng),
        lambda: bent(frames_of(odd_message(rng), rng), rng),
        lambda: [rng.randbytes(rng.randint(0, 60)) for _ in range(rng.randint(1, 5))],
    ]
    for _ in range(count):
        yield rng.choice(makers)()


def lane_packet(rng: random.Random) -> bytes:
    """A packet of the local lane that says what is not so, or is bent."""
    message = odd_message(rng)
    frames = encode(message, CONFIG)
    some = [(rng.choice([0, 1, 2**32 - 1]), rng.choice([0, 64, 2**63])) for _ in range(2)]
    tables = Tables(
        slabs=some[: rng.choice([0, 0, 1])],
        returns=some[: rng.choice([0, 0, 2])],
        drops=[rng.choice([0, 9, 2**32 - 1])] * rng.choice([0, 0, 1]),
    )
    choices = [packets.INLINE_PLACE, packets.STREAMED_PLACE, Place(2, 0), Place(70, 2**40)]
    places = [rng.choice(choices) for _ in frames] if rng.random() < 0.4 else ()
    kind = rng.choice(list(PacketKind))
    data = b"".join(bytes(memoryview(b)) for b in packets.pack(kind, frames, places, tables))
    return bent([data], rng)[0] if rng.random() < 0.6 else data


def stream(rng: random.Random) -> bytes:
    """What a peer that knows no ZeroMQ, or half of it, says on a tcp connection."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + rng.choice([b"NULL", b"CURVE", b"PLAIN"])
    greeting = greeting.ljust(64, b"\0")
    ready = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    huge = b"\x02" + rng.choice([2**63 - 1, 2**40, 2**31]).to_bytes(8, "big")
    return rng.choice(
        [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            rng.randbytes(rng.randint(1, 300)),
            greeting[: rng.randint(0, 64)],
            greeting + ready + rng.randbytes(rng.randint(0, 100)),
            greeting + huge,
            greeting + ready + huge + rng.randbytes(200),
            bent([greeting + ready], rng)[0],
        ]
    )
