"""What other threads have the van's thread do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kv.errors import KVError
from kv.replication.replicator import Replicator
from kv.table_server import TableServer
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from van.loopback import LoopbackNetwork

LIMIT = 30.0  # seconds


@pytest.fixture
def replicator() -> Replicator:
    shape = ClusterShape(servers=2, workers=1, scheduler="scheduler")
    office = Postoffice(Role.SERVER, LoopbackNetwork(0).van(), shape)
    replicator = Replicator(TableServer(office))
    replicator._note_thread()  # this one is the van's
    return replicator


def test_they_are_made_there_one_after_the_other(replicator: Replicator) -> None:
    made: list[tuple[int, int]] = []

    with ThreadPoolExecutor(1) as other:
        calls = [
            other.submit(
                replicator._in_van, lambda n=number: made.append((n, threading.get_ident()))
            )
            for number in range(3)
        ]
        while not calls[-1].done():
            replicator._tick()

    assert made == [(number, threading.get_ident()) for number in range(3)]


def test_an_error_is_raised_where_the_call_is_waited_for(replicator: Replicator) -> None:
    """Else that thread, and all behind it in its lanes, would wait for ever."""

    def fail() -> None:
        raise KVError("no map")

    with ThreadPoolExecutor(1) as other:
        call = other.submit(replicator._in_van, fail)
        while not replicator._later:
            assert not call.done()
        try:
            replicator._tick()
            with pytest.raises(KVError, match="no map"):
                call.result(LIMIT)
        finally:
            replicator.office.stop()  # lets a call go that waits all the same
