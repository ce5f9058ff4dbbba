"""An urgent message passes a large one that is under way on the same connection."""

from __future__ import annotations

import numpy as np
import pytest

from van.config import VanConfig
from van.courier import ZmqVan
from van.message import Message, Meta

LIMIT = 30.0


@pytest.mark.parametrize("transport", ["tcp", "ipc", "local"])
@pytest.mark.parametrize("priority", [0, 3])
def test_urgent_messages_pass_large_ones_and_others_do_not(transport: str, priority: int) -> None:
    config = VanConfig(transport=transport, shared_memory=0)
    sender, receiver = (ZmqVan(config, background=False) for _ in range(2))
    got: list[int] = []
    receiver.receiver = lambda message: got.append(message.meta.timestamp)
    sender.bind("tcp://127.0.0.1:0")
    sender.connect(8, receiver.bind("tcp://127.0.0.1:0"))
    big = np.zeros(64 << 20, np.uint8)

    for number in range(2):  # the receiver reads nothing yet: most of this waits with the sender
        sender.send(Message(Meta(recipient=8, timestamp=number), [big]))
    sender.send(Message(Meta(recipient=8, timestamp=2, priority=priority)))
    for _ in range(int(LIMIT / 0.001)):
        sender.wait(lambda: False, 0.001)
        if receiver.wait(lambda: len(got) == 3, 0.001):
            break
    sender.close(0)
    receiver.close(0)

    if transport == "local":  # a message of the lane is whole before the next
        assert got == ([0, 2, 1] if priority else [0, 1, 2])
    else:
        assert got == ([2, 0, 1] if priority else [0, 1, 2])
