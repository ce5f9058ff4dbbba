"""Checkpoints of workers that one thread drives in turn: no barriers, no waiting."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv.checkpoint.collective import worker_of
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.errors import CheckpointWriteError
from kv.checkpoint.leading import Leader, steps_for
from kv.checkpoint.outcome import Resumed, Tally
from kv.checkpoint.plan import Plan
from kv.checkpoint.shards import shards_of
from kv.checkpoint.shelf import Shelf
from kv.checkpoint.state import pack_state
from kv.protocols import Worker

log = logging.getLogger(__name__)


class TogetherCheckpoints:
    """What `Checkpoints` is for a worker, for all workers of a process at once.

    Args:
        workers: of one `LocalCluster`, by rank.
        config: what `[checkpoint]` says; kind fuzzy is as step here, since nobody runs meanwhile.
        note, now: see `Checkpoints`.

    Raises:
        ConfigError: the config does not say when, or its `dir` can be no place for checkpoints.
        CheckpointError: nothing can be written there.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        config: CheckpointConfig,
        note: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        config.require_times()
        self._workers, self._config, self._note, self._now = workers, config, dict(note or {}), now
        self._leader = Leader(
            shards_of(workers[0]),
            Shelf(config.place()),
            keep=config.keep,
            full_every=config.full_every,
        )
        self._leader.try_place()
        self._plan: Plan | None = None
        self.tally = Tally()

    def resume(self, which: str = "auto") -> Resumed | None:
        """Load a checkpoint into the tables; what to go on from, `state` is None.

        Raises:
            CheckpointError: it cannot be loaded.
        """
        chain = None if which == "no" else self._leader.choose(which)
        if chain is None:
            return None
        steps = steps_for(chain[-1], len(self._workers))
        notes = self._leader.load(chain, steps)
        for note in notes:
            log.warning("%s", note)
        worker_of(self._workers[0]).leases.resume(chain[-1].reading)
        for worker, completed in zip(self._workers, steps, strict=True):
            worker_of(worker).resume_at(completed, chain[-1].clocks.items())
        return Resumed(chain[-1].name, None, self._leader.states(chain[-1]), notes, chain[-1])

    def meets_after(self, steps: int) -> bool:
        """Whether there may be a checkpoint after `steps` more: nothing is asked for across it."""
        most = max(worker_of(worker).steps for worker in self._workers)
        if self._plan is None:
            self._plan = self._plan_from(most)
        return most + steps >= self._plan.meeting

    def _plan_from(self, step: int) -> Plan:
        return Plan(self._config.every_steps, self._config.every, step, self._now())

    def at_step(self, states: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """After a step of every worker: do what is due; a failure is said and counted."""
        steps = [worker_of(worker).steps for worker in self._workers]
        if self._plan is None:
            self._plan = self._plan_from(max(steps) - 1)
        if max(steps) < self._plan.meeting or not self._plan.decide(max(steps), self._now()):
            return
        try:
            packed = [pack_state(state) for state in states()]
            reading = worker_of(self._workers[0]).leases.look().read
            saving = self._leader.begin("step")
            manifest = self._leader.finish(saving, steps, packed, self._note, reading)
        except CheckpointWriteError as error:
            self.tally.failure(error)
        else:
            self.tally.success(manifest, self._config.dir)
