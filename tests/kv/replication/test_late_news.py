"""The scheduler hears late that a copy is complete: what changes until then is copied, too."""

from __future__ import annotations

import numpy as np
import pytest

from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from kv.replication.protocol import PLACEMENT_APP, Said
from tests.kv.replication.replicated import Replicated
from van.faults import FaultPlan, Faults
from van.message import Meta

KEYS = np.arange(40, dtype=np.uint64)
SERVER_1 = 10


class Deafness:
    """While it lasts, the scheduler does not hear that server 1 has done what it was ordered."""

    def __init__(self) -> None:
        self.lasts = True
        self.plan = FaultPlan(0, everywhere=Faults(drop=1.0), hits=self._hits)

    def _hits(self, meta: Meta) -> bool:
        is_report = meta.app == PLACEMENT_APP and meta.cmd == Said.DONE
        return self.lasts and is_report and meta.sender == SERVER_1


@pytest.mark.parametrize("seed", range(4))
def test_a_push_between_a_complete_copy_and_its_map_is_in_the_copy(seed: int) -> None:
    deafness = Deafness()
    cluster = Replicated(seed, plan=deafness.plan)

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        owner = cluster.servers[1]
        # Server 1 has done its fill, and takes up a map that knows of the other fill only.
        cluster.wait(lambda: bool(owner._done) and owner.map_version > 0)
        assert owner.desk.slots.has_backups
        assert (owner.desk.slots.backup[owner.mine] == 0xFFFF).all()

        worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
        deafness.lasts = False
        cluster.wait_until_copied()

        np.testing.assert_array_equal(cluster.rows_of(0, KEYS), -np.ones((KEYS.size, 1)))
        np.testing.assert_array_equal(cluster.rows_of(1, KEYS), -np.ones((KEYS.size, 1)))

    cluster.start_worker(0, program)
    cluster.run()


def test_a_fill_ends_when_the_owner_has_a_map_that_knows_of_it() -> None:
    deafness = Deafness()
    cluster = Replicated(0, plan=deafness.plan)

    def program(worker: RemoteWorker) -> None:
        owner = cluster.servers[1]
        cluster.wait(lambda: owner.map_version > 0)
        (number,) = owner.tasks
        owner._end_fill(number, owner.map_version + 1)  # its map is one too old
        assert list(owner.tasks) == [number]
        deafness.lasts = False
        cluster.wait_until_copied()
        cluster.wait(lambda: not any(server.tasks for server in cluster.living()))
        (peer,) = owner.out.peers
        np.testing.assert_array_equal(peer.slots, owner.mine)
        np.testing.assert_array_equal(peer.counted, owner.mine)

    cluster.start_worker(0, program)
    cluster.run()
