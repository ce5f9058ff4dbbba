"""Workers that are sent from one way to another, at moments that a seed chooses."""

from __future__ import annotations

import random

from kv.remote_worker import RemoteWorker
from postoffice.node import Role, node_id
from tests.kv.dispatcher.tier import Tier


class Mover:
    """Beside the nodes of a tier: sends its workers elsewhere, again and again.

    Args:
        seed: of who goes where, and when.
        pause: most messages between two changes.

    Attributes:
        changes: how many there were.
    """

    def __init__(self, tier: Tier, seed: int, pause: int = 40) -> None:
        self._tier, self._chance, self._pause = tier, random.Random(seed), pause
        self._workers: dict[int, RemoteWorker] = {}
        self._number = 0
        self.changes = 0

    def meet(self, worker: RemoteWorker) -> None:
        """Told by each worker's program as it begins."""
        self._workers[worker.rank] = worker

    def run(self) -> None:
        """A program: go on until a worker has ended."""
        tier = self._tier
        tier.wait(lambda: len(self._workers) == tier.workers)
        while not any(tier.network.is_over(f"worker {rank}") for rank in range(tier.workers)):
            self._change()
            self.changes += 1
            tier.wait_for_events(self._chance.randint(1, self._pause))

    def _change(self) -> None:
        chance, tier = self._chance, self._tier
        worker = self._workers[chance.randrange(tier.workers)]
        dispatcher = chance.randrange(tier.shape.dispatchers)
        if chance.random() < 0.5:
            assert tier.app is not None
            office = tier.app.office
            ways = {**office.view.ways, worker.office.node_id: dispatcher}
            office.redirect({node: rank for node, rank in ways.items() if chance.random() < 0.8})
        else:
            self._number += 1
            life = worker.office.nodes.get(node_id(Role.DISPATCHER, dispatcher))
            spills = chance.random() < 0.5
            if life is not None:
                worker.way.ask((life.id, life.incarnation), self._number, spills)
