"""Whether a node has too much to do, and when that is over: marks, patience and hysteresis.

Pure: readings and the time come in, decisions go out. A high mark must be reached for `patience`,
all low ones undercut for `calm`, and between two decisions lies `hold`; so a load that swings
around a mark decides nothing, and one that swings between both marks decides seldom. Where relief
is what made a node calm, taking it back brings the load back: each time that happens soon after,
calm must last twice as long, up to 16 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kv.dispatcher.balance_config import BalanceConfig

MOST = 16  # times `calm`


@dataclass(frozen=True)
class Reading:
    """A value beside its marks.

    Args:
        metric: such as `queue`.
        low, high: the marks.
    """

    metric: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """What was decided, why, and by whom.

    Args:
        number: of this node's decisions, from 1.
        what: `spill`, `return` (past a dispatcher, and back), `move`, `home` (to another one, and
            back), `compress`, `plain`.
        metric, value, mark: the cause: what was measured beside the mark that it passed.
        node: who decided.
        about: the node that had too much to do, or has room.
        workers: ranks of those who go another way.
        to: rank of the dispatcher that they go to; None: to the servers.
        table: whose compression it is about.
        epoch: in which it was decided, of a move that which brings it about.
        at: seconds since 1970.
    """

    number: int
    what: str
    metric: str
    value: float
    mark: float
    node: str = ""
    about: str = ""
    workers: tuple[int, ...] = ()
    to: int | None = None
    table: str = ""
    epoch: int = 0
    at: float = 0.0

    def pack(self) -> dict[str, Any]:
        """As msgpack types."""
        return {**asdict(self), "workers": list(self.workers)}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Decision:
        """The inverse; raises KeyError or TypeError on anything else."""
        return cls(**{**packed, "workers": tuple(packed["workers"])})

    def __str__(self) -> str:
        cause = f"{self.metric} {self.value:.6g}, mark {self.mark:.6g}"
        who = f"worker{'s' * (len(self.workers) > 1)} {', '.join(map(str, self.workers))}"
        said = {
            "spill": f"{who} to go past {self.about}",
            "return": f"{who} to come back to {self.about}",
            "move": f"{who} to go through dispatcher {self.to} in place of {self.about}",
            "home": f"{who} to come back to {self.about}",
            "compress": f"table {self.table} to be compressed by {self.about}",
            "plain": f"table {self.table} to be compressed no more by {self.about}",
        }[self.what]
        return f"{said}: {cause} (epoch {self.epoch})"


class Watch:
    """Since when readings are high, or low.

    Attributes:
        high: the reading that is at its high mark, None: none is.
        nearest: while all are low, the one that is nearest to its low mark.
    """

    def __init__(self) -> None:
        self.high: Reading | None = None
        self.nearest: Reading | None = None
        self._high_since: float | None = None
        self._low_since: float | None = None

    def look(self, now: float, readings: Sequence[Reading]) -> None:
        """Note what is measured now."""
        self.high = next((one for one in readings if one.value >= one.high), None)
        is_low = all(one.value < one.low for one in readings)
        self.nearest = max(readings, key=lambda one: one.value / one.low) if is_low else None
        if self.high is None:
            self._high_since = None
        elif self._high_since is None:
            self._high_since = now
        if not is_low:
            self._low_since = None
        elif self._low_since is None:
            self._low_since = now

    def high_for(self, now: float) -> float:
        """Seconds for which a high mark has been reached without a break; -1: none is."""
        return -1.0 if self._high_since is None else now - self._high_since

    def low_for(self, now: float) -> float:
        """Seconds for which all low marks have been undercut; -1: they are not."""
        return -1.0 if self._low_since is None else now - self._low_since

    def begin_again(self, now: float) -> None:
        """What is calm must be so anew."""
        if self._low_since is not None:
            self._low_since = now


class Hysteresis:
    """When to relieve, and when to take that back.

    Args:
        config: marks and times.

    Attributes:
        factor: so many times `calm` must calm last.
    """

    def __init__(self, config: BalanceConfig) -> None:
        self._config, self.watch, self.factor = config, Watch(), 1
        self._decided: float | None = None
        self._returned: float | None = None

    def look(self, now: float, readings: Sequence[Reading]) -> None:
        """Note what is measured now."""
        self.watch.look(now, readings)

    @property
    def calm(self) -> float:
        """Seconds below the low marks after which relief is taken back."""
        return self._config.calm * self.factor

    def _may(self, now: float) -> bool:
        return self._decided is None or now - self._decided >= self._config.hold

    def is_relief_due(self, now: float) -> bool:
        """Whether something is to be done about the load."""
        return self._may(now) and self.watch.high_for(now) >= self._config.patience

    def is_return_due(self, now: float) -> bool:
        """Whether it is time to take back what was done."""
        return self._may(now) and self.watch.low_for(now) >= self.calm

    def relieved(self, now: float) -> None:
        """Something was done."""
        if self._returned is not None:
            is_soon = now - self._returned < 2 * self.calm
            self.factor, self._returned = min(MOST, 2 * self.factor) if is_soon else 1, None
        self._decided = now

    def returned(self, now: float) -> None:
        """Something was taken back."""
        self._decided = self._returned = now
        self.watch.begin_again(now)
