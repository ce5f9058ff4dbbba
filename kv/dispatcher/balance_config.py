"""Settings of the balance between dispatchers, and of compression by need."""

from __future__ import annotations

from dataclasses import dataclass

from kv.dispatcher.config import SHORTEST
from van.errors import ConfigError
from van.quantities import Bandwidth, Seconds, Share


@dataclass(frozen=True, kw_only=True)
class BalanceConfig:
    """Who has too much to do is relieved, the ini section `[balance]`.

    Raises:
        ConfigError: a value is out of range, or a low mark is not below its high one.
    """

    overflow: bool = False  # workers go past a dispatcher that has too much to do, or to another
    check_interval: Seconds = 0.5  # how often nodes look at what they measure
    queue_high: int = 500  # pushes waiting in a dispatcher, from which on it has too much to do
    queue_low: int = 100  # below it, it has room again
    latency_high: Seconds = 1.0  # the longest sum of a dispatcher, likewise
    latency_low: Seconds = 0.1  # likewise
    patience: Seconds = 1.0  # so long at a high mark without a break, before something is done
    calm: Seconds = 10.0  # so long below all low marks, before something is taken back
    hold: Seconds = 5.0  # between two decisions of one node, at least
    move_after: Seconds = 5.0  # workers go past a dispatcher so long, then through another one
    when_busy: tuple[str, ...] = ()  # tables, sparse, dense or *: compressed only on a busy link
    link_rate: Bandwidth = 0.0  # what a node's link carries, which when_busy needs; 0: not known
    bandwidth_high: Share = 0.8  # of link_rate, from which on a link is busy
    bandwidth_low: Share = 0.4  # below it, it is not any more

    def __post_init__(self) -> None:
        for key in ("check_interval", "hold", "calm"):
            if getattr(self, key) < SHORTEST:
                raise _error(key, f"expected 100us or more, got {getattr(self, key):g}s")
        for key in ("patience", "move_after", "queue_low", "latency_low", "bandwidth_low"):
            if getattr(self, key) < 0:
                raise _error(key, f"expected 0 or more, got {getattr(self, key):g}")
        for name in ("queue", "latency", "bandwidth"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            if low >= high:
                raise _error(f"{name}_low", f"expected below {name}_high = {high:g}, got {low:g}")
        if self.when_busy and self.link_rate <= 0:
            raise _error("link_rate", "when_busy needs it: say what a link carries, as 1Gbit")

    @property
    def is_used(self) -> bool:
        """Whether anything is decided at all."""
        return self.overflow or bool(self.when_busy)


def _error(key: str, problem: str) -> ConfigError:
    return ConfigError(problem, section="balance", key=key)
