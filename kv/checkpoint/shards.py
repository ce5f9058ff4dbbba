"""How who leads a checkpoint reaches the servers: over a network, or in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kv.checkpoint.desk import CHECKPOINT_APP, Desk
from kv.errors import KVError
from kv.local_worker import LocalWorker
from kv.protocols import Worker
from kv.remote_worker import RemoteWorker
from postoffice.node import Role
from van.message import Flag, Message, Meta

Answer = dict[str, Any]


class Shards(Protocol):
    """The servers, by rank. Bodies and answers are as `kv.checkpoint.desk` says."""

    @property
    def count(self) -> int:
        """How many there are."""

    def start(self, command: int, bodies: Sequence[Mapping[str, Any]]) -> int:
        """Ask each server, with a body of its own, or the first few; the request's number.

        Raises:
            KVError: there are fewer servers than bodies.
        """

    def is_done(self, request: int) -> bool:
        """Whether all have answered."""

    def wait(self, request: int) -> list[Answer]:
        """All answers, by rank, when they have come."""


class RemoteShards:
    """The servers of a cluster, asked by one of its workers."""

    def __init__(self, worker: RemoteWorker) -> None:
        self._office = worker.office
        self._customer = worker.customer_of(CHECKPOINT_APP)

    @property
    def count(self) -> int:
        return len(self._servers())

    def _servers(self) -> list[int]:
        return self._office.view.alive(Role.SERVER)  # not those that have left a smaller cluster

    def start(self, command: int, bodies: Sequence[Mapping[str, Any]]) -> int:
        servers = self._servers()[: len(bodies)]
        if len(servers) < len(bodies):
            raise KVError(f"there are {len(servers)} servers only now")
        request = self._customer.new_request(servers, _bodies, is_quiet=True)
        with self._customer.sending(request):
            for server, body in zip(servers, bodies, strict=True):
                meta = Meta(
                    recipient=server,
                    flags=Flag.PUSH,
                    app=CHECKPOINT_APP,
                    timestamp=request,
                    oldest=self._customer.oldest,
                    piece=1,
                    cmd=command,
                    body=dict(body),
                )
                self._customer.send(Message(meta))
        return request

    def is_done(self, request: int) -> bool:
        return self._customer.is_done(request)

    def wait(self, request: int) -> list[Answer]:
        answers: list[Answer] = self._customer.wait(request)
        return answers


class LocalShards:
    """The only engine of this process."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._answers: dict[int, list[Answer]] = {}
        self._next = 0

    @property
    def count(self) -> int:
        return 1

    def start(self, command: int, bodies: Sequence[Mapping[str, Any]]) -> int:
        self._next += 1
        self._answers[self._next] = [self._desk.answer(command, body) for body in bodies]
        return self._next

    def is_done(self, request: int) -> bool:
        return True

    def wait(self, request: int) -> list[Answer]:
        return self._answers.pop(request)


def shards_of(worker: Worker) -> Shards:
    """The servers behind a worker's tables.

    Raises:
        KVError: it is a worker of another kind.
    """
    if isinstance(worker, RemoteWorker):
        return RemoteShards(worker)
    if isinstance(worker, LocalWorker):
        return LocalShards(worker.desk())
    raise KVError(f"{worker!r} has no servers that take checkpoints")


def _bodies(answers: list[Message]) -> list[Answer]:
    return [dict(answer.meta.body or {}) for answer in answers]
