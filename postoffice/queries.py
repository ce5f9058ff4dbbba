"""Questions from outside the cluster: what a node says of itself to whoever looks.

A `QUERY` names a topic, a number that the asker made up, and the address to answer to; the answer,
a `REPORT`, repeats the number. Topics only read, but for those that come with a wish.
`postoffice.observer` asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from van.errors import PsliteError
from van.message import Control, Message, Meta

log = logging.getLogger(__name__)

_LONGEST_NUMBER = 1 << 64


class Queries:
    """The topics of one node, and its answers."""

    def __init__(self) -> None:
        self._topics: dict[str, Callable[[], Any]] = {}
        self._wishes: dict[str, Callable[[Any], Any]] = {}

    def offer(self, topic: str, facts: Callable[[], Any]) -> None:
        """Answer questions about `topic` with what `facts()` returns, msgpack types only.

        It is called in the thread that drives the node's van, so it must be quick.
        """
        self._topics[topic] = facts

    def accept(self, topic: str, grant: Callable[[Any], Any]) -> None:
        """Let somebody outside ask for something: `grant(wish)` does it and says what follows.

        A wish may come twice, so it must name what is to be, not what is to change. What `grant`
        raises is told to who asked.
        """
        self._wishes[topic] = grant

    def answer(self, meta: Meta) -> tuple[str, Message] | None:
        """The address and the answer to a question; None if it makes no sense."""
        body = meta.body
        if not meta.reply_to or not isinstance(body, dict):
            return None
        topic, number = body.get("topic"), body.get("number")
        if type(topic) is not str or type(number) is not int or not 0 <= number < _LONGEST_NUMBER:
            return None
        report: dict[str, Any] = {"number": number, "facts": None, "error": None}
        facts = self._topics.get(topic)
        if facts is None and topic in self._wishes and "wish" in body:
            grant, wish = self._wishes[topic], body["wish"]
            facts = lambda: grant(wish)  # noqa: E731
        if facts is None:
            known = ", ".join(sorted([*self._topics, *self._wishes]))
            report["error"] = f"this node knows nothing of {topic!r}; it knows {known or 'nothing'}"
        else:
            try:
                report["facts"] = facts()
            except PsliteError as error:  # it says all that there is to say
                log.info("a question about %r is refused: %s", topic, error)
                report["error"] = str(error)
            except Exception as error:  # the node goes on, whoever asked
                log.warning("a question about %r failed", topic, exc_info=True)
                report["error"] = f"{type(error).__name__}: {error}"
        return meta.reply_to, Message(Meta(control=Control.REPORT, body=report))
