"""Writing to readers who pause, break off, or never come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from pslite.writers import FULL, ThreadWriter

PATIENCE = 30.0
BIG = "y" * (FULL + 1)


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    """The reading end of a pipe, and its writing end."""
    reading, writing = os.pipe()
    with open(reading, "rb") as reader:
        yield reader, writing
    os.close(writing)


def test_all_is_written_in_order(pipe: tuple[BinaryIO, int]) -> None:
    reader, writing = pipe
    writer = ThreadWriter(writing, "utf-8")

    for text in ("one\n", "", "café\n"):
        writer.put(text)
    assert writer.drain(PATIENCE)
    writer.close()

    assert reader.readline() + reader.readline() == "one\ncafé\n".encode()


def test_a_paused_reader_holds_up_the_thread_and_not_the_caller(pipe: tuple[BinaryIO, int]) -> None:
    reader, writing = pipe
    writer = ThreadWriter(writing, "utf-8")

    writer.put(BIG)
    assert writer.is_full
    assert not writer.drain(0.01)

    assert len(reader.read(len(BIG))) == len(BIG)
    assert writer.drain(PATIENCE)
    assert not writer.is_full
    writer.close()


def test_a_descriptor_that_does_not_block_gets_everything(pipe: tuple[BinaryIO, int]) -> None:
    reader, writing = pipe
    os.set_blocking(writing, False)
    writer = ThreadWriter(writing, "utf-8")

    writer.put(BIG)

    assert len(reader.read(len(BIG))) == len(BIG)
    assert writer.drain(PATIENCE)
    writer.close()


def test_a_reader_who_breaks_off_is_noticed_and_the_rest_dropped(
    pipe: tuple[BinaryIO, int],
) -> None:
    reader, writing = pipe
    writer = ThreadWriter(writing, "utf-8")
    writer.put(BIG)

    reader.close()

    assert writer.drain(PATIENCE)
    assert writer.is_broken
    writer.put("more")
    assert writer.drain(0.0)
    assert not writer.is_full
    writer.close()


def test_what_the_encoding_lacks_is_an_escape(pipe: tuple[BinaryIO, int]) -> None:
    reader, writing = pipe
    writer = ThreadWriter(writing, "ascii")

    writer.put("café\n")

    assert reader.readline() == b"caf\\xe9\n"
    writer.close()
