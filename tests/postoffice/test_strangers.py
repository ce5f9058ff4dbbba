"""Peers without an id are answered, but not any number of them at a time."""

from __future__ import annotations

from postoffice.strangers import Strangers


def test_strangers_beyond_the_bound_are_admitted_again_when_sockets_have_closed() -> None:
    strangers = Strangers(most=3, seconds=4.0)

    assert [strangers.admits(t) for t in (0.0, 0.5, 1.0, 1.5, 3.9)] == [True] * 3 + [False] * 2
    assert [strangers.admits(t) for t in (4.0, 4.1, 4.5)] == [True, False, True]
