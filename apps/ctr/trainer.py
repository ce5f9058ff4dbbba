"""The training loop of one worker, and of several that share a process.

Asynchronous: a worker's loss is the mean over its batch. Synchronous: each worker's loss is its
rows' sum over the rows of the whole batch, so the sum of the parts' gradients is the gradient of
the batch; a worker whose part is empty takes its step all the same. `apps.ctr.reading` says who
gets which rows.

Everything drawn at random comes from seeds, and each loop runs in a fixed order: with a fixed
number of workers the same data gives the same model, asynchronous steps of separate workers aside.

A worker may be started again amid the training, or die for good while others go on: it does not
begin the model anew, its rows are trained on by others, and what it should have tested rank 0 does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.ctr.dataset import Dataset
from apps.ctr.learner import Learner
from apps.ctr.metrics import Quality, quality, row_losses
from apps.ctr.modelconf import ModelConfig
from apps.ctr.progress import Step
from apps.ctr.reading import Share, shards_of, shares
from apps.ctr.snapshot import Snapshot, take_snapshot
from apps.ctr.stopwatch import PARTS, Stopwatch
from kv.leases.reader import Shards
from kv.protocols import Worker

Listener = Callable[[Step], None]


@dataclass
class Portion:
    """What one worker did, as it is gathered at rank 0; losses are those of the last epoch."""

    rank: int = 0
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
        self.rows += len(step.labels)
        self.clicks += int(np.count_nonzero(step.labels))
        if step.epoch < self.epoch:
            return  # a piece of an epoch before, which another worker has left
        if step.epoch > self.epoch:
            self.epoch, self.epoch_rows, self.epoch_loss = step.epoch, 0, 0.0
        self.epoch_rows += len(step.labels)
        self.epoch_loss += float(row_losses(step.labels, step.scores).sum())

    def as_message(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class TrainResult:
    """How a training run went, over all workers.

    Attributes:
        train_samples: rows trained on, each epoch counted.
        train_clicks: those whose label is 1, of the workers that were there at the end.
        train_logloss: mean over the last epoch, each row scored before its step; None without one.
            Of those workers, too.
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


def train_steps(
    learner: Learner, data: Dataset, *, sync: bool, shards: Shards | None = None
) -> Iterator[Step]:
    """Train on all epochs, one step at each `next`.

    Args:
        shards: the leases of the data; None: they are asked for.
    """
    conf, worker = learner.conf.train, learner.worker
    if shards is None:
        shards = shards_of(worker, conf, data, sync=sync)
    learner.clock.skip()
    for piece in shares(worker, conf, data, shards, sync=sync):
        for share, upcoming in _with_next(piece, look_ahead=conf.prefetch and not sync):
            learner.clock.lap("data")
            next_rows = None if upcoming is None else upcoming.rows
            loss, scores = learner.train(share.rows, share.batch_rows, next_rows)
            shards.seen(share.seen)
            labels = share.rows.labels
            yield Step(share.epoch, share.number, labels, scores, loss, share.position)
            learner.clock.skip()
        learner.finish()  # before the next piece is asked for, which says that this one is done
    learner.finish()


def _with_next(
    batches: Iterator[Share], *, look_ahead: bool
) -> Iterator[tuple[Share, Share | None]]:
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
    shards = shards_of(worker, conf.train, data, sync=sync)
    if worker.rank == 0 and not shards.has_begun:
        learner.assign_initial()
    worker.barrier("model is ready")
    portion, started = Portion(worker.rank), time.perf_counter()
    for step in train_steps(learner, data, sync=sync, shards=shards):
        portion.add(step)
        if listener is not None:
            listener(step)
    portion.seconds = time.perf_counter() - started
    portion.step_seconds = dict(learner.clock.seconds)
    worker.barrier("model is trained")
    if test is not None:
        _test(learner, test, portion)
    gathered = worker.gather(portion.as_message())
    result = None
    if gathered is not None:
        portions = [Portion(**found) for found in gathered]
        if test is not None:
            portions += _test_for(set(range(worker.num_workers)), portions, learner, test)
        samples = shards.data.records * shards.data.epochs  # all of them, whoever is gone
        result = _result(portions, learner, samples, test is not None)
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
    portions, started = [Portion(worker.rank) for worker in workers], time.perf_counter()
    runs = [train_steps(learner, data, sync=sync) for learner in learners]
    running = list(range(len(runs)))
    while running:
        for rank in list(running):
            step = next(runs[rank], None)
            if step is None:
                running.remove(rank)
                continue
            portions[rank].add(step)
            if listener is not None and rank == 0:
                listener(step)
    for learner, portion in zip(learners, portions, strict=True):
        portion.seconds = time.perf_counter() - started
        portion.step_seconds = dict(learner.clock.seconds)
    if test is not None:
        for learner, portion in zip(learners, portions, strict=True):
            _test(learner, test, portion)
    samples = sum(portion.rows for portion in portions)
    return _result(portions, learners[0], samples, test is not None)


def _test(learner: Learner, test: Dataset, portion: Portion) -> None:
    steps = list(score_part(learner, test, portion.rank, learner.worker.num_workers))
    empty = np.empty(0, np.float32)
    portion.labels = np.concatenate([empty, *(step.labels for step in steps)])
    portion.scores = np.concatenate([empty, *(step.scores for step in steps)])


def _test_for(
    ranks: set[int], portions: Sequence[Portion], learner: Learner, test: Dataset
) -> list[Portion]:
    """Portions of workers that are not there any more: what they should have tested, no more."""
    missing = [Portion(rank) for rank in sorted(ranks - {portion.rank for portion in portions})]
    for portion in missing:
        _test(learner, test, portion)
        portion.step_seconds = dict.fromkeys(PARTS, 0.0)
    return missing


def _result(
    portions: Sequence[Portion], learner: Learner, samples: int, is_tested: bool
) -> TrainResult:
    last = max(portion.epoch for portion in portions)
    latest = [portion for portion in portions if portion.epoch == last]
    rows = sum(portion.epoch_rows for portion in latest)
    labels = np.concatenate([portion.labels for portion in portions])
    scores = np.concatenate([portion.scores for portion in portions])
    return TrainResult(
        train_samples=samples,
        train_clicks=sum(portion.clicks for portion in portions),
        train_logloss=sum(portion.epoch_loss for portion in latest) / rows if rows else None,
        seconds=max(portion.seconds for portion in portions),
        step_seconds={part: [portion.step_seconds[part] for portion in portions] for part in PARTS},
        test=quality(labels, scores) if is_tested else None,
        snapshot=take_snapshot(learner),
    )
