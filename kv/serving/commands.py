"""What a part of a table server offers: by command, who works on a request."""

from __future__ import annotations

from collections.abc import Callable

from kv.executor import Turns
from van.message import Message

Answering = Turns[Message | None]
"""Ends with the answer to a request; None: it is kept, and worked on again later."""

Commands = dict[int, Callable[[Message], Answering]]
