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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from apps.ctr.dataset import Dataset
from apps.ctr.keeping import Keeper, Meets, Standing, TogetherKeeper
from apps.ctr.learner import Learner
from apps.ctr.metrics import Quality, quality
from apps.ctr.modelconf import ModelConfig
from apps.ctr.portion import Portion
from apps.ctr.progress import Progress, Step
from apps.ctr.reading import NAME, Share, Trail, shards_of, shares
from apps.ctr.snapshot import Snapshot, take_snapshot
from apps.ctr.stopwatch import PARTS, Stopwatch
from kv.checkpoint.config import CheckpointConfig
from kv.leases.reader import Shards
from kv.protocols import Worker

Listener = Callable[[Step], None]
NO_CHECKPOINTS = CheckpointConfig()


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
        resumed_from: the checkpoint that the run went on from, or None.
        skipped_samples: rows that were left out of their steps, each epoch counted.
        clipped_rows, clipped_steps: gradients that workers clipped.
        staleness: of the pushes to the embeddings, see `Worker.staleness`.
    """

    train_samples: int
    train_clicks: int
    train_logloss: float | None
    seconds: float
    step_seconds: dict[str, list[float]]
    test: Quality | None
    snapshot: Snapshot
    resumed_from: str | None = None
    skipped_samples: int = 0
    clipped_rows: int = 0
    clipped_steps: int = 0
    staleness: dict[str, int] = field(default_factory=dict)

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
    shards: Shards | None = None,
    trail: Trail | None = None,
    meets_after: Meets = lambda steps: False,
) -> Iterator[Step]:
    """Train on all epochs, one step at each `next`.

    Args:
        shards: the leases of the data; None: they are asked for.
        trail: is told of each step; None: one of these shards'.
        meets_after: whether workers meet after so many more steps: nothing is asked for across it.
    """
    conf, worker = learner.conf.train, learner.worker
    shards = shards or shards_of(worker, conf, data, sync=sync)
    depth = conf.pipeline_depth
    trail = trail or Trail(shards, depth)
    ahead = depth or int(conf.prefetch and not sync)
    learner.clock.skip()
    for piece in shares(worker, conf, data, shards, sync=sync):
        trail.began()
        for share, upcoming in _with_next(piece, ahead):
            learner.clock.lap("data")
            free = next((n for n in range(1, ahead + 1) if meets_after(n)), ahead + 1) - 1
            rows = [later.rows for later in upcoming[:free]]
            trained = learner.train(share.rows, share.batch_rows, rows, share.origin)
            trail.pushed(share)
            labels = share.rows.labels[trained.kept]
            skipped = len(share.rows) - len(labels)
            done = share.epoch, share.number, labels, trained.scores, trained.loss
            yield Step(*done, share.position, skipped)
            learner.clock.skip()
        learner.finish()  # before the next piece is asked for, which says that this one is done
    learner.finish()


def _with_next(batches: Iterator[Share], ahead: int) -> Iterator[tuple[Share, list[Share]]]:
    """Each batch with up to `ahead` after it."""
    coming: deque[Share] = deque()
    for batch in batches:
        coming.append(batch)
        if len(coming) > ahead:
            current = coming.popleft()
            yield current, list(coming)
    while coming:
        current = coming.popleft()
        yield current, list(coming)


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
    keeper = Keeper(learner, standing, data, checkpoint)
    if worker.has_begun(NAME):
        keeper.join()
    elif not keeper.resume() and worker.rank == 0:
        learner.assign_initial()
    _go_on(listener, standing)
    shards = shards_of(worker, conf.train, data, sync=sync)
    shards.meanwhile, trail = keeper.idle, Trail(shards, conf.train.pipeline_depth)
    worker.barrier("model is ready")
    portion = standing.portion
    started = time.perf_counter() - portion.seconds
    steps = train_steps(
        learner, data, sync=sync, shards=shards, trail=trail, meets_after=keeper.meets_after
    )
    for step in steps:
        portion.add(step)
        portion.seconds = time.perf_counter() - started
        if listener is not None:
            listener(step)
        keeper.at_step(trail)
    keeper.close()
    worker.finish()  # or who has taken more steps, or is in an open round, would be waited for
    _note_end(portion, learner)
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
        result = _result(portions, standing, learner, samples, test is not None)
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
    keeper = TogetherKeeper(learners, standings, data, checkpoint)
    if not keeper.resume():
        learners[0].assign_initial()
    _go_on(listener, standings[0])
    portions = [standing.portion for standing in standings]
    started = time.perf_counter() - max(portion.seconds for portion in portions)
    sharing = [shards_of(worker, conf.train, data, sync=sync) for worker in workers]
    trails = [Trail(shards, conf.train.pipeline_depth) for shards in sharing]
    runs = [
        train_steps(
            learner, data, sync=sync, shards=shards, trail=trail, meets_after=keeper.meets_after
        )
        for learner, shards, trail in zip(learners, sharing, trails, strict=True)
    ]
    running = list(range(len(runs)))
    while running:
        for rank in list(running):
            step = next(runs[rank], None)
            if step is None:
                workers[rank].finish()
                running.remove(rank)
                continue
            portions[rank].add(step)
            portions[rank].seconds = time.perf_counter() - started
            if listener is not None and rank == 0:
                listener(step)
        if running:
            keeper.at_step(trails)
    for learner, portion in zip(learners, portions, strict=True):
        portion.seconds = time.perf_counter() - started
        _note_end(portion, learner)
    if test is not None:
        for learner, portion in zip(learners, portions, strict=True):
            _test(learner, test, portion)
    samples = sharing[0].data.records * sharing[0].data.epochs
    return _result(portions, standings[0], learners[0], samples, test is not None)


def _note_end(portion: Portion, learner: Learner) -> None:
    """The worker has taken its last step."""
    portion.step_seconds = dict(learner.clock.seconds)
    portion.clipped_rows += learner.clipping.counts["rows"]
    portion.clipped_steps += learner.clipping.counts["steps"]


def _go_on(listener: Listener | None, standing: Standing) -> None:
    """Let the reports carry on with those of an earlier run."""
    if isinstance(listener, Progress) and standing.rows_before and standing.resumed_from:
        listener.go_on(standing.resumed_from, standing.rows_before, standing.portion.rows)


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
    portions: Sequence[Portion],
    standing: Standing,
    learner: Learner,
    samples: int,
    is_tested: bool,
) -> TrainResult:
    last = max(portion.epoch for portion in portions)
    latest = [portion for portion in portions if portion.epoch == last]
    rows = sum(portion.epoch_rows for portion in latest)
    labels = np.concatenate([portion.labels for portion in portions])
    scores = np.concatenate([portion.scores for portion in portions])
    skipped, *clipped = (
        sum(getattr(portion, count) for portion in portions)
        for count in ("skipped", "clipped_rows", "clipped_steps")
    )
    return TrainResult(
        train_samples=samples - skipped,
        train_clicks=sum(portion.clicks for portion in portions),
        train_logloss=sum(portion.epoch_loss for portion in latest) / rows if rows else None,
        seconds=max(portion.seconds for portion in portions),
        step_seconds={part: [portion.step_seconds[part] for portion in portions] for part in PARTS},
        test=quality(labels, scores) if is_tested else None,
        snapshot=take_snapshot(learner),
        resumed_from=standing.resumed_from,
        skipped_samples=skipped,
        clipped_rows=clipped[0],
        clipped_steps=clipped[1],
        staleness=learner.worker.staleness(learner.embedding),
    )
