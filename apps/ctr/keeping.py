"""A training run's checkpoints: what each worker has counted, beside the tables.

A worker's state is its portion of the figures, torch's random state and the network's buffers; the
tables are the servers', and how far the data has been read is what the leases say. Kept with it is
what settings that depends on: going on with another batch size would train on other rows than it
seems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from apps.ctr.dataset import Dataset
from apps.ctr.errors import CtrError
from apps.ctr.learner import Learner
from apps.ctr.modelconf import ModelConfig
from apps.ctr.portion import Portion
from apps.ctr.reading import NAME, Trail
from kv.checkpoint.collective import Checkpoints, Resumed
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.together import TogetherCheckpoints
from kv.leases.reading import records_in

_FIXED = {"train": ("batch_size", "shuffle", "seed"), "loss": ("loss",), "net": ("model", "layers")}


class Standing:
    """What one worker has done so far, as it goes into a checkpoint.

    Attributes:
        portion: as it is now.
        resumed_from: the checkpoint that the run goes on from, or None.
        rows_before: that all workers of the former run had trained on, of all epochs.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.portion = Portion(learner.worker.rank)
        self.resumed_from: str | None = None
        self.rows_before = 0

    def state(self) -> dict[str, Any]:
        """All of it in types that a checkpoint takes."""
        self._learner.finish()
        buffers = self._learner.network.named_buffers()
        return {
            "portion": self.portion.as_message(),
            "torch": torch.get_rng_state().numpy(),
            "buffers": {name: buffer.detach().cpu().numpy() for name, buffer in buffers},
        }

    def go_on(self, found: Resumed, workers: int) -> None:
        """Carry on with the figures and the random state of the same worker of the former run.

        Where there were others, rank 0 carries on with the figures of all.
        """
        self.resumed_from = found.name
        self.rows_before = records_in(found.manifest.reading.get(NAME, []))
        states, rank = found.states, self.portion.rank
        if not states:  # a fuzzy checkpoint before all had left word
            return
        if len(states) == workers:
            self.portion = _portion(states[rank])
        elif rank == 0:
            for state in states:
                self.portion.absorb(_portion(state))
        self._take_network(states[min(rank, len(states) - 1)])

    def _take_network(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
        with torch.no_grad():
            for name, buffer in self._learner.network.named_buffers():
                if name in state["buffers"]:
                    buffer.copy_(torch.from_numpy(np.array(state["buffers"][name])))


def _portion(state: Mapping[str, Any]) -> Portion:
    known = {entry.name for entry in fields(Portion)}
    return Portion(**{key: value for key, value in state["portion"].items() if key in known})


class Keeper:
    """The checkpoints of one worker that trains beside others; without a `dir` it does nothing."""

    def __init__(
        self, learner: Learner, standing: Standing, data: Dataset, config: CheckpointConfig
    ) -> None:
        self._learner, self._standing, self._config = learner, standing, config
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
        self._standing.go_on(found, self._worker.num_workers)
        return True

    def join(self) -> None:
        """This worker was started again amid the job, whose tables are as the others made them."""
        if self._checkpoints is not None:
            self._standing.resumed_from = self._checkpoints.join(self._standing.state)

    def at_step(self, trail: Trail) -> None:
        """After a step that `standing` knows of."""
        if self._checkpoints is None:
            return
        if self._checkpoints.meets_after(0):  # all stand still: the last push counts as well
            self._learner.finish()
            trail.all_answered()
        self._checkpoints.at_step(self._standing.state)

    def idle(self) -> bool:
        """There is nothing to do until others have done, or died; whether time has passed."""
        return self._checkpoints is not None and self._checkpoints.idle(self._standing.state)

    def meets_after(self, steps: int) -> bool:
        """Whether workers meet after so many more steps: nothing may be asked for across it."""
        return self._checkpoints is not None and self._checkpoints.meets_after(steps)

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
    ) -> None:
        self._learners, self._standings, self._config = learners, standings, config
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
        for standing in self._standings:
            standing.go_on(found, len(self._standings))
        return True

    def meets_after(self, steps: int) -> bool:
        """See `Keeper.meets_after`."""
        return self._checkpoints is not None and self._checkpoints.meets_after(steps)

    def at_step(self, trails: Sequence[Trail]) -> None:
        """After a step of every worker."""
        if self._checkpoints is None:
            return
        for learner, trail in zip(self._learners, trails, strict=True):
            learner.finish()
            trail.all_answered()
        self._checkpoints.at_step(lambda: [standing.state() for standing in self._standings])


Meets = Callable[[int], bool]


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
