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
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from apps.ctr.batch import Rows, part_bounds
from apps.ctr.dataset import Dataset
from apps.ctr.keeping import Keeper, Meets, Position, Standing, TogetherKeeper
from apps.ctr.learner import Learner
from apps.ctr.metrics import Quality, quality
from apps.ctr.modelconf import ModelConfig
from apps.ctr.progress import Progress, Step
from apps.ctr.share import Share
from apps.ctr.snapshot import Snapshot, take_snapshot
from apps.ctr.stopwatch import PARTS, Stopwatch
from kv.checkpoint.config import CheckpointConfig
from kv.protocols import Worker

Listener = Callable[[Step], None]
NO_CHECKPOINTS = CheckpointConfig()


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
        resumed_from: the checkpoint that the run went on from, or None.
    """

    train_samples: int
    train_clicks: int
    train_logloss: float | None
    seconds: float
    step_seconds: dict[str, list[float]]
    test: Quality | None
    snapshot: Snapshot
    resumed_from: str | None = None

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
    learner: Learner,
    data: Dataset,
    *,
    sync: bool,
    start: Position = Position(),  # noqa: B008 (it is frozen)
    meets_next: Meets = lambda: False,
) -> Iterator[Step]:
    """Train on all epochs, one step at each `next`; see the module for who gets which rows.

    Args:
        start: how far the data has been trained on.
        meets_next: whether workers meet after the next step, so that nothing is asked for ahead.
    """
    conf = learner.conf.train
    shares = _shares(learner, data, sync, start)
    learner.clock.skip()
    for share, upcoming in _with_next(shares, look_ahead=conf.prefetch and not sync):
        learner.clock.lap("data")
        next_rows = None if upcoming is None or meets_next() else upcoming.rows
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


def _shares(learner: Learner, data: Dataset, sync: bool, start: Position) -> Iterator[_Batch]:
    """The batches, or parts of batches, that the learner's worker trains on from `start` on."""
    conf, worker = learner.conf.train, learner.worker
    rank, workers = worker.rank, worker.num_workers
    for epoch in range(start.epoch, conf.epoch + 1):
        shuffle = (conf.seed, epoch) if conf.shuffle else None
        done = start.batch if epoch == start.epoch else 0
        batches = islice(data.batches(conf.batch_size, shuffle=shuffle), done, None)
        for number, batch in enumerate(batches, done):
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
    checkpoint: CheckpointConfig = NO_CHECKPOINTS,
) -> TrainResult | None:
    """Train as one of the workers of a job, then test; all workers must call this.

    Args:
        worker: local or over the network.
        data: the same rows for each worker, who takes its own of them.
        sync: as the job's tables are; it says how batches are cut.
        listener: is told of each step of this worker.
        checkpoint: where the run is saved and goes on from, if anywhere.
    Returns:
        The result over all workers at rank 0, None elsewhere.
    """
    learner = Learner(worker, conf, data.schema, Stopwatch())
    standing = Standing(learner)
    keeper = Keeper(learner, standing, data, checkpoint, sync=sync)
    if not keeper.resume() and worker.rank == 0:
        learner.assign_initial()
    _go_on(listener, standing)
    worker.barrier("model is ready")
    started = time.perf_counter() - standing.share.seconds
    steps = train_steps(
        learner, data, sync=sync, start=standing.position, meets_next=keeper.meets_next
    )
    for step in steps:
        standing.add(step)
        if listener is not None:
            listener(step)
        standing.share.seconds = time.perf_counter() - started
        keeper.at_step()
    keeper.close()
    worker.finish()  # or who has taken more steps, or is in an open round, would be waited for
    share = standing.share
    share.step_seconds = dict(learner.clock.seconds)
    worker.barrier("model is trained")
    if test is not None:
        _test(learner, test, share)
    shares = worker.gather(share.as_message())
    result = None
    if shares is not None:
        found = [Share(**share) for share in shares]
        result = _result(found, learner, test is not None, standing.resumed_from)
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
    checkpoint: CheckpointConfig = NO_CHECKPOINTS,
) -> TrainResult:
    """Train as all workers of a job at once in one thread, who take their steps in turn.

    In `sync` mode this is the reference for every other way to run the job. Arguments are those of
    `train_worker`; `listener` is told of the steps of rank 0.
    """
    learners = [Learner(worker, conf, data.schema, Stopwatch()) for worker in workers]
    standings = [Standing(learner) for learner in learners]
    keeper = TogetherKeeper(learners, standings, data, checkpoint, sync=sync)
    if not keeper.resume():
        learners[0].assign_initial()
    _go_on(listener, standings[0])
    started = time.perf_counter() - max(standing.share.seconds for standing in standings)
    runs = [
        train_steps(learner, data, sync=sync, start=standing.position)
        for learner, standing in zip(learners, standings, strict=True)
    ]
    running = list(range(len(runs)))
    while running:
        for rank in list(running):
            step = next(runs[rank], None)
            if step is None:
                workers[rank].finish()
                running.remove(rank)
                continue
            standings[rank].add(step)
            standings[rank].share.seconds = time.perf_counter() - started
            if listener is not None and rank == 0:
                listener(step)
        if running:
            keeper.at_step()
    shares = [standing.share for standing in standings]
    for learner, share in zip(learners, shares, strict=True):
        share.seconds = time.perf_counter() - started
        share.step_seconds = dict(learner.clock.seconds)
    if test is not None:
        for learner, share in zip(learners, shares, strict=True):
            _test(learner, test, share)
    return _result(shares, learners[0], test is not None, standings[0].resumed_from)


def _go_on(listener: Listener | None, standing: Standing) -> None:
    """Let the reports count on from the rows of an earlier run, if there was one."""
    if isinstance(listener, Progress) and standing.resumed_from is not None:
        epoch, batch = standing.position.epoch, standing.position.batch
        whence = f"{standing.resumed_from}, after batch {batch} of epoch {epoch}"
        listener.go_on(standing.share.rows, whence)


def _test(learner: Learner, test: Dataset, share: Share) -> None:
    steps = list(score_part(learner, test, learner.worker.rank, learner.worker.num_workers))
    empty = np.empty(0, np.float32)
    share.labels = np.concatenate([empty, *(step.labels for step in steps)])
    share.scores = np.concatenate([empty, *(step.scores for step in steps)])


def _result(
    shares: Sequence[Share], learner: Learner, is_tested: bool, resumed_from: str | None
) -> TrainResult:
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
        resumed_from=resumed_from,
    )
