"""Copies of requests to an app that answers as it likes: each request reaches it once.

Of the values that went with an answer a copy is kept until its maker says that it has them; a
request that only pulls is simply let through again.
"""

from __future__ import annotations

import numpy as np

from kv.delivery.windows import Stream, Windows
from postoffice.postoffice import Postoffice
from van.message import Flag, Kind, Message, Meta, answer_to

# types of errors that settle nothing: what they are about is sent anew
NOT_DONE = ("UnknownKeyListError", "UnknownBaseError")


class Repeats:
    """Looks at the requests of one app on one node.

    Args:
        office: answers copies.
    """

    def __init__(self, office: Postoffice) -> None:
        self.windows = Windows()
        self._office = office

    def is_new(self, meta: Meta) -> bool:
        """Whether the app is to see a request; else it has been dealt with."""
        stream = self.windows.stream(meta)
        if stream is None:
            self._office.send(former_life(meta, self._office.node_id))
            return False
        place = (meta.timestamp, meta.piece)
        if meta.timestamp < stream.watermark:
            return False  # a late copy: its maker has the answer
        if place in stream.in_hand:
            self._office.send(Message(answer_to(meta, Kind.HELD)))
            return False
        if meta.timestamp in stream.entries:
            self._answer_again(meta, stream)
            return False
        stream.in_hand.add(place)
        return True

    def _answer_again(self, meta: Meta, stream: Stream) -> None:
        entry = stream.entries[meta.timestamp]
        if entry is None or entry.answer is None:
            self._office.send(Message(answer_to(meta)))
        else:
            self._office.send(again(entry.answer, meta))

    def settle(self, meta: Meta, answer: Message) -> None:
        """The app has answered a request. Any thread."""
        stream = self.windows.find(meta)
        if stream is None:
            return
        is_read = meta.flags & (Flag.PUSH | Flag.PULL) == Flag.PULL
        if not is_read:
            kept = None
            header = answer.meta
            if answer.arrays or header.error is not None or header.body is not None:
                # The app may use its arrays again as soon as it has answered.
                kept = Message(answer.meta, [np.array(array) for array in answer.arrays])
            self.windows.record(stream, meta, answer=kept)
        stream.in_hand.discard((meta.timestamp, meta.piece))


def former_life(meta: Meta, node: int) -> Message:
    """What a request of a life that is over hears."""
    text = (
        f"node {meta.sender} in its life {meta.incarnation} was declared dead or replaced; "
        f"end this process and let it register anew"
    )
    return Message(answer_to(meta, Kind.FENCED, error=("FencedNodeError", text, node)))


def again(answer: Message, request: Meta) -> Message:
    """An answer that is given once more, to a copy of its request."""
    meta = answer.meta
    header = answer_to(request, meta.kind, body=meta.body, error=meta.error, clocks=meta.clocks)
    return Message(header, answer.arrays)
