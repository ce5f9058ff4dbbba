"""Compresses what a node sends while its link is busy, and no more when it is not.

Each node looks at the bytes that it sends itself, so nobody is asked or told: a message says of
itself whether its values are packed. What compression saves is counted as if it had been sent:
else a link would be free because it is relieved, and busy again as soon as that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kv.dispatcher.balance import Decision, Hysteresis, Reading
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.journal import Decisions
from kv.dispatcher.protocol import STATUS
from postoffice.postoffice import Postoffice
from postoffice.view import ClusterView


class BusyLink:
    """Switches the compression of one node.

    Args:
        office: the node, not yet started.
        config: marks and times.
        switch: compresses, or does so no more; returns the tables that this changes.
        saved: bytes that compression has saved so far.
        decisions: of the node, where it decides of other things, too, and tells them.
    """

    def __init__(
        self,
        office: Postoffice,
        config: BalanceConfig,
        switch: Callable[[bool], Sequence[str]],
        saved: Callable[[], int],
        decisions: Decisions | None = None,
    ) -> None:
        self._office, self._config, self._switch, self._saved = office, config, switch, saved
        self._hysteresis, self._is_busy = Hysteresis(config), False
        self._last: tuple[float, int] | None = None  # when was looked, and the bytes until then
        self._decisions = Decisions(office) if decisions is None else decisions
        if decisions is None:
            office.statuses[STATUS] = self._decisions.status
        office.on_view.append(self._begin)

    def _begin(self, old: ClusterView, new: ClusterView) -> None:
        if not old.epoch:  # the node has just started
            self._office.van.every(self._config.check_interval, self.look)

    def look(self) -> None:
        """Compare what was sent since the last look with the marks."""
        now = self._office.van.now()
        sent = self._office.van.counts["sent_bytes"] + self._saved()
        last, self._last = self._last, (now, sent)
        if last is None or now <= last[0]:
            return
        config, hysteresis = self._config, self._hysteresis
        use = 8 * (sent - last[1]) / (now - last[0]) / config.link_rate
        reading = Reading("bandwidth", use, config.bandwidth_low, config.bandwidth_high)
        hysteresis.look(now, [reading])
        if not self._is_busy and hysteresis.is_relief_due(now):
            hysteresis.relieved(now)
            self._decide(True, use, config.bandwidth_high)
        elif self._is_busy and hysteresis.is_return_due(now):
            hysteresis.returned(now)
            self._decide(False, use, config.bandwidth_low)

    def _decide(self, is_busy: bool, use: float, mark: float) -> None:
        self._is_busy = is_busy
        what, name = "compress" if is_busy else "plain", self._office.name
        for table in self._switch(is_busy):
            self._decisions.note(Decision(0, what, "bandwidth", use, mark, about=name, table=table))
