"""The training loop of one worker, and of several that share a process.

Asynchronous: batch i belongs to worker i mod W, whose loss is the mean over its batch.
Synchronous: each batch is cut into W contiguous parts and each worker's loss is its rows' sum over
the rows of the whole batch, so the sum of the parts' gradients is the gradient of the batch; a
worker whose part is empty takes its step all the same.

Everything drawn at random comes from seeds, and each loop runs in a fixed order: with a fixed
number of workers the same data gives the same model, asynchronous steps of separate workers aside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps.ctr.batch import Rows, part_bounds
from apps.ctr.dataset import Dataset
from apps.ctr.learner import Learner
from apps.ctr.metrics import Quality, quality, row_losses
from apps.ctr.modelconf import ModelConfig
from apps.ctr.progress import Step
from apps.ctr.snapshot import Snapshot, take_snapshot
from apps.ctr.stopwatch import PARTS, Stopwatch
from kv.protocols import Worker

Listener = Callable[[Step], None]


@dataclass
class Share:
    """What one worker did, as it is gathered at rank 0."""

    rows: int = 0
    seconds: float = 0.0
    epoch: int = 0
    epoch_rows: int = 0
    epoch_loss: float = 0.0
    clicks: int = 0
    step_seconds: dict[str, float] = field(default_factory=dict)
    labels: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    scores: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, step: Step) -> None:
        if step.epoch != self.epoch:
            self.epoch, self.epoch_rows, self.epoch_loss = step.epoch, 0, 0.0
        self.rows += len(step.labels)
        self.clicks += int(np.count_nonzero(step.labels))
        self.epoch_rows += len(step.labels)
        self.epoch_loss += float(row_losses(step.labels, step.scores).sum())

    def as_message(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class TrainResult:
    """How a training run went, over all workers.

    Attributes:
        train_samples: rows trained on, each epoch counted.
        train_clicks: those of them whose label is 1.
        train_logloss: mean over the last epoch, each row scored before its step; None without one.
        seconds: of the training loop, of the slowest worker.
        step_seconds: part of a step -> seconds, a list by rank.
        test: quality on the test data; None without any.
        snapshot: the trained parameters.
    """

    train_samples: int
    train_clicks: int
    train_logloss: float | None
    seconds: float
    step_seconds: dict[str, list[float]]
    test: Quality | None
    snapshot: Snapshot

    @property
    def samples_per_second(self) -> float:
        return self.train_samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def remark(self) -> str:
        """What should make one doubt the model, or empty text."""
        if self.train_samples and self.train_clicks in (0, self.train_samples):
            label = int(self.train_clicks > 0)
            return f"all labels of the training data are {label}, so the model learned only that"
        return ""

    @property
    def digest(self) -> str:
        """SHA-256 of all parameters."""
        return self.snapshot.digest()


def train_steps(learner: Learner, data: Dataset, *, sync: bool) -> Iterator[Step]:
    """Train on all epochs, one step at each `next`; see the module for who gets which rows."""
    conf = learner.conf.train
    shares = _shares(learner, data, sync)
    learner.clock.skip()
    for share, upcoming in _with_next(shares, look_ahead=conf.prefetch and not sync):
        learner.clock.lap("data")
        next_rows = None if upcoming is None else upcoming.rows
        loss, scores = learner.train(share.rows, share.batch_rows, next_rows)
        yield Step(share.epoch, share.number, share.rows.labels, scores, loss)
        learner.clock.skip()
    learner.finish()


class _Batch(NamedTuple):
    """A worker's rows of a batch of `batch_rows`; epochs and numbers count from 1."""

    epoch: int
    number: int
    rows: Rows
    batch_rows: int


def _shares(learner: Learner, data: Dataset, sync: bool) -> Iterator[_Batch]:
    """The batches, or parts of batches, that the learner's worker trains on."""
    conf, worker = learner.conf.train, learner.worker
    rank, workers = worker.rank, worker.num_workers
    for epoch in range(1, conf.epoch + 1):
        shuffle = (conf.seed, epoch) if conf.shuffle else None
        for number, batch in enumerate(data.batches(conf.batch_size, shuffle=shuffle)):
            if not sync and number % workers != rank:
                continue
            bounds = part_bounds(batch.size, rank, workers) if sync else (0, batch.size)
            yield _Batch(epoch, number + 1, batch.rows(*bounds), batch.size)


