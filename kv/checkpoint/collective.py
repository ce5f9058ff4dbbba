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

A meeting is two barriers with a leader's work between them, and is known by nothing else: a worker
that was started again falls in with the others at the next one, whatever steps it has taken. How
far data that workers share (`worker.shards`) has been read is in a checkpoint by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.errors import CheckpointError, CheckpointWriteError
from kv.checkpoint.fuzzy import FuzzySaves
from kv.checkpoint.leading import Leader, Note, hear, leave_note, notes_left, steps_for
from kv.checkpoint.outcome import Resumed as Resumed
from kv.checkpoint.outcome import Tally
from kv.checkpoint.places import place_of
from kv.checkpoint.plan import NEVER, Plan
from kv.checkpoint.shards import Shards, shards_of
from kv.checkpoint.shelf import Shelf
from kv.checkpoint.state import pack_state
from kv.leases.reading import Ranges
from kv.local_worker import LocalWorker
from kv.protocols import Worker
from kv.remote_worker import RemoteWorker
from van.errors import PsliteError

log = logging.getLogger(__name__)

State = Callable[[], Mapping[str, Any]]
"""A worker's own state as it is now: readers' positions, random states, counts."""

HERE, TAKEN = "checkpoint: all are here", "checkpoint: it is taken"
_UNLED = "the worker that led has died meanwhile"
NOTES = 4  # a worker leaves its state so many times between two fuzzy checkpoints


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

    Raises:
        CheckpointError: the URL can be no place for them.

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
        self._shelf = Shelf(place_of(url))
        self._leader: Leader | None = None
        self._has_tried = not (every or every_steps)  # who never saves by itself may only load
        self._plan: Plan | None = None
        self._meeting = self._held = 0  # the step of the next one; how many there were
        self._resumed: str | None = None
        self._noted_at = now()
        self.tally = Tally()
        self._fuzzy = FuzzySaves(config, self.leader, self.tally, self._note, now())

    @classmethod
    def of(
        cls, worker: Worker, config: CheckpointConfig, note: Mapping[str, Any] | None = None
    ) -> Checkpoints:
        """Those that the ini section `[checkpoint]` asks for; its `dir` is not empty.

        Raises:
            ConfigError: it does not say when, or its `dir` can be no place for them.
        """
        config.require_times()
        config.place()
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
        return worker_of(self.worker).is_first

    def leader(self) -> Leader:
        """What worker 0 leads with."""
        if self._leader is None:
            self._leader = Leader(
                self._shards,
                self._shelf,
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
        if "name" not in news:
            news = {"failure": _UNLED}
        if "failure" in news:
            raise CheckpointError(self.config.dir, news["failure"])
        name = self._resumed = news["name"]
        if name is None:
            return None
        manifest = self.leader().shelf.manifest(name)
        steps = steps_for(manifest, self.worker.num_workers)[self._rank]
        worker_of(self.worker).resume_at(steps, manifest.clocks.items())
        states = self.leader().states(manifest)
        is_same = len(states) == self.worker.num_workers
        return Resumed(
            name, states[self._rank] if is_same else None, states, list(news["notes"]), manifest
        )

    def _load(self, which: str) -> PsliteError | None:
        leader = self.leader()
        try:
            self._try_place()
            chain = leader.choose(which)
            if chain is None:
                leader.tell({"name": None})
                return None
            notes = leader.load(chain, steps_for(chain[-1], self.worker.num_workers))
            worker_of(self.worker).leases.resume(chain[-1].reading)
            leader.tell({"name": chain[-1].name, "notes": notes})
            for note in notes:
                log.warning("%s", note)
        except (PsliteError, ValueError) as error:
            if not isinstance(error, PsliteError):
                error = CheckpointError(self.config.dir, str(error))
            leader.tell({"failure": str(getattr(error, "problem", error))})
            return error
        return None

    def _try_place(self) -> None:
        """Before the first save of a job see, at worker 0, that it can succeed."""
        if not self._has_tried and self.is_leader:
            self.leader().try_place()
        self._has_tried = True

    def join(self, state: State) -> str | None:
        """Fall in with the others, after a start amid the job, instead of `resume`.

        Returns the checkpoint that the job goes on from, if there is one.
        """
        self._has_tried = True  # in the midst of a job a save may fail
        worker = worker_of(self.worker)
        news = hear(self._shards)
        if self.config.kind == "step":
            # Of a barrier that was passed before, one is let through at once; else one takes part.
            self._held = int(news.get("held", 0))
            self._leave_note(state, is_busy=False)
            worker.barrier(HERE)
            while worker.passed(TAKEN) < worker.passed(HERE):
                worker.barrier(TAKEN)
            news = hear(self._shards)
            worker.resume_at(int(news.get("step", 0)))
            self._note_news(news)
        self._resumed = news.get("name" if "held" not in news else "resumed")
        return self._resumed

    # -- saving -----------------------------------------------------------------------------------

    def save(self, state: State | None = None) -> str:
        """Take a step checkpoint now; all workers call this after the same step.

        Returns its name. Raises CheckpointWriteError, on all workers, if it was not saved.
        """
        news = self._meet(state or dict, must_save=True)
        if "failure" in news:
            raise CheckpointWriteError(
                self.config.dir, news["tried"], news["failure"], news["last_good"]
            )
        return str(news["name"])

    def at_step(self, state: State) -> None:
        """After each `worker.step()`: do what is due.

        A save that fails is said and counted in `tally`, and training goes on.

        Raises:
            CheckpointError: at the first step of worker 0: no save can succeed.
        """
        self._try_place()
        if self.config.kind == "fuzzy":
            self._drift(state)
        elif self.worker_steps >= self.next_meeting:
            self._meet(state)

    def close(self, state: State) -> None:
        """This worker has no step left: keep meeting the others until all have come here."""
        if self.config.kind == "fuzzy":
            self._fuzzy.finish(self.worker_steps, self.worker.num_workers)
        else:
            while self.next_meeting < NEVER:
                if self._meet(state, is_busy=False, is_done=True).get("all_done"):
                    break
        self.tally.end()

    def idle(self, state: State) -> bool:
        """This worker has no step to take until others have: meet them, if they meet at all.

        Returns whether they have met.
        """
        if self.config.kind == "fuzzy":
            self._drift(state)
            return False
        if self.next_meeting >= NEVER:
            return False
        self._meet(state, is_busy=False)
        return True

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

    def _meet(
        self, state: State, *, is_busy: bool = True, is_done: bool = False, must_save: bool = False
    ) -> dict[str, Any]:
        """Two barriers, between which the leader decides; what it has told."""
        meeting = self.next_meeting
        self._leave_note(state, is_busy=is_busy, is_done=is_done)
        self.worker.barrier(HERE)
        if self.is_leader:
            self._lead(meeting, must_save)
        self.worker.barrier(TAKEN)
        news = hear(self._shards)
        if news.get("held") != self._held + 1:  # of a meeting before: it may be held again
            last = self._shelf.last_good()
            return {"failure": _UNLED, "tried": "a checkpoint", "last_good": last}
        self._note_news(news)
        return news

    def _leave_note(self, state: State, *, is_busy: bool = True, is_done: bool = False) -> None:
        about = {"held": self._held, "steps": self.worker_steps, "busy": is_busy, "done": is_done}
        leave_note(self._shards, self._rank, Note(about, pack_state(state())))
        worker_of(self.worker).leases.settle()

    def _note_news(self, news: Mapping[str, Any]) -> None:
        if self.next_meeting < NEVER:  # it also makes the plan
            self._meeting = int(news.get("meeting", self._meeting))
        self._held = int(news.get("held", self._held))

    def _lead(self, meeting: int, must_save: bool) -> None:
        """Decide on a meeting, and tell the others; of the dead there are notes of earlier ones."""
        assert self._plan is not None
        notes = notes_left(self._shards)
        come = {rank: n.about for rank, n in notes.items() if n.about["held"] == self._held}
        all_done = all(
            rank in come and come[rank]["done"] for rank in worker_of(self.worker).ranks_here()
        )
        step = max([meeting, *(about["steps"] for about in come.values())])
        is_due = any(about["busy"] for about in come.values()) and self._plan.decide(
            step, self._now()
        )
        news: dict[str, Any] = {"all_done": all_done, "name": None, "resumed": self._resumed}
        if must_save or is_due:
            try:
                news["name"] = self._save(notes)
            except CheckpointWriteError as error:
                news |= {"failure": error.reason, "tried": error.name}
                news["last_good"] = error.last_good
        news |= {"meeting": self._plan.meeting, "held": self._held + 1, "step": step}
        self.leader().tell(news)

    def _save(self, notes: Mapping[int, Note]) -> str:
        leader, reading = self.leader(), worker_of(self.worker).leases.look().read
        steps, states = self._by_rank(notes)
        try:
            saving = leader.begin("step")
            manifest = leader.finish(saving, steps, states, self._note, reading)
        except CheckpointWriteError as error:
            self.tally.failure(error)
            raise
        self.tally.success(manifest, self.config.dir)
        return manifest.name

    def _by_rank(self, notes: Mapping[int, Note]) -> tuple[list[int], list[bytes]]:
        """Steps of all workers, the gone as far as any, and the states that there are."""
        furthest = max((note.about["steps"] for note in notes.values()), default=self.worker_steps)
        ranks = range(self.worker.num_workers)
        steps = [notes[rank].about["steps"] if rank in notes else furthest for rank in ranks]
        return steps, [notes[rank].state for rank in ranks if rank in notes]

    # -- fuzzy ------------------------------------------------------------------------------------

    def _drift(self, state: State) -> None:
        """Leave this worker's state from time to time; who leads begins and ends checkpoints."""
        now, by_steps = self._now(), self.config.every_steps
        due = now >= self._noted_at + self.config.every / NOTES
        if due or (by_steps and self.worker_steps % max(1, by_steps // NOTES) == 0):
            self._noted_at = now
            self._leave_note(state)
        if self.is_leader:
            self._fuzzy.turn(self.worker_steps, self.worker.num_workers, now, self._standing)

    def _standing(self) -> tuple[list[bytes], dict[str, Ranges]]:
        reading = worker_of(self.worker).leases.look().read
        return self._by_rank(notes_left(self._shards))[1], reading


def worker_of(worker: Worker) -> LocalWorker | RemoteWorker:
    """`worker`, which has steps that can be read and set."""
    assert isinstance(worker, LocalWorker | RemoteWorker), f"{worker!r} is a worker of neither kind"
    return worker
