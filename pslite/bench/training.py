"""A small click model trained on an in-process cluster, and what crossed its network meanwhile.

One thread drives all workers: each pulls, then each computes and pushes, in the order of their
ranks. So gradients are as stale as those of asynchronous workers that are equally fast, and two
runs give the same bits: what a compression changes in the result is its own doing. A dispatcher
merges what all its workers have pushed of a step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.compression.settings import Rules
from kv.dispatcher.config import DispatcherConfig
from kv.initializers import Uniform
from kv.optimizers import Adagrad
from kv.protocols import Request
from kv.remote_worker import RemoteWorker
from kv.table_protocol import PUSHES, Command
from kv.tables import RemoteDenseTable, RemoteSparseTable
from pslite.bench.clicks import (
    Clicks,
    Shape,
    area_under_curve,
    backward,
    first_weights,
    forward,
    make_clicks,
    parts_of,
)
from pslite.bench.links import PULLED, PUSHED, LinkTraffic
from pslite.local_nodes import LocalNodes
from van.message import Message

EMBEDDING = "embedding"
TEST_BATCH = 4096
TOGETHER = DispatcherConfig(flush_interval=600.0)  # only what all workers have pushed is sent on


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained.

    Args:
        dispatchers: between workers and servers.
        rows, test_rows: of made-up clicks.
        batch: rows of a worker's step.
        embedding_lr, dense_lr: learning rates of Adagrad.
    """

    workers: int = 4
    servers: int = 2
    dispatchers: int = 0
    rows: int = 163_840
    test_rows: int = 40_960
    batch: int = 512
    embedding_lr: float = 0.03
    dense_lr: float = 0.02
    seed: int = 3
    shape: Shape = field(default_factory=Shape)

    def data(self) -> tuple[Clicks, Clicks]:
        """To train on, and to test with."""
        found = make_clicks(self.rows + self.test_rows, self.shape, self.seed)
        return found.rows(0, self.rows), found.rows(self.rows, len(found))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a training.

    Attributes:
        auc, logloss: of the test.
        steps: of all workers.
        cpu_seconds: of the processor, of all nodes, over the training.
        coding_seconds: of those, of encoders and decoders.
        pushed_nbytes: arrays of pushes, keys included; plain_nbytes: their values as float32.
        pulled_nbytes: arrays of pulls and of their answers.
        value_nbytes: values of pushes as they were sent.
        links: bytes by link, where there are dispatchers; pushes and pulls are then those of all.
    """

    auc: float
    logloss: float
    steps: int
    cpu_seconds: float
    coding_seconds: float
    pushed_nbytes: int
    pulled_nbytes: int
    value_nbytes: int
    plain_nbytes: int
    links: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_nbytes(self) -> int:
        return self.pushed_nbytes + self.pulled_nbytes


class Traffic:
    """Counts the bytes of arrays that a worker sends and gets, by what they are for."""

    def __init__(self, worker: RemoteWorker) -> None:
        self.counts: Counter[str] = Counter()
        self.is_on = True
        send, take = worker.office.send, worker._customer.take_answer

        def sending(message: Message, **how: Any) -> None:
            command = message.meta.cmd
            if command in PUSHES or command == Command.PULL:
                self._note("pushed" if command in PUSHES else "pulled", message)
            send(message, **how)

        def taking(message: Message) -> None:
            self._note("pulled", message)
            take(message)

        worker.office.send = sending  # type: ignore[method-assign]
        worker._customer.take_answer = taking  # type: ignore[method-assign]

    def _note(self, what: str, message: Message) -> None:
        if self.is_on:
            self.counts[what] += sum(array.nbytes for array in message.arrays)


class Member:
    """One worker of the training."""

    def __init__(self, worker: RemoteWorker, setting: Setting) -> None:
        self.worker, self._dim = worker, setting.shape.dim
        self.traffic = Traffic(worker)
        self.embedding: RemoteSparseTable = worker.sparse_table(
            EMBEDDING,
            self._dim,
            optimizer=Adagrad(lr=setting.embedding_lr),
            initializer=Uniform(-0.01, 0.01),
        )
        optimizer = Adagrad(lr=setting.dense_lr)
        self.dense: dict[str, RemoteDenseTable] = {
            name: worker.dense_table(name, sides, optimizer=optimizer)
            for name, sides in setting.shape.dense_shapes().items()
        }

    def pull(
        self, part: Clicks, create: bool = True
    ) -> tuple[NDArray[np.float32], Callable[[], Request]]:
        """Get what a batch needs and compute it: its scores, and what pushes its gradients."""
        keys, places = np.unique(part.ids, return_inverse=True)
        reads = [(self.embedding, keys), *self.dense.values()]
        rows, *arrays = self.worker.pull_many(reads, create=create)  # type: ignore[arg-type]
        weights = dict(zip(self.dense, arrays, strict=True))
        step = forward(rows[places.reshape(part.ids.shape)], weights)

        def push() -> Request:
            inputs, grads = backward(step, part.labels, weights)
            of_rows = np.zeros_like(rows)
            np.add.at(of_rows, places.reshape(-1), inputs.reshape(-1, self._dim))
            writes: list[Any] = [(self.embedding, keys, of_rows)]
            writes += [(self.dense[name], grad) for name, grad in grads.items()]
            return self.worker.push_many(writes)

        return step.scores, push


def train(
    setting: Setting,
    data: tuple[Clicks, Clicks],
    rules: Mapping[str, str],
    tell: Callable[[int, int], None] = lambda done, steps: None,
) -> Outcome:
    """Train with the compression that `rules` describe, as the section `[compression]` would.

    Args:
        tell: called with the steps that are done, and with all.
    """
    training, test = data
    compression = Rules(rules)
    traffic = LinkTraffic()
    with LocalNodes(
        setting.servers,
        setting.workers,
        "async",
        1,
        compression=compression,
        dispatchers=setting.dispatchers,
        dispatcher=TOGETHER,
        dispatcher_app=traffic.watch,
    ) as nodes:
        members = [Member(worker, setting) for worker in nodes.workers]
        for name, values in first_weights(setting.shape).items():
            members[0].dense[name].assign(values)
        starts = parts_of(setting.rows, setting.workers, setting.batch)
        began = time.process_time()
        for step in range(len(starts[0])):
            pushes = [
                member.pull(training.rows(start[step], start[step] + setting.batch))
                for member, start in zip(members, starts, strict=True)
            ]
            _push(members, [push for _, push in pushes], setting.dispatchers > 0)
            tell(step + 1, len(starts[0]))
        cpu_seconds = time.process_time() - began
        for member in members:
            member.traffic.is_on = traffic.is_on = False
        auc, logloss = _tested(members[0], test)
        links = dict(traffic.counts)
        counts: Counter[str] = sum((member.traffic.counts for member in members), Counter())
        sent = [link for member in members for link in _links(member.worker.encoders.stats())]
        received = [link for table in _tables(members[0]) for link in _coded(table)]
    return Outcome(
        auc=auc,
        logloss=logloss,
        steps=len(starts[0]) * setting.workers,
        cpu_seconds=cpu_seconds,
        coding_seconds=sum(link["seconds"] for link in (*sent, *received)),
        pushed_nbytes=_sum(links, PUSHED) if links else counts["pushed"],
        pulled_nbytes=_sum(links, PULLED) if links else counts["pulled"],
        value_nbytes=int(sum(link["nbytes"] for link in sent)),
        plain_nbytes=int(sum(link["plain_nbytes"] for link in sent)),
        links=links,
    )


def _push(
    members: Sequence[Member], pushes: Sequence[Callable[[], Request]], are_merged: bool
) -> None:
    """Push one after the other; those that a dispatcher merges are waited for together."""
    requests = []
    for member, push in zip(members, pushes, strict=True):
        requests.append(push())
        if not are_merged:
            member.worker.wait(requests[-1])
    for member, request in zip(members, requests, strict=True):
        member.worker.wait(request)
        member.worker.step()


def _sum(links: Mapping[str, int], names: Sequence[str]) -> int:
    return sum(links[name] for name in names)


def _tested(member: Member, test: Clicks) -> tuple[float, float]:
    """AUC and mean cross-entropy."""
    scores = np.concatenate(
        [
            member.pull(test.rows(start, start + TEST_BATCH), create=False)[0]
            for start in range(0, len(test), TEST_BATCH)
        ]
    )
    likelihood = np.where(test.labels > 0, scores, 1 - scores).astype(np.float64)
    logloss = float(-np.log(np.maximum(likelihood, 1e-12)).mean())
    return area_under_curve(scores, test.labels), logloss


def _links(stats: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Mapping[str, float]]:
    """The counts of each table and link."""
    return [
        counts for links in stats.values() for link, counts in links.items() if link != "residuals"
    ]


def _tables(member: Member) -> list[list[dict[str, Any]]]:
    """What servers say of each table."""
    return [member.embedding.stats(), *(table.stats() for table in member.dense.values())]


def _coded(reports: list[dict[str, Any]]) -> list[Mapping[str, float]]:
    return [link for report in reports for link in report.get("compression", {}).values()]