def _with_next(
    batches: Iterator[_Batch], *, look_ahead: bool
) -> Iterator[tuple[_Batch, _Batch | None]]:
    """Each batch with the one after it; with None where that is not looked for, or is none."""
    if not look_ahead:
        yield from ((batch, None) for batch in batches)
        return
    current = next(batches, None)
    while current is not None:
        upcoming = next(batches, None)
        yield current, upcoming
        current = upcoming


def score_part(learner: Learner, data: Dataset, part: int, parts: int) -> Iterator[Step]:
    """Score every `parts`-th batch from number `part` on, changing nothing."""
    for number, batch in enumerate(data.batches(learner.conf.test.batch_size)):
        if number % parts == part:
            rows = batch.rows()
            yield Step(0, number + 1, rows.labels, learner.scores(rows), 0.0)


def train_worker(
    worker: Worker,
    conf: ModelConfig,
    data: Dataset,
    test: Dataset | None = None,
    *,
    sync: bool,
    listener: Listener | None = None,
) -> TrainResult | None:
    """Train as one of the workers of a job, then test; all workers must call this.

    Args:
        worker: local or over the network.
        data: the same rows for each worker, who takes its own of them.
        sync: as the job's tables are; it says how batches are cut.
        listener: is told of each step of this worker.
    Returns:
        The result over all workers at rank 0, None elsewhere.
    """
    learner = Learner(worker, conf, data.schema, Stopwatch())
    if worker.rank == 0:
        learner.assign_initial()
    worker.barrier("model is ready")
    share, started = Share(), time.perf_counter()
    for step in train_steps(learner, data, sync=sync):
        share.add(step)
        if listener is not None:
            listener(step)
    share.seconds = time.perf_counter() - started
    share.step_seconds = dict(learner.clock.seconds)
    worker.barrier("model is trained")
    if test is not None:
        _test(learner, test, share)
    shares = worker.gather(share.as_message())
    result = None
    if shares is not None:
        result = _result([Share(**found) for found in shares], learner, test is not None)
    worker.barrier("model is read")
    return result


def train_together(
    workers: Sequence[Worker],
    conf: ModelConfig,
    data: Dataset,
    test: Dataset | None = None,
    *,
    sync: bool,
    listener: Listener | None = None,
) -> TrainResult:
    """Train as all workers of a job at once in one thread, who take their steps in turn.

    In `sync` mode this is the reference for every other way to run the job. Arguments are those of
    `train_worker`; `listener` is told of the steps of rank 0.
    """
    learners = [Learner(worker, conf, data.schema, Stopwatch()) for worker in workers]
    learners[0].assign_initial()
    shares, started = [Share() for _ in workers], time.perf_counter()
    runs = [train_steps(learner, data, sync=sync) for learner in learners]
    running = list(range(len(runs)))
    while running:
        for rank in list(running):
            step = next(runs[rank], None)
            if step is None:
                running.remove(rank)
                continue
            shares[rank].add(step)
            if listener is not None and rank == 0:
                listener(step)
    for learner, share in zip(learners, shares, strict=True):
        share.seconds = time.perf_counter() - started
        share.step_seconds = dict(learner.clock.seconds)
    if test is not None:
        for learner, share in zip(learners, shares, strict=True):
            _test(learner, test, share)
    return _result(shares, learners[0], test is not None)


def _test(learner: Learner, test: Dataset, share: Share) -> None:
    steps = list(score_part(learner, test, learner.worker.rank, learner.worker.num_workers))
    empty = np.empty(0, np.float32)
    share.labels = np.concatenate([empty, *(step.labels for step in steps)])
    share.scores = np.concatenate([empty, *(step.scores for step in steps)])


def _result(shares: Sequence[Share], learner: Learner, is_tested: bool) -> TrainResult:
    last = max(share.epoch for share in shares)
    latest = [share for share in shares if share.epoch == last]
    rows = sum(share.epoch_rows for share in latest)
    labels = np.concatenate([share.labels for share in shares])
    scores = np.concatenate([share.scores for share in shares])
    return TrainResult(
        train_samples=sum(share.rows for share in shares),
        train_clicks=sum(share.clicks for share in shares),
        train_logloss=sum(share.epoch_loss for share in latest) / rows if rows else None,
        seconds=max(share.seconds for share in shares),
        step_seconds={part: [share.step_seconds[part] for share in shares] for part in PARTS},
        test=quality(labels, scores) if is_tested else None,
        snapshot=take_snapshot(learner),
    )
