"""The reader that remembers headers says of each what reading it whole says."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.van.test_codec import METAS
from van.codec import decode_header, encode
from van.config import VanConfig
from van.errors import CodecError
from van.headers import HeaderReader
from van.message import Flag, Kind, Message, Meta

CONFIG = VanConfig()
KEYS, ROWS = np.arange(3, dtype=np.uint64), np.ones((3, 2), np.float32)


def request(timestamp: int, **fields: Any) -> bytes:
    meta = Meta(
        sender=9,
        recipient=8,
        incarnation=2**60,
        flags=Flag.PULL,
        app=2,
        timestamp=timestamp,
        oldest=timestamp,
        clocks=((2**63, 4, ()),),
        body={"create": True},
    )
    for name, value in fields.items():
        setattr(meta, name, value)
    return bytes(encode(Message(meta, [KEYS]), CONFIG)[0])


def outcome(read: Any, header: bytes) -> object:
    try:
        meta, descriptors = read(header)
    except CodecError as error:
        return type(error), str(error)
    # Equality alone would take True for 1.
    return repr(meta), meta, list(descriptors)


def test_headers_that_come_again_are_read_as_the_first_was() -> None:
    reader = HeaderReader(CONFIG)
    for number in (*range(300), 2**16, 2**32, 2**64 - 1):
        for fields in ({}, {"flags": Flag.PUSH, "body": None}, {"kind": Kind.ERROR, "sender": 11}):
            header = request(number, clocks=((2**63, number, ()),), **fields)

            found = outcome(reader.read, header)

            assert found == outcome(lambda h: decode_header(h, CONFIG), header)


def test_a_known_header_is_not_taken_apart_whole(monkeypatch: Any) -> None:
    reader = HeaderReader(CONFIG)
    reader.read(request(1))
    monkeypatch.setattr("van.headers.decode_header", None)

    meta, _ = reader.read(request(2))

    assert (meta.timestamp, meta.body, meta.clocks) == (2, {"create": True}, ((2**63, 4, ()),))


def test_a_body_that_its_reader_changes_is_whole_the_next_time() -> None:
    reader = HeaderReader(CONFIG)
    for number in range(3):
        meta, _ = reader.read(request(number))

        assert meta.body.pop("create") is True


@given(metas=st.lists(METAS, min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_any_header_is_read_as_decode_header_reads_it(metas: list[Meta], seed: int) -> None:
    rng, reader = random.Random(seed), HeaderReader(CONFIG)
    headers = [bytes(encode(Message(meta, [KEYS, ROWS]), CONFIG)[0]) for meta in metas]
    for header in rng.choices(headers, k=20):
        assert outcome(reader.read, header) == outcome(lambda h: decode_header(h, CONFIG), header)


def test_changed_headers_are_read_or_refused_as_decode_header_does() -> None:
    rng, reader = random.Random(1), HeaderReader(CONFIG)
    templates = [request(5), request(700, body=None), request(7, clocks=((1, 2, ((3, 4),)),))]
    refused = 0
    for number in range(30_000):
        header = bytearray(templates[number % 3])
        for _ in range(rng.randint(0, 3)):
            place = rng.randrange(len(header))
            kind = rng.randrange(3)
            if kind == 0:
                header[place] = rng.choice((rng.randrange(256), 0xC2, 0xC3, 0xD0, 0xCF, 0xD3, 0x90))
            elif kind == 1:
                del header[place : place + rng.randint(1, 3)]
            else:
                header[place:place] = rng.choice((b"\x00", b"\xff", b"\x90", b"\xc3", b"\xa0"))
        expected = outcome(lambda h: decode_header(h, CONFIG), bytes(header))

        assert outcome(reader.read, bytes(header)) == expected

        refused += isinstance(expected, tuple) and isinstance(expected[0], type)
    assert 5_000 < refused < 25_000


def test_what_is_remembered_stays_small() -> None:
    reader = HeaderReader(CONFIG)
    for number in range(2_000):
        reader.read(request(number, sender=number, key_list=number, body={"n": number}))

    assert len(reader._starts) <= 64
    assert len(reader._ends) <= 64
    assert len(reader._end_sizes) <= 4


def test_numbers_of_other_types_are_refused_in_the_middle_of_a_known_header() -> None:
    reader = HeaderReader(CONFIG)
    fields = list(msgpack.unpackb(request(1), use_list=False))
    reader.read(msgpack.packb(fields))
    for place, wrong in ((11, True), (12, 1.0), (13, -1), (16, 2**31), (18, (1,))):
        changed = msgpack.packb([*fields[:place], wrong, *fields[place + 1 :]])

        assert outcome(reader.read, changed)[0] is CodecError
