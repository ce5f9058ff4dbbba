"""One experiment: a model trained by some workers under one consistency mode, and tested.

Engine, modes, store and optimisers are `kv`'s, in one process; network, loss and gradients are
those of `pslite-ctr`. Only time is not real (`convergence_clock`): computing takes what `pslite
simulate` draws for each step. Equal settings give equal models.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from convergence_clock import Batch, Server, Trainee

from apps.ctr.batch import Rows
from apps.ctr.learner import EMBEDDING
from apps.ctr.metrics import quality
from apps.ctr.modelconf import ModelConfig
from apps.ctr.schema import Schema
from apps.ctr.snapshot import take_snapshot
from kv.consistency.settings import Async, Consistency, DCAsync, SemiSync, Sync
from kv.errors import NonFiniteError
from kv.local import LocalCluster
from pslite.simulate.config import SimulateConfig, mode_of
from pslite.simulate.cores import Events
from pslite.simulate.staleness import Staleness
from pslite.simulate.workload import Workload
from van.wires import Wires

POINTS = 40  # of a curve
PLAIN = ("sgd", "momentum", "nesterov")  # do not divide by the size of gradients
DEFAULT_TIMES = SimulateConfig()


@dataclass(frozen=True)
class Setting:
    """What an experiment's outcome depends on, besides data and model.

    Attributes:
        mode: see `consistency_of`.
        batch: rows of a worker's step, and so of a push.
        times: how long computing takes, and the network.
    """

    mode: str
    workers: int
    seed: int
    batch: int
    times: SimulateConfig = DEFAULT_TIMES


@dataclass(frozen=True)
class Found:
    """How an experiment ended, in types that JSON has.

    Attributes:
        quality: by name of the test, `auc`, `logloss` and `calibration` (see
            `apps.ctr.metrics.Quality`) with the final parameters; empty where training broke off
            because gradients became infinite.
        steps: of all workers.
        staleness: by staleness, how many pushes to the embeddings counted with it.
        told: the same as the table's own histogram has it.
        lead: steps by which a worker that was answered led the slowest, at most.
        late, dropped: pushes that counted after their round, or never.
        seconds: virtual, until the end of the last computation.
        waiting: the share of the workers' time, each until its last computation's end, in which
            they did not compute.
        curve: (virtual seconds, mean loss of the batches since the point before, each row scored
            before it was trained on).
        digest: of all parameters.
        processor: seconds that the experiment took of it.
    """

    quality: dict[str, dict[str, float | None]]
    steps: int
    staleness: dict[str, int]
    told: dict[str, int]
    lead: int
    late: int
    dropped: int
    seconds: float
    waiting: float
    curve: list[tuple[float, float]]
    digest: str
    processor: float


def consistency_of(mode: str) -> Consistency:
    """The mode that a text names: as in `[simulate] modes`, `async:lr`, or `dc_async:LAMBDA`.

    >>> consistency_of("async:lr"), consistency_of("dc_async:2").lam
    (Async(lr_by_staleness=1), 2.0)
    """
    name, _, setting = mode.partition(":")
    if mode == "async:lr":
        return Async(lr_by_staleness=1)
    if name == DCAsync.name and setting:
        return DCAsync(lam=float(setting))
    return mode_of(mode)


def pushes_of(consistency: Consistency, workers: int) -> int:
    """How many pushes an update of a table is made of, of so many workers."""
    if isinstance(consistency, Sync):
        return workers
    return consistency.needed(workers) if isinstance(consistency, SemiSync) else 1


def scaled(conf: ModelConfig, rows: int) -> ModelConfig:
    """The settings with learning rates for updates of so many rows, from those for `[train]`'s.

    A rate grows with the square root of the rows where the optimiser divides by the size of the
    gradients, in proportion with them where it does not.

    Sources: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014,
    section 5, and Malladi et al., On the SDEs and scaling rules for adaptive gradient algorithms,
    NeurIPS 2022 (square root); Goyal et al., Accurate, large minibatch SGD, 2017, section 2.1.
    """
    dense, sparse = conf.optimizer, conf.sparse_dict
    ratio = rows / conf.train.batch_size

    def rate(optimizer: str, before: float) -> float:
        return before * (ratio if optimizer in PLAIN else math.sqrt(ratio))

    embeddings = rate(
        sparse.optimizer or dense.optimizer, sparse.learning_rate or dense.learning_rate
    )
    return dataclasses.replace(
        conf,
        optimizer=dataclasses.replace(
            dense, learning_rate=rate(dense.optimizer, dense.learning_rate)
        ),
        sparse_dict=dataclasses.replace(sparse, learning_rate=embeddings),
    )


class Experiment:
    """A cluster and its workers.

    Args:
        conf: the model's; its learning rates belong to its batch size.
        batches: of all epochs, in order, of `setting.batch` rows but the last of an epoch; each
            is for the worker that is free first.
    """

    def __init__(
        self, setting: Setting, conf: ModelConfig, schema: Schema, batches: Sequence[Batch]
    ) -> None:
        consistency, workers = consistency_of(setting.mode), setting.workers
        rows = setting.batch * pushes_of(consistency, workers)
        self.cluster = LocalCluster(workers, consistency, setting.seed)
        self.server = Server(self.cluster)
        self.events = Events(Wires(lines=setting.times.network))
        times = dataclasses.replace(setting.times, steps=len(batches))  # one might do them all
        drawn = Workload(times, workers, "async", setting.seed).times.tolist()
        queue = iter(batches)
        self.trainees = [
            Trainee(
                self.cluster.worker(rank),
                scaled(conf, rows),
                schema,
                self.server,
                self.events,
                queue,
                drawn[rank],
                rows,
            )
            for rank in range(workers)
        ]
        engine = self.cluster.engine
        self.table = engine.table(engine.number_of(EMBEDDING))
        self.staleness = Staleness()
        self.staleness.watch(self.table.mode)

    def train(self) -> None:
        """Use up the batches.

        Raises:
            NonFiniteError: the model diverged.
        """
        self.trainees[0].learner.assign_initial()
        for trainee in self.trainees:
            trainee.begin()
        self.events.run()
        self.cluster.engine.validate()

    def score(self, test: Sequence[Rows]) -> dict[str, float | None]:
        """How well the model fits the test rows."""
        learner = self.trainees[0].learner
        labels = np.concatenate([rows.labels for rows in test])
        found = quality(labels, np.concatenate([learner.scores(rows) for rows in test]))
        return {"auc": found.auc, "logloss": found.logloss, "calibration": found.calibration}


def run_cell(
    setting: Setting,
    conf: ModelConfig,
    schema: Schema,
    batches: Sequence[Batch],
    tests: Mapping[str, Sequence[Rows]],
) -> Found:
    """Train and test; arguments as of `Experiment`."""
    begun = time.process_time()
    torch.set_num_threads(conf.train.threads)
    one = Experiment(setting, conf, schema, batches)
    tested: dict[str, dict[str, float | None]] = {}
    digest = ""
    try:
        one.train()
        tested = {name: one.score(rows) for name, rows in tests.items()}
        digest = take_snapshot(one.trainees[0].learner).digest()
    except NonFiniteError:
        pass  # it diverged: there is nothing to test
    mode, counts, trainees = one.table.mode, one.staleness.counts, one.trainees
    lasting = [trainee.lasting for trainee in trainees]
    return Found(
        quality=tested,
        steps=sum(len(trainee.losses) for trainee in trainees),
        staleness={str(age): counts[age] for age in sorted(counts)},
        told=one.table.staleness.report(),
        lead=one.server.lead,
        late=getattr(mode, "late", 0),
        dropped=getattr(mode, "dropped", 0),
        seconds=max(lasting),
        waiting=1.0 - sum(trainee.computed for trainee in trainees) / sum(lasting),
        curve=curve_of([loss for trainee in trainees for loss in trainee.losses]),
        digest=digest,
        processor=time.process_time() - begun,
    )


def curve_of(losses: Sequence[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Mean losses of the rows in equally many steps, with the time of the last of them.

    >>> curve_of([(2.0, 3.0, 2), (1.0, 1.0, 2)])
    [(1.0, 0.5), (2.0, 1.5)]
    """
    parts = np.array_split(np.array(sorted(losses)), min(POINTS, len(losses)))
    return [
        (round(float(part[-1, 0]), 3), round(float(part[:, 1].sum() / part[:, 2].sum()), 6))
        for part in parts
    ]
