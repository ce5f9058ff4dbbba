"""KVWorker: pushes and pulls (key, value) pairs, cut by the servers that own the keys.

    worker = KVWorker(app=0, customer=0, office=office)
    ts = worker.push(keys, vals)
    worker.wait(ts)
    out = worker.wait(worker.pull(keys)).vals

Source: ps-lite, include/ps/kv_app.h (`KVWorker`, `Slicer`). Here any callable cuts a request, and
`wait` returns what was pulled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kv.errors import KeyValueShapeError
from kv.kernels.jit import frozen
from kv.kernels.merge import first_unsorted
from kv.pairs import KVPairs, require_increasing
from kv.placement import SlotMap
from kv.remote import remote_error
from kv.routing import split
from postoffice.customer import Customer
from postoffice.node import Role
from postoffice.postoffice import Postoffice
from van.message import Flag, Message, Meta

Slicer = Callable[[KVPairs, int], Sequence[KVPairs | None]]
"""Cuts pairs into one part a server (None: nothing for it), given the number of servers.

Each key must be in exactly one part, with its keys increasing there.
"""


def slot_slicer(pairs: KVPairs, num_servers: int) -> list[KVPairs | None]:
    """Cut by slot, evenly: the same owner as a table's row has.

    What goes to a single server is not copied.
    """
    if num_servers == 1:
        return [pairs if pairs.keys.size else None]
    order, counts = split(SlotMap.even(num_servers), pairs.keys, num_servers)
    groups = np.split(order, np.cumsum(counts)[:-1])
    return [pairs.take(group) if group.size else None for group in groups]


class KVWorker:
    """One application's client on a worker node.

    Args:
        app: application id, the same as the servers'.
        customer: tells several clients of one app on this node apart.
        office: the node.
    """

    def __init__(self, app: int, customer: int, office: Postoffice) -> None:
        self.office = office
        self._slicer: Slicer = slot_slicer
        self._customer = Customer(app, customer, office, make_error=remote_error)

    def set_slicer(self, slicer: Slicer) -> None:
        """Cut requests with `slicer` instead of by slot."""
        self._slicer = slicer

    def push(
        self,
        keys: ArrayLike,
        vals: ArrayLike,
        lens: ArrayLike | None = None,
        cmd: int = 0,
        callback: Callable[[], None] | None = None,
        priority: int = 0,
    ) -> int:
        """Send values to the servers. The arrays must not change before the request is done.

        Args:
            keys: uint64, shape (n,), strictly increasing.
            vals: flat; the values of each key one after the other.
            lens: int32, shape (n,), values of each key; None: all the same number.
            cmd: an int32 for the server's handler.
            callback: called when all servers have answered and none with an error; must be quick.
            priority: int32, higher first where several requests wait to be sent.
        Returns:
            The request's timestamp, for `wait`.
        Raises:
            UnsortedKeysError: keys repeat or go down.
            KeyValueShapeError: keys, vals and lens do not fit together.
        """
        pairs = KVPairs(_keys(keys), np.asarray(vals), _lens_of(lens))
        return self._send(pairs, Flag.PUSH, cmd, callback, priority, None, None)

    def pull(
        self,
        keys: ArrayLike,
        vals: NDArray[Any] | None = None,
        lens: NDArray[np.int32] | None = None,
        cmd: int = 0,
        callback: Callable[[], None] | None = None,
        priority: int = 0,
    ) -> int:
        """Ask for values; `wait` returns them as `KVPairs` in the order of `keys`.

        Args:
            keys: uint64, shape (n,), strictly increasing.
            vals: an array that takes the values, of their number and type; when `callback` runs
                it is filled. Without one the values are new memory.
            lens: int32, shape (n,), likewise filled.
            cmd, callback, priority: as for `push`.
        Raises:
            UnsortedKeysError: keys repeat or go down.
        """
        return self._send(KVPairs(_keys(keys)), Flag.PULL, cmd, callback, priority, vals, lens)

    def push_pull(
        self,
        keys: ArrayLike,
        vals: ArrayLike,
        outs: NDArray[Any] | None = None,
        lens: ArrayLike | None = None,
        cmd: int = 0,
        callback: Callable[[], None] | None = None,
        priority: int = 0,
    ) -> int:
        """Push and get the values back in one request; see `push` and `pull`."""
        pairs = KVPairs(_keys(keys), np.asarray(vals), _lens_of(lens))
        return self._send(pairs, Flag.PUSH | Flag.PULL, cmd, callback, priority, outs, None)

    def _send(
        self,
        pairs: KVPairs,
        flags: Flag,
        cmd: int,
        callback: Callable[[], None] | None,
        priority: int,
        out: NDArray[Any] | None,
        out_lens: NDArray[np.int32] | None,
    ) -> int:
        pairs.check()
        if first_unsorted(frozen(pairs.keys)) < pairs.keys.size:
            require_increasing(pairs.keys)  # says where
        servers = self.office.members(Role.SERVER)
        parts = self._slicer(pairs, len(servers))
        if len(parts) != len(servers):
            raise KeyValueShapeError(
                f"the slicer made {len(parts)} parts for {len(servers)} servers"
            )
        asked = [(s, part) for s, part in zip(servers, parts, strict=True) if part is not None]
        if self._slicer is not slot_slicer:
            _require_all(pairs.keys, [part.keys for _, part in asked], "the slicer gave")

        def finish(answers: list[Message]) -> KVPairs | None:
            if not flags & Flag.PULL:
                return None
            merged = _merge(pairs.keys, answers)
            return KVPairs(
                merged.keys,
                _filled(out, merged.vals, "vals"),
                None if merged.lens is None else _filled(out_lens, merged.lens, "lens"),
            )

        is_pull = bool(flags & Flag.PULL)
        timestamp = self._customer.new_request(
            [server for server, _ in asked], finish if is_pull else None, callback
        )
        oldest = self._customer.oldest
        with self._customer.sending(timestamp):
            for server, part in asked:
                meta = Meta(
                    recipient=server,
                    flags=flags,
                    app=self._customer.app,
                    customer=self._customer.customer,
                    timestamp=timestamp,
                    oldest=oldest,
                    piece=1,
                    cmd=cmd,
                    priority=priority,
                )
                self._customer.send(Message(meta, part.arrays()))
        return timestamp

    def wait(self, timestamp: int, timeout: float | None = None) -> KVPairs | None:
        """Return when the request is done: what it pulled, or None for a push.

        Raises:
            RemoteError: a server's handler raised; the text says which and what.
            RequestTimeoutError: not done after `timeout` seconds.
        """
        result: KVPairs | None = self._customer.wait(timestamp, timeout)
        return result

    def num_response(self, timestamp: int) -> int:
        """How many servers have answered; of a request that is done, all that were asked."""
        return self._customer.num_response(timestamp)


def _keys(keys: ArrayLike) -> NDArray[np.uint64]:
    """A list of integers becomes uint64; an array must be of that type already."""
    if isinstance(keys, np.ndarray):
        return keys
    try:
        return np.array(keys, np.uint64)
    except (OverflowError, TypeError, ValueError) as error:
        problem = f"keys must be integers from 0 to 2^64 - 1: {error}"
        raise KeyValueShapeError(problem) from None


def _lens_of(lens: ArrayLike | None) -> NDArray[np.int32] | None:
    return None if lens is None else np.asarray(lens, np.int32)


def _merge(keys: NDArray[np.uint64], answers: list[Message]) -> KVPairs:
    """The servers' answers as one list in the order of `keys`; of one answer views."""
    parts = [KVPairs(*answer.arrays[:3]) for answer in answers]
    for part in parts:
        part.check()
    if len(parts) == 1 and np.array_equal(parts[0].keys, keys):
        return parts[0]
    _require_all(keys, [part.keys for part in parts], "the servers answered with")
    parts = [part for part in parts if part.keys.size]
    if len({part.vals.dtype for part in parts}) > 1:
        types = sorted({str(part.vals.dtype) for part in parts})
        raise KeyValueShapeError(f"the servers answered with values of different types: {types}")
    if not parts:
        return KVPairs(keys[:0])
    has_lens = any(part.lens is not None for part in parts)
    joined = KVPairs(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.vals for part in parts]),
        np.concatenate([_lens(part) for part in parts]) if has_lens else None,
    )
    joined.check()
    return joined.take(np.argsort(joined.keys, kind="stable"))


def _require_all(keys: NDArray[np.uint64], parts: list[NDArray[np.uint64]], who: str) -> None:
    """Raise unless the parts together are `keys`, each once."""
    together = np.sort(np.concatenate(parts)) if parts else keys[:0]
    if not np.array_equal(together, keys):
        raise KeyValueShapeError(
            f"{who} {together.size} keys that are not the {keys.size} asked for, each once"
        )


def _lens(part: KVPairs) -> NDArray[np.int32]:
    if part.lens is not None:
        return part.lens
    return np.full(part.keys.size, part.vals.size // part.keys.size, np.int32)


def _filled(target: NDArray[Any] | None, values: NDArray[Any], name: str) -> NDArray[Any]:
    """The values in the caller's array, if there is one, else in memory of their own."""
    if target is None:
        return values if values.flags.writeable else values.copy()
    if target.shape != values.shape:
        raise KeyValueShapeError(
            f"{name} has room for {target.shape}, but {values.shape} were pulled"
        )
    target[...] = values
    return target
