"""The decisions of one node: logged here, told to the scheduler, which keeps those of all."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from typing import Any

from kv.dispatcher.balance import Decision
from postoffice.postoffice import Postoffice

log = logging.getLogger(__name__)

_TOLD = 16  # last decisions that go with each heartbeat: far more than are made between two


class Decisions:
    """What one node has decided.

    Args:
        office: the node.
    """

    def __init__(self, office: Postoffice) -> None:
        self._office = office
        self._last: deque[Decision] = deque(maxlen=_TOLD)
        self.count = 0

    def note(self, decision: Decision) -> Decision:
        """Number, date, sign and log a decision; returns it so."""
        self.count += 1
        office = self._office
        epoch = decision.epoch or office.epoch
        signed = replace(decision, number=self.count, node=office.name, epoch=epoch, at=time.time())
        self._last.append(signed)
        log.warning("%s decides: %s", office.name, signed)
        return signed

    def status(self) -> dict[str, Any]:
        """The last of them for a heartbeat, with the life whose they are."""
        return {
            "life": self._office.incarnation,
            "decisions": [decision.pack() for decision in list(self._last)],
        }
