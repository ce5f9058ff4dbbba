"""Settings of the consistency modes, checked and ready to travel in a table's definition.

    Async       every push counts when it comes
    DCAsync     likewise, its gradient corrected for what others changed meanwhile
    SSP         likewise, but the fastest worker leads the slowest by so many steps at most
    Sync        rounds of all workers
    SemiSync    rounds that close with a quorum of the workers, or after a time

A mode is named in an ini file or a definition (`mode="ssp"`) or given with its settings
(`mode=SSP(staleness=2)`). No arrays and no Numba, so that any process may import this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kv.settings import Named

MOST_STALENESS = 1 << 30
LONGEST_WINDOW = 86400.0  # seconds


class Consistency(Named):
    """Base of all modes' settings.

    Attributes:
        holds: whether pushes may be kept back: who pushes must not change their arrays then.
        counts_steps: whether the mode must know when a worker's step ends.
    """

    family: ClassVar[str] = "consistency mode"
    holds: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = True

    def __str__(self) -> str:
        """The name, and the settings that are not as it alone would say."""
        default = type(self)()
        values = {f.name: getattr(self, f.name) for f in self._fields()}
        said = (f"{key}={v:g}" for key, v in values.items() if v != getattr(default, key))
        return f"{self.name}({shown})" if (shown := ", ".join(said)) else self.name

    @classmethod
    def of(cls, mode: str | Consistency) -> Consistency:
        """The settings that `mode` names or is.

        Raises:
            SettingError: no mode has that name.
        """
        return mode if isinstance(mode, Consistency) else Consistency.by_name(str(mode))


@dataclass(frozen=True)
class Async(Consistency):
    """Every push is applied when it comes, every pull answered at once.

    Args:
        lr_by_staleness: 1 divides the learning rate of a push by its staleness, the number of
            updates of the table since its worker pulled, where that is more than one; 0 does not.
            Source: Zhang et al., Staleness-aware Async-SGD, IJCAI 2016, equation 3.
    """

    name: ClassVar[str] = "async"
    counts_steps: ClassVar[bool] = False
    lr_by_staleness: float = 0

    def check(self) -> None:
        self.require(self.lr_by_staleness in (0, 1), "lr_by_staleness", "0 or 1")


@dataclass(frozen=True)
class DCAsync(Consistency):
    """As `Async`, with gradients compensated for their delay, whatever the optimiser.

    The optimiser gets g + lam g² (w - w_seen) for the gradient g of a weight that is w now and was
    w_seen when this worker pulled it.

    Args:
        lam: λ, how much is compensated; 0 nothing.
        memory: pulls that the server remembers of each worker, for w_seen: as many as the worker
            makes before it pushes the gradients of the first.

    Source: Zheng et al., Asynchronous SGD with delay compensation, ICML 2017, equation 10 and
    algorithm 2 (DC-ASGD-c).
    """

    name: ClassVar[str] = "dc_async"
    counts_steps: ClassVar[bool] = False
    lam: float = 0.04
    memory: float = 2

    def check(self) -> None:
        self.require(self.lam >= 0, "lam", "0 or more")
        whole = self.memory == int(self.memory)
        self.require(whole and 1 <= self.memory <= 1024, "memory", "a whole number, 1 to 1024")


@dataclass(frozen=True)
class SSP(Consistency):
    """Stale synchronous parallel: a pull waits while its worker leads by more than `staleness`.

    Pushes are applied when they come. A worker that has completed c steps is answered when every
    worker that has not finished has completed c - staleness.

    Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter
    server, NIPS 2013, section 3.
    """

    name: ClassVar[str] = "ssp"
    staleness: float = 4

    def check(self) -> None:
        whole = self.staleness == int(self.staleness)
        rule = f"a whole number, 0 to {MOST_STALENESS}"
        self.require(whole and 0 <= self.staleness <= MOST_STALENESS, "staleness", rule)


@dataclass(frozen=True)
class Sync(Consistency):
    """Rounds: step c of all workers makes round c, one update made of all its pushes."""

    name: ClassVar[str] = "sync"
    holds: ClassVar[bool] = True


@dataclass(frozen=True)
class SemiSync(Consistency):
    """Rounds that do not wait for everybody.

    A round closes when a quorum of the workers has ended a step in it. What a slower one pushes
    later counts in the round that is open then, or with `backup_workers` not at all.

    Args:
        quorum: below 1 the fraction of the workers that have not finished, rounded up; from 1 on
            their number.
        window: seconds after the first end of a step at which a round closes all the same; 0 never.
        backup_workers: above 0 a round closes without that many workers, and `quorum` is not asked:
            the slowest, whose gradients for it are dropped and counted.

    Sources: Chen et al., Revisiting distributed synchronous SGD, 2016, algorithm 4 (backups);
    Dutta et al., Slow and stale gradients can win the race, AISTATS 2018 (K-sync).
    """

    name: ClassVar[str] = "semi_sync"
    holds: ClassVar[bool] = True
    quorum: float = 0.75
    window: float = 0.0
    backup_workers: float = 0

    def check(self) -> None:
        is_count = self.quorum >= 1 and self.quorum == int(self.quorum)
        rule = "a fraction above 0 and below 1, or a whole number of workers"
        self.require(0 < self.quorum < 1 or is_count, "quorum", rule)
        self.require(0 <= self.window <= LONGEST_WINDOW, "window", "0 to 86400 seconds")
        whole = self.backup_workers == int(self.backup_workers)
        rule = "a whole number, 0 or more"
        self.require(whole and self.backup_workers >= 0, "backup_workers", rule)

    def needed(self, active: int) -> int:
        """How many of `active` workers make a round complete, at least one."""
        if self.backup_workers:
            return max(1, active - int(self.backup_workers))
        wanted = int(self.quorum) if self.quorum >= 1 else ceil_of(self.quorum, active)
        return max(1, min(wanted, active))


def ceil_of(fraction: float, count: int) -> int:
    """`fraction` of `count`, rounded up; 0.1 of 10 is 1, whatever binary fractions say.

    >>> ceil_of(0.75, 4), ceil_of(0.1, 10), ceil_of(0.7, 10), ceil_of(0.5, 3)
    (3, 1, 7, 2)
    """
    exact = fraction * count
    nearest = round(exact)
    return nearest if abs(exact - nearest) < 1e-9 * max(1, count) else int(exact) + 1
