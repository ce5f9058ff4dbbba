"""One worker's network on the tables of its cluster: pull, forward, backward, push.

Embeddings live in one sparse table, each parameter of the network in a dense table. The network
here is a copy that every step overwrites with what the tables hold. All tensors are torch's own,
never views of received arrays: matrix products may differ in their last bits with the alignment
of their operands, and a model must not depend on how its parameters came here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from apps.ctr import kernels
from apps.ctr.batch import Rows
from apps.ctr.errors import BadOutputError, ModelError
from apps.ctr.lookup import Lookup
from apps.ctr.losses import check_output, probabilities, total_loss
from apps.ctr.modelconf import ModelConfig
from apps.ctr.models import BlockShape, Network, network_class
from apps.ctr.origin import Origin, Suspects
from apps.ctr.refusals import Refusals
from apps.ctr.schema import Schema
from apps.ctr.stopwatch import Stopwatch
from apps.ctr.tables import dense_optimizer, embedding_initializer, embedding_optimizer
from kv.clipping import Clipping
from kv.errors import NonFiniteError
from kv.optimizers import CLIPS
from kv.protocols import Read, Worker, Write
from van.errors import PsliteError

logger = logging.getLogger(__name__)

EMBEDDING = "embedding"
_BUILDING = threading.Lock()  # torch's generator is the process', and workers may be threads


def block_shapes(network: type[Network], schema: Schema, dim: int) -> dict[str, BlockShape]:
    """The width of each input of a network on this data."""
    return {
        name: BlockShape(len(schema.sparse_names(groups)), dim, len(schema.dense_names(groups)))
        for name, groups in network.blocks.items()
    }


def build_network(conf: ModelConfig, schema: Schema) -> tuple[Network, dict[str, BlockShape]]:
    """The network that the settings name, for data with these features, and its inputs.

    Raises:
        ModelError: it does not fit its layers, its loss or the data.
    """
    kind = network_class(conf.net.model)
    shapes = block_shapes(kind, schema, conf.sparse_dict.emb_dim)
    with _BUILDING:
        torch.manual_seed(conf.train.seed)
        network = kind(shapes, conf.net.layers)
    check_output(network.output, conf.loss.loss)
    return network, shapes


class Trained(NamedTuple):
    """What came of a step.

    loss: sum of the rows' losses; scores: float32 (n,), before the step; kept: int64 (n,), which of
    the rows these are of: all but those that were left out.
    """

    loss: float
    scores: NDArray[np.float32]
    kept: NDArray[np.int64]


class Learner:
    """A network and its tables.

    Args:
        worker: where the tables are.
        clock: gets the laps pull, forward, backward, push and wait of each step.
    Raises:
        ModelError: the network does not fit its layers, its loss or the data.
    """

    def __init__(
        self, worker: Worker, conf: ModelConfig, schema: Schema, clock: Stopwatch | None = None
    ) -> None:
        self.worker, self.conf, self.clock = worker, conf, clock or Stopwatch()
        self.network, self.shapes = build_network(conf, schema)
        self._parameters = dict(self.network.named_parameters())
        if names := [name for name, _ in self.network.named_buffers()]:
            logger.warning("buffers %s are this worker's own and not saved", ", ".join(names))
        self._weights = {name: p.detach().numpy() for name, p in self._parameters.items()}
        self._initial = {name: w.copy() for name, w in self._weights.items()}
        for name, weights in self._weights.items():
            if weights.dtype != np.float32:
                raise ModelError(f"parameter {name} is {weights.dtype}; tables hold float32")
        self._define_tables()
        train = conf.train
        self.pipeline = worker.pipeline(train.pipeline_depth)
        self.clipping = Clipping(**{name: getattr(train, name) for name in CLIPS})
        self.refusals = Refusals(self.network, schema, train.on_non_finite == "skip")
        self._inputs: dict[str, torch.Tensor] = {}
        self._out = torch.empty(0)  # of the last forward pass
        self._coming: deque[tuple[Rows, Lookup]] = deque()  # of steps that were asked for ahead
        kernels.warm_up(conf.sparse_dict.emb_dim)

    def _define_tables(self) -> None:
        conf, worker = self.conf, self.worker
        self.embedding = worker.sparse_table(
            EMBEDDING,
            conf.sparse_dict.emb_dim,
            optimizer=embedding_optimizer(conf),
            initializer=embedding_initializer(conf),
            storage=conf.sparse_dict.storage,
        )
        initializers = self.network.initializers()
        self.dense = {
            name: worker.dense_table(
                f"net.{name}",
                weights.shape,
                optimizer=dense_optimizer(conf),
                initializer=initializers.get(name),
            )
            for name, weights in self._weights.items()
        }
        self._assigned = [name for name in self._weights if name not in initializers]

    def assign_initial(self) -> None:
        """Give the tables the network's own first values where it names no initialiser.

        One worker calls this, before any of them takes a step.
        """
        for name in self._assigned:
            self.dense[name].assign(self._initial[name])

    def train(
        self,
        rows: Rows,
        batch_rows: int,
        upcoming: Sequence[Rows] = (),
        origin: Origin | None = None,
    ) -> Trained:
        """One step on `rows`, a batch or a part of one.

        Args:
            batch_rows: rows of the whole batch; the loss is the sum over `rows` divided by this,
                so that the parts' gradients sum up to the batch's.
            upcoming: the rows of the next steps, as many as `[train] pipeline_depth` says or, with
                `prefetch`, one; their values are asked for now and come while this step computes.
            origin: where the rows came from, for errors.
        Raises:
            NonFiniteError, BadOutputError: a gradient is NaN or infinity; the samples that this
                comes from are named, unless they are left out (`[train] on_non_finite = skip`).
            PsliteError: a push of an earlier step failed, which is named.
        """
        self._settle()
        trained = Trained(0.0, np.empty(0, np.float32), np.arange(len(rows)))
        while len(rows):
            lookup, inputs = self._pull(rows)
            self._ask(upcoming)
            try:
                loss, scores = self._compute_and_push(rows, lookup, inputs, batch_rows)
            except (NonFiniteError, BadOutputError) as error:
                suspects = self._suspects(rows, inputs, error)
                kept = self.refusals.without(error, suspects, origin, trained.kept)
                rows, trained = rows.take(kept), trained._replace(kept=trained.kept[kept])
                continue
            trained = trained._replace(loss=loss, scores=scores)
            break
        self.pipeline.step()
        self.clock.lap("push")
        return trained

    def scores(self, rows: Rows) -> NDArray[np.float32]:
        """Scores of `rows`, float32 (n,); makes no rows in the table."""
        if not len(rows):
            return np.empty(0, np.float32)
        self.finish()
        lookup = Lookup(list(rows.blocks.values()))
        pulled = self.worker.pull_many(self._reads(lookup), create=False)
        with torch.no_grad():
            inputs = self._inputs_of(rows, lookup, pulled)
            out = probabilities(self.network(**inputs), self.network.output)
        self.clock.lap("forward")
        found: NDArray[np.float32] = out.numpy()
        return found

    def finish(self) -> None:
        """Wait for all pushes."""
        self.pipeline.drain()
        self.clock.lap("wait")

    def _settle(self) -> None:
        """Wait for the pushes that this step must not be ahead of."""
        self.pipeline.settle()
        self.clock.lap("wait")

    def _pull(self, rows: Rows) -> tuple[Lookup, dict[str, torch.Tensor]]:
        """The lookup and inputs of this step, which may have been asked for before."""
        if self._coming and self._coming[0][0] is rows:
            _, lookup = self._coming.popleft()
        else:
            lookup = Lookup(list(rows.blocks.values()))
        pulled = self.pipeline.pull(self._reads(lookup))
        return lookup, self._inputs_of(rows, lookup, pulled)

    def _ask(self, upcoming: Sequence[Rows]) -> None:
        """Start the pulls of the next steps that are not started yet."""
        for ahead, rows in enumerate(upcoming, 1):
            if not len(rows) or any(rows is known for known, _ in self._coming):
                continue
            lookup = Lookup(list(rows.blocks.values()))
            self._coming.append((rows, lookup))
            if self.pipeline.depth:
                self.pipeline.ask(self._reads(lookup), ahead)
            else:
                self.worker.prefetch_many(self._reads(lookup))

    def _inputs_of(
        self, rows: Rows, lookup: Lookup, pulled: Sequence[NDArray[np.float32]]
    ) -> dict[str, torch.Tensor]:
        """What the network is given, with the weights that were pulled in place."""
        values, *weights = pulled
        for held, came in zip(self._weights.values(), weights, strict=True):
            np.copyto(held, came)
        inputs = {name: self._input(name, len(rows)) for name in rows.blocks}
        lookup.fill(values, [x.numpy() for x in inputs.values()])
        self.clock.lap("pull")
        return inputs

    def _reads(self, lookup: Lookup) -> list[Read]:
        return [(self.embedding, lookup.keys), *self.dense.values()]

    def _input(self, name: str, rows: int) -> torch.Tensor:
        """An uninitialised tensor (rows, width), from memory that the next step uses again."""
        kept = self._inputs.get(name)
        if kept is None or len(kept) < rows:
            kept = self._inputs[name] = torch.empty((rows, self.shapes[name].width))
        return kept[:rows].detach()

    def _loss(self, out: torch.Tensor, labels: NDArray[np.float32]) -> torch.Tensor:
        if out.shape != labels.shape:
            wanted, got = tuple(labels.shape), tuple(out.shape)
            raise ModelError(f"{self.conf.net.model} returns shape {got}, not {wanted}")
        if self.network.output == "probability" and not bool(torch.isfinite(out).all()):
            number = out[~torch.isfinite(out)][0].item()  # torch refuses it with less of a reason
            place = f"step {self.worker.steps}, worker {self.worker.rank}"
            raise BadOutputError(f"{self.conf.net.model} returns {number} ({place})")
        target = torch.from_numpy(np.array(labels))
        return total_loss(out, target, output=self.network.output, loss=self.conf.loss.loss)

    def _compute_and_push(
        self, rows: Rows, lookup: Lookup, inputs: Mapping[str, torch.Tensor], batch_rows: int
    ) -> tuple[float, NDArray[np.float32]]:
        """Forward, backward, push; the sum of the rows' losses and their scores, float32 (n,)."""
        for x in inputs.values():
            x.requires_grad_()
        out = self.network(**inputs)
        self._out = out.detach()
        loss = self._loss(out, rows.labels)
        self.clock.lap("forward")
        self.network.zero_grad(set_to_none=True)
        (loss / batch_rows).backward()  # type: ignore[no-untyped-call]  # torch has no type here
        self.clock.lap("backward")
        self.pipeline.push(self._writes(lookup, inputs), clipping=self.clipping or None)
        scores = probabilities(out.detach(), self.network.output).numpy()
        return float(loss.detach()), scores

    def _writes(self, lookup: Lookup, inputs: Mapping[str, torch.Tensor]) -> list[Write]:
        grads: Sequence[NDArray[np.float32]] = [_gradient(x) for x in inputs.values()]
        rows = lookup.gradients(grads, self.embedding.dim)
        writes: list[Write] = [(self.embedding, lookup.keys, rows)]
        for name, table in self.dense.items():
            writes.append((table, _gradient(self._parameters[name])))
        return writes

    def _suspects(
        self, rows: Rows, inputs: Mapping[str, torch.Tensor], error: PsliteError
    ) -> Suspects:
        """What the step that was refused was made of."""
        return Suspects(
            rows,
            {name: x.detach().numpy() for name, x in inputs.items()},
            {name: None if x.grad is None else x.grad.numpy() for name, x in inputs.items()},
            self._out.numpy(),
            getattr(error, "key", None),
        )


def _gradient(tensor: torch.Tensor) -> NDArray[np.float32]:
    """The gradient of a leaf, zeros if the loss does not depend on it."""
    if tensor.grad is None:
        return np.zeros(tuple(tensor.shape), np.float32)
    found: NDArray[np.float32] = tensor.grad.numpy()
    return found
