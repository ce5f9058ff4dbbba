"""How often something that was refused is tried again, and how long is waited in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Retry:
    """Waits that double, each with some chance, so that those refused together part.

    Args:
        most: tries after the first; 0 is none.
        base_delay: seconds before the first of them, about.
        max_delay: seconds before any of them, at most.
    """

    most: int = 5
    base_delay: float = 0.1
    max_delay: float = 2.0

    def waits(self, chance: random.Random) -> Iterator[float]:
        """Seconds before each further try: from half of the doubled delay to all of it.

        >>> [round(wait, 1) for wait in Retry(4, 1.0, 3.0).waits(random.Random(1))]
        [0.6, 1.8, 2.6, 1.9]
        """
        for number in range(self.most):
            delay = min(self.max_delay, self.base_delay * 2**number)
            yield delay * (1 + chance.random()) / 2
