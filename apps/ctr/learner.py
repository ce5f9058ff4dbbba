"""One worker's network on the tables of its cluster: pull, forward, backward, push.

Embeddings live in one sparse table, each parameter of the network in a dense table. The network
here is a copy that every step overwrites with what the tables hold. All tensors are torch's own,
never views of received arrays: matrix products may differ in their last bits with the alignment
of their operands, and a model must not depend on how its parameters came here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from apps.ctr import kernels
from apps.ctr.batch import Rows
from apps.ctr.errors import ModelError
from apps.ctr.lookup import Lookup
from apps.ctr.losses import check_output, probabilities, total_loss
from apps.ctr.modelconf import ModelConfig
from apps.ctr.models import BlockShape, Network, network_class
from apps.ctr.schema import Schema
from apps.ctr.stopwatch import Stopwatch
from apps.ctr.tables import dense_optimizer, embedding_initializer, embedding_optimizer
from kv.protocols import Read, Request, Worker, Write

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
        self._inputs: dict[str, torch.Tensor] = {}
        self._pending: Request | None = None
        self._ahead: tuple[Rows, Lookup] | None = None  # of the next step, if it is known
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
        self, rows: Rows, batch_rows: int, upcoming: Rows | None = None
    ) -> tuple[float, NDArray[np.float32]]:
        """One step on `rows`, a batch or a part of one.

        Args:
            batch_rows: rows of the whole batch; the loss is the sum over `rows` divided by this,
                so that the parts' gradients sum up to the batch's.
            upcoming: the rows of the next step; their values, without this step's gradients, are
                asked for now and come while this step computes.
        Returns:
            The sum of the rows' losses, and their scores before the step, float32 (n,).
        """
        self.finish()
        if not len(rows):
            self.worker.step()
            return 0.0, np.empty(0, np.float32)
        lookup, inputs = self._pull(rows, create=True)
        if upcoming is not None:
            self._ahead = upcoming, self._lookup(upcoming)
            self.worker.prefetch_many(self._reads(self._ahead[1]))
        for x in inputs.values():
            x.requires_grad_()
        out = self.network(**inputs)
        loss = self._loss(out, rows.labels)
        self.clock.lap("forward")
        self.network.zero_grad(set_to_none=True)
        (loss / batch_rows).backward()  # type: ignore[no-untyped-call]  # torch has no type here
        self.clock.lap("backward")
        self._push(lookup, inputs)
        scores = probabilities(out.detach(), self.network.output).numpy()
        return float(loss.detach()), scores

    def scores(self, rows: Rows) -> NDArray[np.float32]:
        """Scores of `rows`, float32 (n,); makes no rows in the table."""
        if not len(rows):
            return np.empty(0, np.float32)
        self.finish()
        with torch.no_grad():
            _, inputs = self._pull(rows, create=False)
            out = probabilities(self.network(**inputs), self.network.output)
        self.clock.lap("forward")
        found: NDArray[np.float32] = out.numpy()
        return found

    def finish(self) -> None:
        """Wait for the last push."""
        if self._pending is not None:
            self.worker.wait(self._pending)
            self._pending = None
            self.clock.lap("wait")

    def _pull(self, rows: Rows, *, create: bool) -> tuple[Lookup, dict[str, torch.Tensor]]:
        lookup = self._lookup(rows)
        values, *weights = self.worker.pull_many(self._reads(lookup), create=create)
        for held, pulled in zip(self._weights.values(), weights, strict=True):
            np.copyto(held, pulled)
        inputs = {name: self._input(name, len(rows)) for name in rows.blocks}
        lookup.fill(values, [x.numpy() for x in inputs.values()])
        self.clock.lap("pull")
        return lookup, inputs

    def _lookup(self, rows: Rows) -> Lookup:
        """The keys of `rows`, which may have been found in the step before."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is rows:
            return ahead[1]
        return Lookup(list(rows.blocks.values()))

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
        target = torch.from_numpy(np.array(labels))
        return total_loss(out, target, output=self.network.output, loss=self.conf.loss.loss)

    def _push(self, lookup: Lookup, inputs: Mapping[str, torch.Tensor]) -> None:
        grads: Sequence[NDArray[np.float32]] = [_gradient(x) for x in inputs.values()]
        rows = lookup.gradients(grads, self.embedding.dim)
        writes: list[Write] = [(self.embedding, lookup.keys, rows)]
        for name, table in self.dense.items():
            writes.append((table, _gradient(self._parameters[name])))
        self._pending = self.worker.push_many(writes)
        self.worker.step()
        self.clock.lap("push")


def _gradient(tensor: torch.Tensor) -> NDArray[np.float32]:
    """The gradient of a leaf, zeros if the loss does not depend on it."""
    if tensor.grad is None:
        return np.zeros(tuple(tensor.shape), np.float32)
    found: NDArray[np.float32] = tensor.grad.numpy()
    return found
