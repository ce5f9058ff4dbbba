"""KVServer: answers pushes and pulls of (key, value) pairs with a handler of the user's.

    def handle(meta, pairs, server):
        ...
        server.response(meta, KVPairs(pairs.keys, values))

    KVServer(0, office).set_request_handle(handle)     # before office.start()

The handler sees each request that may change something once, however often it comes: a copy hears
what was answered. A pull that is repeated after its answer is read again.

Source: ps-lite, include/ps/kv_app.h (`KVServer`, `KVServerDefaultHandle`). Here an exception in
the handler reaches the `wait` of the worker that asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.delivery.repeats import Repeats
from kv.errors import KVError
from kv.executor import Executor, Turns
from kv.pairs import KVMeta, KVPairs
from postoffice.customer import Customer
from postoffice.postoffice import Postoffice
from van.errors import PsliteError
from van.message import Flag, Kind, Message, Meta, answer_to

log = logging.getLogger(__name__)

_LONGEST_TEXT = 4000  # characters of an error that travel

RequestHandle = Callable[[KVMeta, KVPairs, "KVServer"], None]


class KVServer:
    """One application on a server node.

    Args:
        app: application id, the same as the workers'.
        office: the node; not yet started, so that no request can come before its handler.
        own_thread: run the handler in a thread of its own, one request after the other, so that
            a long one keeps neither control messages nor other applications waiting. It costs a
            change of threads, which ends before the node says goodbye.
    """

    def __init__(self, app: int, office: Postoffice, *, own_thread: bool = False) -> None:
        self.office = office
        self._executor: Executor | None = None
        if own_thread:
            self._executor = Executor(1, self._stop, f"pslite app {app}")
            office.before_goodbye.append(self.close)
        self._handle: RequestHandle | None = None
        self._open: dict[tuple[int, int, int], Meta] = {}
        self._repeats = Repeats(office)
        self._customer = Customer(app, 0, office, self._receive)

    def set_request_handle(self, handle: RequestHandle) -> None:
        """Let `handle(meta, pairs, server)` answer the requests.

        It calls `server.response(meta, pairs)` once for each request, at once or later.
        """
        self._handle = handle

    def _receive(self, message: Message) -> None:
        header = message.meta
        if not self._repeats.is_new(header):
            return
        flags = header.flags
        meta = KVMeta(
            cmd=header.cmd,
            push=bool(flags & Flag.PUSH),
            pull=bool(flags & Flag.PULL),
            sender=header.sender,
            timestamp=header.timestamp,
            customer=header.customer,
        )
        self._open[_place(meta)] = header
        if self._executor is None:
            self._work(meta, message)
        else:
            self.office.reach(meta.sender)  # this thread makes connections, the other only sends
            self._executor.submit(self._working(meta, message), [header.app])

    def close(self) -> None:
        """End the handler's thread, after the requests there are."""
        if self._executor is not None:
            self._executor.close()

    def _stop(self, error: BaseException) -> None:
        self.office.stop(f"the thread of a handler ended: {type(error).__name__}: {error}")

    def _working(self, meta: KVMeta, message: Message) -> Turns[None]:
        try:
            self._work(meta, message)
        except PsliteError as error:  # not even the failure can be told
            log.warning("%s cannot answer %r: %s", self.office.name, message, error)
        return
        yield

    def _work(self, meta: KVMeta, message: Message) -> None:
        """Let the handler answer a request."""
        header = message.meta
        try:
            if self._handle is None:
                raise KVError(f"app {header.app} has no request handle on {self.office.name}")
            pairs = KVPairs(*message.arrays[:3])
            pairs.check()
            self._handle(meta, pairs, self)
        except (Exception, SystemExit) as error:  # a handler ends no server
            log.debug("handler of app %d failed", header.app, exc_info=True)
            self._fail(meta, error)

    def _fail(self, meta: KVMeta, error: BaseException) -> None:
        header = self._open.pop(_place(meta), None)
        if header is None:
            log.exception("a handler failed after its response")
            return
        answer = error_answer(header, error, self.office.node_id)
        self._repeats.settle(header, answer)
        self.office.send(answer)

    def response(self, meta: KVMeta, pairs: KVPairs | None = None) -> None:
        """Answer a request; with `pairs` where it pulls.

        Raises:
            KVError: it is answered already.
            KeyValueShapeError: `pairs` do not fit together.
        """
        pairs = pairs or KVPairs()
        pairs.check()
        header = self._open.get(_place(meta))
        if header is None:
            raise KVError(f"request {meta.timestamp} of node {meta.sender} is answered already")
        answer = Message(answer_to(header), pairs.arrays())
        self.office.send(answer)
        del self._open[_place(meta)]  # only now: an answer that cannot be sent becomes an error
        self._repeats.settle(header, answer)


class KVServerDefaultHandle:
    """Adds what is pushed, answers a pull with the sums; a key never pushed reads zero.

    Values may have any length per key, the same in each push.
    """

    def __init__(self) -> None:
        self.store: dict[int, NDArray[Any]] = {}

    def __call__(self, meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
        if meta.push:
            self._add(pairs)
        server.response(meta, self._read(pairs) if meta.pull else None)

    def _add(self, pairs: KVPairs) -> None:
        parts = np.split(pairs.vals, pairs.ends()[:-1]) if pairs.keys.size else []
        keys = pairs.keys.tolist()
        for key, part in zip(keys, parts, strict=True):
            if key in self.store and self.store[key].shape != part.shape:
                raise KVError(f"key {key} has {self.store[key].size} values, not {part.size}")
        for key, part in zip(keys, parts, strict=True):
            known = self.store.get(key)
            self.store[key] = part.copy() if known is None else known + part

    def _read(self, pairs: KVPairs) -> KVPairs:
        widths = {part.size for part in self.store.values()}
        zero = np.zeros(widths.pop() if len(widths) == 1 else 1, np.float32)
        found = [self.store.get(key, zero) for key in pairs.keys.tolist()]
        lens = np.array([part.size for part in found], np.int32)
        return KVPairs(pairs.keys, np.concatenate(found) if found else zero[:0], lens)


def error_answer(header: Meta, error: BaseException, node: int) -> Message:
    """The answer that carries a handler's exception on `node` to who asked; a long text is cut."""
    try:
        text = str(error)
    except Exception as problem:
        text = f"(its text cannot be had: {type(problem).__name__})"
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} … ({len(text)} characters)"
    text = text.encode("utf-8", "backslashreplace").decode()
    return Message(answer_to(header, Kind.ERROR, error=(type(error).__name__, text, node)))


def _place(meta: KVMeta) -> tuple[int, int, int]:
    return meta.sender, meta.customer, meta.timestamp
