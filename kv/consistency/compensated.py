"""Mode `dc_async`: as `async`, but gradients are corrected for their delay.

A gradient was computed with the weights its worker pulled, w_seen, and is applied to those of now,
w. The diagonal of its outer product stands for the Hessian: g + λ g² (w - w_seen). The optimiser
gets the corrected gradient, whichever it is. The server remembers what it last answered each worker
with; of a key that is not among that the gradient stays as it is, which is counted.

Source: Zheng et al., Asynchronous SGD with delay compensation, ICML 2017, equation 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from kv.consistency.asynchronous import Asynchronous
from kv.consistency.base import Context, Keys, Update, Values
from kv.consistency.seen import SeenValues
from kv.consistency.settings import DCAsync


class DelayCompensated(Asynchronous):
    """The clock counts the pushes applied, as in `async`.

    Attributes:
        unseen: keys whose gradients were applied as they came.
    """

    name: ClassVar[str] = DCAsync.name
    notes_pulls: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, DCAsync)
        self.lam = np.float32(context.settings.lam)
        self.seen = SeenValues(self.progress.num_workers, int(context.settings.memory))
        self.unseen = 0

    def on_pull(self, rank: int, keys: Keys, values: Values) -> None:
        if not self.progress.finished[rank]:  # else it will push nothing
            self.seen.note(rank, self.clock, keys, values)

    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        (due,) = super().on_push(rank, step, update)
        seen, unknown = self.seen.find(rank, due.base, due.keys, due.grads.shape[1])
        self.unseen += unknown
        return (due._replace(seen=seen, lam=self.lam),)

    def counts(self) -> dict[str, int]:
        return {"unseen": self.unseen, "seen_nbytes": self.seen.nbytes}

    def settled(self) -> bool:
        for rank, done in enumerate(self.progress.finished):
            if done:
                self.seen.forget(rank)
        return super().settled()
