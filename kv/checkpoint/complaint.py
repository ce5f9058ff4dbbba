"""Something that fails again and again is said once, and once more when it works again."""

from __future__ import annotations

import logging


class Complaint:
    """What is said of one kind of trouble.

    Args:
        log: where.

    Attributes:
        count: failures since it last worked.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.count = 0
        self._last = ""

    def failed(self, text: str) -> None:
        """It has failed; `text` says what and why."""
        self.count, self._last = self.count + 1, text
        if self.count == 1:
            self._log.warning("%s; said again only when it has succeeded", text)
        else:
            self._log.info("%s", text)

    def worked(self, text: str) -> None:
        """It has worked; `text` says what."""
        if self.count:
            self._log.warning("%s, after %s that failed", text, _attempts(self.count))
        self.count = 0

    def end(self) -> None:
        """It is not tried again: who has read the first failure alone hears of the last."""
        if self.count > 1:
            often = _attempts(self.count)
            self._log.warning("%s in a row have failed; the last: %s", often, self._last)
        self.count = 0


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count > 1 else ''}"
