"""Answers that are given once: copies of a request get the first, until its worker has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kv.replay.answers import KeptAnswers
from kv.table_protocol import Command
from van.message import Kind, Message, Meta, answer_to

REFUSED = ("VersionMismatchError", "too stale", 8)


def request(timestamp: int = 5, command: int = Command.PULL, base: int = 1, **facts: Any) -> Meta:
    clocks = ((7, 3, ((0, base),)),)
    return Meta(sender=9, incarnation=2, timestamp=timestamp, cmd=command, clocks=clocks, **facts)


def answer(meta: Meta, error: tuple[str, str, int] | None = None) -> Message:
    kind = Kind.OK if error is None else Kind.ERROR
    return Message(answer_to(meta, kind, error=error), [np.arange(3.0)])


@pytest.mark.parametrize("command", [Command.PULL, Command.SCAN, Command.SIZE, Command.PUSH_PULL])
def test_a_copy_of_a_read_gets_the_first_answer(command: Command) -> None:
    kept, meta = KeptAnswers(), request(command=command)
    kept.keep(meta, answer(meta))

    again = kept.again(request(command=command))

    assert again is not None
    np.testing.assert_array_equal(again.arrays[0], np.arange(3.0))
    assert kept.again(request(timestamp=6, command=command)) is None


def test_of_pushes_nothing_is_kept_but_that_they_were_refused_for_now() -> None:
    kept, push = KeptAnswers(), request(command=Command.PUSH)
    kept.keep(push, answer(push))
    assert kept.again(push) is None

    kept.keep(push, answer(push, REFUSED))

    assert kept.again(request(command=Command.PUSH)) is not None  # a copy
    assert kept.again(request(command=Command.PUSH, base=2)) is None  # it is tried anew


def test_what_a_worker_has_is_forgotten() -> None:
    kept = KeptAnswers()
    for timestamp in (5, 6, 7):
        kept.keep(request(timestamp), answer(request(timestamp)))
    assert len(kept) == 3

    assert kept.again(request(8, oldest=7)) is None

    assert len(kept) == 1
    assert kept.again(request(7)) is not None


def test_another_life_of_a_worker_gets_no_answer_of_the_one_before() -> None:
    kept, meta = KeptAnswers(), request()
    kept.keep(meta, answer(meta))
    meta.incarnation = 3

    assert kept.again(meta) is None
