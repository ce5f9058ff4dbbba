"""Settings of a dispatcher."""

from __future__ import annotations

from dataclasses import dataclass

from van.errors import ConfigError
from van.quantities import NBytes, Seconds

MOST_THREADS = 64
SHORTEST = 100e-6  # seconds between two looks: whoever looks more often does nothing else
MOST_USES = 255  # that are told apart


@dataclass(frozen=True, kw_only=True)
class DispatcherConfig:
    """One dispatcher, the ini section `[dispatcher]`.

    Raises:
        ConfigError: a value is out of range.
    """

    flush_interval: Seconds = 0.02  # pushes wait so long at most for those of other workers
    round_interval: Seconds = 1.0  # sync: the same; then the round's pushes go on one by one
    flush_size: NBytes = 16 << 20  # bytes of pushes that are sent on at once
    max_shard_size: NBytes = 1 << 20  # larger pushes are split, also where they are added up
    parallel_aggregators: int = 4  # threads that add up pushes, each its own part of the keys
    emergency_flush_threshold: int = 1000  # pushes waiting, above which all are sent on
    cache_size: NBytes = 64 << 20  # bytes of rows of a table kept for other workers; 0: none
    cache_age: Seconds = 0.0  # async: how long pulls are answered from there; 0s: never
    cache_staleness: int = 16  # async: updates since then, above which they are not
    cache_refresh: bool = True  # what is kept of pulls is refreshed, instead of pulled again
    hot_uses: int = 0  # recent uses that make a key hot: its rows leave first; 0: none does
    hot_interval: Seconds = 0.005  # hot rows wait so long at most for those of other workers
    max_under_way: int = 16  # merged pushes that servers have not answered; more are not sent

    def __post_init__(self) -> None:
        if not 1 <= self.parallel_aggregators <= MOST_THREADS:
            problem = f"expected 1 to {MOST_THREADS}, got {self.parallel_aggregators}"
            raise ConfigError(problem, section="dispatcher", key="parallel_aggregators")
        self._least("emergency_flush_threshold", 1)
        self._least("max_under_way", 1)
        self._least("max_shard_size", 4096)
        self._least("flush_size", 4096)
        for key in ("cache_size", "cache_age", "cache_staleness"):
            self._least(key, 0)
        if not 0 <= self.hot_uses <= MOST_USES:
            problem = f"expected 0 to {MOST_USES}, got {self.hot_uses}"
            raise ConfigError(problem, section="dispatcher", key="hot_uses")
        for key in ("flush_interval", "round_interval", "hot_interval"):
            if getattr(self, key) < SHORTEST:
                problem = f"expected 100us or more, got {getattr(self, key):g}s"
                raise ConfigError(problem, section="dispatcher", key=key)

    def _least(self, key: str, least: int) -> None:
        if getattr(self, key) < least:
            problem = f"expected {least} or more, got {getattr(self, key)}"
            raise ConfigError(problem, section="dispatcher", key=key)
