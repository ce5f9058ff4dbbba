"""A training run's checkpoints: where each worker stands in its data, and what it has counted.

A worker's state is its position (epoch and batches of it), its share of the figures, torch's random
state and the network's buffers; the tables are the servers'. Kept with it is what settings the
positions depend on: going on with another batch size would train on other rows than it seems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from apps.ctr.dataset import Dataset
from apps.ctr.errors import CtrError
from apps.ctr.learner import Learner
from apps.ctr.modelconf import ModelConfig
from apps.ctr.progress import Step
from apps.ctr.share import Share
from kv.checkpoint.collective import Checkpoints, Resumed
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.together import TogetherCheckpoints

_FIXED = {"train": ("batch_size", "shuffle", "seed"), "loss": ("loss",), "net": ("model", "layers")}


@dataclass(frozen=True, order=True)
class Position:
    """The first `batch` batches of `epoch`, which counts from 1, have been trained on."""

    epoch: int = 1
    batch: int = 0


class Standing:
    """What one worker has done so far, as it goes into a checkpoint.

    Attributes:
        position, share: as they are now.
        resumed_from: the checkpoint that the run goes on from, or None.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.position, self.share = Position(), Share()
        self.resumed_from: str | None = None

    def add(self, step: Step) -> None:
        """A step was taken."""
        self.share.add(step)
        self.position = Position(step.epoch, step.batch)

    def state(self) -> dict[str, Any]:
        """All of it in types that a checkpoint takes."""
        self._learner.finish()
        buffers = self._learner.network.named_buffers()
        return {
            "position": [self.position.epoch, self.position.batch],
            "share": self.share.as_message(),
            "torch": torch.get_rng_state().numpy(),
            "buffers": {name: buffer.detach().cpu().numpy() for name, buffer in buffers},
        }

    def go_on(self, found: Resumed, rank: int, workers: int, sync: bool) -> None:
        """Stand where this worker stood in the former run.

        Where there were others, or where they keep step but did not leave word in the same one:
        where all of them had come to at least.
        """
        self.resumed_from = found.name
        states = found.states
        if not states:  # a fuzzy checkpoint before all had left word
            return
        if len(states) == workers:
            self._take(states[rank])
            if sync:
                self.position = min(Position(*state["position"]) for state in states)
            return
        self.position = min(Position(*state["position"]) for state in states)
        if rank == 0:
            for state in states:
                self.share.absorb(Share(**state["share"]))
        self._take_network(states[min(rank, len(states) - 1)])

    def _take(self, state: Mapping[str, Any]) -> None:
        self.position = Position(*state["position"])
        known = {entry.name for entry in fields(Share)}
        self.share = Share(**{key: state["share"][key] for key in known})
        self._take_network(state)

    def _take_network(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
        with torch.no_grad():
            for name, buffer in self._learner.network.named_buffers():
                if name in state["buffers"]:
                    buffer.copy_(torch.from_numpy(np.array(state["buffers"][name])))


class Keeper:
    """The checkpoints of one worker that trains beside others; without a `dir` it does nothing."""

    def __init__(
        self,
        learner: Learner,
        standing: Standing,
        data: Dataset,
        config: CheckpointConfig,
        *,
        sync: bool,
    ) -> None:
        self._standing, self._config, self._sync = standing, config, sync
        self._worker, self._note = learner.worker, note_of(learner.conf, data)
        self._checkpoints: Checkpoints | None = None
        if config.dir:
            self._checkpoints = Checkpoints.of(learner.worker, config, self._note)

    def resume(self) -> bool:
        """Go on from a checkpoint, as `[checkpoint] resume` says; whether there was one."""
        if self._checkpoints is None:
            return False
        found = self._checkpoints.resume(self._config.resume)
        if found is None:
            return False
        check_note(found, self._note)
        workers = self._worker.num_workers
        self._standing.go_on(found, self._worker.rank, workers, self._sync)
        return True

    def at_step(self) -> None:
        """After a step that `standing` knows of."""
        if self._checkpoints is not None:
            self._checkpoints.at_step(self._standing.state)

    def meets_next(self) -> bool:
        """Whether workers meet after the next step: nothing may be asked for ahead of it."""
        return self._checkpoints is not None and self._checkpoints.meets_after(1)

    def close(self) -> None:
        """The last step is taken."""
        if self._checkpoints is not None:
            self._checkpoints.close(self._standing.state)


class TogetherKeeper:
    """The checkpoints of all workers of a process that one thread drives."""

    def __init__(
        self,
        learners: Sequence[Learner],
        standings: Sequence[Standing],
        data: Dataset,
        config: CheckpointConfig,
        *,
        sync: bool,
    ) -> None:
        self._standings, self._config, self._sync = standings, config, sync
        self._note = note_of(learners[0].conf, data)
        self._checkpoints: TogetherCheckpoints | None = None
        if config.dir:
            workers = [learner.worker for learner in learners]
            self._checkpoints = TogetherCheckpoints(workers, config, self._note)

    def resume(self) -> bool:
        """See `Keeper.resume`."""
        found = self._checkpoints and self._checkpoints.resume(self._config.resume)
        if not found:
            return False
        check_note(found, self._note)
        for rank, standing in enumerate(self._standings):
            standing.go_on(found, rank, len(self._standings), self._sync)
        return True

    def at_step(self) -> None:
        """After a step of every worker."""
        if self._checkpoints is not None:
            self._checkpoints.at_step(lambda: [standing.state() for standing in self._standings])


Meets = Callable[[], bool]


def note_of(conf: ModelConfig, data: Dataset) -> dict[str, Any]:
    """What positions in the data depend on."""
    plain = conf.as_dict()
    note = {f"{name}.{key}": plain[name][key] for name, keys in _FIXED.items() for key in keys}
    return {**note, "rows of the training data": data.rows}


def check_note(found: Resumed, note: Mapping[str, Any]) -> None:
    """Refuse to go on from a run on other data or with settings that change what batches are.

    Raises:
        CtrError: naming what differs.
    """
    differ = [
        f"{key} is {found.note.get(key)} in it and {value} here"
        for key, value in note.items()
        if found.note.get(key) != value
    ]
    if differ:
        raise CtrError(
            f"checkpoint {found.name} is of another run: {', '.join(differ)}; choose another "
            f"[checkpoint] dir, or resume = no"
        )
