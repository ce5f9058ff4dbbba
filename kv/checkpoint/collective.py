"""Checkpoints as the workers of a job take them, all together.

    checkpoints = Checkpoints(worker, "run/checkpoints", every_steps=1000)
    found = checkpoints.resume()                  # after the tables are defined
    start = found.state["batch"] if found else 0
    for batch in batches[start:]:
        ...
        worker.step()
        checkpoints.at_step(lambda: {"batch": batch.number + 1})
    checkpoints.close(lambda: {...})

Kind `step`: the workers meet at a barrier, everything stands still, and a job that goes on from
there, with as many workers, comes to the same bits. Kind `fuzzy`: nobody waits; rows are read while
others change, and workers leave their own state from time to time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.desk import Command
from kv.checkpoint.errors import CheckpointError, CheckpointWriteError
from kv.checkpoint.leading import Leader, Saving, hear, steps_for
from kv.checkpoint.manifest import Manifest
from kv.checkpoint.places import place_of
from kv.checkpoint.plan import Plan
from kv.checkpoint.shards import Shards, shards_of
from kv.checkpoint.shelf import Shelf
from kv.checkpoint.state import pack_state
from kv.local_worker import LocalWorker
from kv.protocols import Worker
from kv.remote_worker import RemoteWorker
from van.errors import PsliteError

log = logging.getLogger(__name__)

State = Callable[[], Mapping[str, Any]]
"""A worker's own state as it is now: readers' positions, random states, counts."""

NOTES = 4  # a worker leaves its state so many times between two fuzzy checkpoints


@dataclass(frozen=True)
class Resumed:
    """What a job goes on from.

    Attributes:
        name: of the checkpoint.
        state: this worker's own; None if it has none, or the job had another number of workers.
        states: those of all workers of the former job, by rank.
        notes: what is to be said, such as settings that are others now.
        note: the application's, of the whole job.
    """

    name: str
    state: Any
    states: list[Any]
    notes: list[str]
    manifest: Manifest

    @property
    def note(self) -> dict[str, Any]:
        return self.manifest.note


@dataclass
class Tally:
    """What became of the checkpoints of a run."""

    saved: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Checkpoints:
    """One worker's part; every worker of the job has one, with the same arguments.

    Args:
        worker: local or over the network.
        url: a folder that all servers and worker 0 reach under this name, or a URL for fsspec.
        kind: `step` or `fuzzy`.
        every: seconds between two checkpoints; 0 is by steps alone.
        every_steps: steps between two; 0 is by time alone.
        keep: how many to keep, 0 is all.
        full_every: of so many one has all rows, the others what has changed.
        note: of the application about the job, kept in the manifest.
        now: a clock in seconds.

    Attributes:
        tally: names saved and what failed, at worker 0.
    """

    def __init__(
        self,
        worker: Worker,
        url: str,
        *,
        kind: Literal["step", "fuzzy"] = "step",
        every: float = 0.0,
        every_steps: int = 0,
        keep: int = 3,
        full_every: int = 10,
        note: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        config = CheckpointConfig(
            dir=url, kind=kind, every=every, every_steps=every_steps, keep=keep,
            full_every=full_every,
        )  # fmt: skip  # it checks them
        self.worker, self.config, self._note, self._now = worker, config, dict(note or {}), now
        self._shards: Shards = shards_of(worker)
        self._leader: Leader | None = None
        self._plan: Plan | None = None
        self._meeting = 0
        self._saving: Saving | None = None
        self._noted_at = self._saved_at = now()
        self.tally = Tally()

    @classmethod
    def of(
        cls, worker: Worker, config: CheckpointConfig, note: Mapping[str, Any] | None = None
    ) -> Checkpoints:
        """Those that the ini section `[checkpoint]` asks for; its `dir` is not empty.

        Raises:
            ConfigError: it does not say when.
        """
        config.require_times()
        return cls(
            worker,
            config.dir,
            kind=config.kind,
            every=config.every,
            every_steps=config.every_steps,
            keep=config.keep,
            full_every=config.full_every,
            note=note,
        )

    @property
    def is_leader(self) -> bool:
        """Whether this worker names checkpoints and writes manifests."""
        return self.worker.rank == 0

    def leader(self) -> Leader:
        """What worker 0 leads with."""
        if self._leader is None:
            self._leader = Leader(
                self._shards,
                Shelf(place_of(self.config.dir)),
                keep=self.config.keep,
                full_every=self.config.full_every,
            )
        return self._leader

    # -- going on ---------------------------------------------------------------------------------

    def resume(self, which: str = "auto") -> Resumed | None:
        """Load a checkpoint into the tables, which are defined by now; all workers call this.

        Args:
            which: a name; `auto`: the last that is good, if there is any; `no`: none.
        Returns:
            What to go on from; None if there is nothing.
        Raises:
            CheckpointError: on all workers, if it cannot be loaded.
        """
        if which == "no":
            return None
        self.worker.barrier("checkpoint: tables are defined")
        failure: PsliteError | None = None
        if self.is_leader:
            failure = self._load(which)
        self.worker.barrier("checkpoint: tables are loaded")
        if failure is not None:
            raise failure
        news = hear(self._shards)
        if "failure" in news:
            raise CheckpointError(self.config.dir, news["failure"])
        name = news["name"]
        if name is None:
            return None
        manifest = self.leader().shelf.manifest(name)
        worker_of(self.worker).resume_at(steps_for(manifest, self.worker.num_workers)[self._rank])
        states = self.leader().states(manifest)
        is_same = len(states) == self.worker.num_workers
        return Resumed(
            name, states[self._rank] if is_same else None, states, list(news["notes"]), manifest
        )

    def _load(self, which: str) -> PsliteError | None:
        leader = self.leader()
        try:
            chain = leader.choose(which)
            if chain is None:
                leader.tell({"name": None})
                return None
            notes = leader.load(chain, steps_for(chain[-1], self.worker.num_workers))
            leader.tell({"name": chain[-1].name, "notes": notes})
            for note in notes:
                log.warning("%s", note)
        except (PsliteError, ValueError) as error:
            if not isinstance(error, PsliteError):
                error = CheckpointError(self.config.dir, str(error))
            leader.tell({"failure": str(getattr(error, "problem", error))})
            return error
        return None

    # -- saving -----------------------------------------------------------------------------------

    def save(self, state: State | None = None) -> str:
        """Take a step checkpoint now; all workers call this after the same step.

        Returns its name. Raises CheckpointWriteError, on all workers, if it was not saved.
        """
        news = self._meet(state or dict, is_done=False, must_save=True)
        if "failure" in news:
            raise CheckpointWriteError(
                self.config.dir, news["tried"], news["failure"], news["last_good"]
            )
        return str(news["name"])

    def at_step(self, state: State) -> None:
        """After each `worker.step()`: do what is due.

        A save that fails is said and counted in `tally`, and training goes on.
        """
        if self.config.kind == "fuzzy":
            self._drift(state)
        elif self.worker_steps >= self.next_meeting:
            self._meet(state, is_done=False)

    def close(self, state: State) -> None:
        """This worker has no step left: keep meeting the others until all have come here."""
        if self.config.kind == "fuzzy":
            if self._saving is not None:
                self._finish(self._saving)
            return
        while self.next_meeting < 1 << 62 and not self._meet(state, is_done=True)["all_done"]:
            pass

    def meets_after(self, steps: int) -> bool:
        """Whether the workers meet after `steps` more steps: nothing is asked for across that."""
        return self.config.kind == "step" and self.worker_steps + steps >= self.next_meeting

    @property
    def worker_steps(self) -> int:
        """Steps that the worker has completed."""
        return worker_of(self.worker).steps

    @property
    def next_meeting(self) -> int:
        """The step after which the workers meet."""
        if self._plan is None:
            config = self.config
            self._plan = Plan(config.every_steps, config.every, self.worker_steps, self._now())
            self._meeting = self._plan.meeting
        return self._meeting

    @property
    def _rank(self) -> int:
        return self.worker.rank

    def _meet(self, state: State, *, is_done: bool, must_save: bool = False) -> dict[str, Any]:
        """A barrier at which worker 0 decides; what it has told."""
        meeting = self.next_meeting
        self.worker.barrier("checkpoint: all are here")
        part = {"done": is_done, "steps": self.worker_steps, "state": pack_state(state())}
        parts = self.worker.gather(part)
        if parts is not None:
            self._lead(parts, meeting, must_save)
        self.worker.barrier("checkpoint: it is taken")
        news = hear(self._shards)
        self._meeting = int(news["meeting"])
        return news

    def _lead(self, parts: list[Any], meeting: int, must_save: bool) -> None:
        assert self._plan is not None
        all_done = all(part["done"] for part in parts)
        step = max(part["steps"] for part in parts)
        is_due = not all_done and self._plan.decide(max(step, meeting), self._now())
        news: dict[str, Any] = {"all_done": all_done, "name": None}
        if must_save or is_due:
            steps, states = [p["steps"] for p in parts], [p["state"] for p in parts]
            try:
                news["name"] = self._save(steps, states)
            except CheckpointWriteError as error:
                news |= {"failure": error.reason, "tried": error.name}
                news["last_good"] = error.last_good
        news["meeting"] = self._plan.meeting
        self.leader().tell(news)

    def _save(self, steps: list[int], states: list[bytes]) -> str:
        leader = self.leader()
        try:
            manifest = leader.finish(leader.begin("step"), steps, states, self._note)
        except CheckpointWriteError as error:
            self._failed(error)
            raise
        self.tally.saved.append(manifest.name)
        log.info("checkpoint %s of step %s saved", manifest.name, steps)
        return manifest.name

    def _failed(self, error: CheckpointWriteError) -> None:
        log.warning("%s", error)
        self.tally.failures.append(str(error))

    # -- fuzzy ------------------------------------------------------------------------------------

    def _drift(self, state: State) -> None:
        """Leave this worker's state from time to time; at worker 0 begin and end checkpoints."""
        now = self._now()
        due = now >= self._noted_at + self.config.every / NOTES
        by_steps = self.config.every_steps
        if by_steps:
            due = due or self.worker_steps % max(1, by_steps // NOTES) == 0
        if due:
            self._noted_at = now
            note = {"rank": self._rank, "state": pack_state(state())}
            self._shards.wait(self._shards.start(Command.NOTE, [note]))
        if self.is_leader:
            self._lead_fuzzy(now)

    def _lead_fuzzy(self, now: float) -> None:
        if self._saving is not None:
            if self.leader().is_written(self._saving):
                self._finish(self._saving)
            return
        by_steps = self.config.every_steps
        is_due = bool(by_steps) and self.worker_steps % by_steps == 0
        is_due |= self.config.every > 0 and now >= self._saved_at + self.config.every
        if is_due:
            self._saved_at = now
            try:
                self._saving = self.leader().begin("fuzzy")
            except CheckpointWriteError as error:
                self._failed(error)

    def _finish(self, saving: Saving) -> None:
        self._saving = None
        steps = [self.worker_steps] * self.worker.num_workers
        try:
            manifest = self.leader().finish(saving, steps, None, self._note)
        except CheckpointWriteError as error:
            self._failed(error)
            return
        self.tally.saved.append(manifest.name)


def worker_of(worker: Worker) -> LocalWorker | RemoteWorker:
    """`worker`, which has steps that can be read and set."""
    assert isinstance(worker, LocalWorker | RemoteWorker), f"{worker!r} is a worker of neither kind"
    return worker
