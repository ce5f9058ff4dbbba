"""Key lists at a worker: which of them each server has been sent, and so may be named to it.

Only signatures are remembered here, as many as the server can hold; what the two sides drop need
not be the same. Of a server that was started again nothing is assumed to be known.
"""

from __future__ import annotations

from collections import OrderedDict

from kv.keylists.kept import LIST_OVERHEAD


class SentLists:
    """What each server has been sent.

    Args:
        limit: bytes of key lists that a server remembers for this worker.
    """

    def __init__(self, limit: int) -> None:
        # A little below the server's own bound: requests that overtake each other may lead it to
        # drop lists in another order.
        self._limit = limit - limit // 8
        self._servers: dict[int, _Server] = {}

    def knows(self, server: int, incarnation: int, signature: int) -> bool:
        """Whether this life of `server` was sent these lists."""
        found = self._servers.get(server)
        if found is None or found.incarnation != incarnation or signature not in found.lists:
            return False
        found.lists.move_to_end(signature)
        return True

    def sent(self, server: int, incarnation: int, signature: int, nbytes: int) -> bool:
        """Note lists of `nbytes` in all; False if they are too large to be remembered."""
        found = self._servers.get(server)
        if found is None or found.incarnation != incarnation:
            found = self._servers[server] = _Server(incarnation)
        size = nbytes + LIST_OVERHEAD
        if size > self._limit:
            return False
        found.nbytes += size - found.lists.pop(signature, 0)
        found.lists[signature] = size
        while found.nbytes > self._limit:
            _, oldest = found.lists.popitem(last=False)
            found.nbytes -= oldest
        return True

    def lost(self, server: int, signature: int) -> None:
        """`server` says that it does not know these lists."""
        found = self._servers.get(server)
        if found is not None:
            found.nbytes -= found.lists.pop(signature, 0)

    def validate(self) -> None:
        """Assert what must always hold."""
        for server in self._servers.values():
            assert server.nbytes == sum(server.lists.values()) <= self._limit


class _Server:
    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.lists: OrderedDict[int, int] = OrderedDict()  # signature -> bytes, oldest use first
        self.nbytes = 0
