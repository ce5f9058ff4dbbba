"""Who leads a checkpoint: one worker names it, asks the servers, writes the manifest last.

Between the first byte and the manifest anything may fail: the new folder is then no checkpoint,
and those before are as they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kv.checkpoint.complaint import Complaint
from kv.checkpoint.desk import SIGN, Command
from kv.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointWriteError,
    DamagedCheckpointError,
    NoCheckpointError,
)
from kv.checkpoint.manifest import FileEntry, Manifest, ServerShard
from kv.checkpoint.owner import Owner
from kv.checkpoint.places import MANIFEST
from kv.checkpoint.rowfile import new_digest
from kv.checkpoint.shards import Answer, Shards
from kv.checkpoint.shelf import Shelf
from kv.checkpoint.state import unpack_state
from kv.errors import KVError
from kv.leases.reading import Ranges
from postoffice.errors import ClusterStoppedError, DeadNodeError
from van.errors import PsliteError

log = logging.getLogger(__name__)

_KEEPERS = 2  # servers that keep what workers leave for each other
_TRIES = 2  # more, when one of them has died


@dataclass(frozen=True)
class Saving:
    """A checkpoint that the servers are at work on."""

    name: str
    number: int
    base: str | None
    mode: str
    request: int
    started: float


class Leader:
    """Saves and loads checkpoints of one job.

    Args:
        keep: checkpoints to keep; 0 keeps all.
        full_every: of so many checkpoints one has all rows, the others what changed; 1: all do.
        now: the time in seconds since 1970.
    """

    def __init__(
        self,
        shards: Shards,
        shelf: Shelf,
        *,
        keep: int = 3,
        full_every: int = 1,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._shards, self.shelf = shards, shelf
        self._keep, self._full_every, self._now = keep, full_every, now
        self._chain: list[str] = []  # those of this life that the next may go on from
        self._last = 0  # number of the last that was begun
        self._owner = Owner(shelf.place)
        self._leavings = Complaint(log)

    def try_place(self) -> None:
        """See that this worker and all servers can write to the place, and that it is the same one.

        Raises:
            CheckpointError: it is not so.
        """
        place, folder = self.shelf.place, f"trial-{secrets.token_hex(8)}"
        place.claim(folder)
        try:
            self._owner.take()
            with place.create(f"{folder}/{SIGN}") as file:
                file.write(folder.encode())
            body = {"url": self.shelf.url, "folder": folder}
            request = self._shards.start(Command.TRY, [body] * self._shards.count)
            _raise_failure(self._shards.wait(request))
        except ValueError as error:
            raise CheckpointError(self.shelf.url, f"nothing can be kept there: {error}") from None
        finally:
            with contextlib.suppress(CheckpointError):
                place.remove(folder)

    # -- saving -----------------------------------------------------------------------------------

    def begin(self, mode: str) -> Saving:
        """Have the servers write; `mode` is `step`, when nobody pushes, or `fuzzy`.

        Raises:
            CheckpointWriteError: the place takes no new checkpoint.
        """
        name = "a checkpoint"
        try:
            self._owner.take()
            name, self._last = self.shelf.claim(self._last)
            base = self._base()
            body = {"url": self.shelf.url, "name": name, "base": base, "is_still": mode == "step"}
            request = self._shards.start(Command.SAVE, [body] * self._shards.count)
        except PsliteError as error:
            raise self._write_error(name, error) from error
        return Saving(name, self._last, base, mode, request, self._now())

    def _base(self) -> str | None:
        """What the next goes on from; None if it is to be full, or somebody has removed a part."""
        is_due = 0 < len(self._chain) < self._full_every
        if is_due and all(self.shelf.place.has(f"{name}/{MANIFEST}") for name in self._chain):
            return self._chain[-1]
        return None

    def is_written(self, saving: Saving) -> bool:
        """Whether `finish` would not wait."""
        return self._shards.is_done(saving.request)

    def finish(
        self,
        saving: Saving,
        steps: Sequence[int],
        states: Sequence[bytes],
        note: Mapping[str, Any] | None = None,
        reading: Mapping[str, Ranges] | None = None,
    ) -> Manifest:
        """Wait for the servers and make it a checkpoint.

        Args:
            steps: completed by each worker, by rank.
            states: the workers' own, packed, by rank, as they were when it began.
            reading: how far data sets had been read then.
        Raises:
            CheckpointWriteError: it was not saved; those before are as they were.
        """
        try:
            answers = self._shards.wait(saving.request)
            _raise_failure(answers)
            manifest = self._manifest(saving, answers, steps, states, note or {}, reading or {})
            if problem := manifest.problem():
                raise ValueError(f"servers have come, gone or taken slots meanwhile ({problem})")
            self.shelf.place.publish(f"{saving.name}/{MANIFEST}", manifest.to_bytes())
        except (PsliteError, ValueError) as error:
            self._give_up(saving)
            raise self._write_error(saving.name, error) from error
        self._chain = [*(self._chain if manifest.base else []), manifest.name]
        self._prune()
        return manifest

    def _manifest(
        self,
        saving: Saving,
        answers: Sequence[Answer],
        steps: Sequence[int],
        states: Sequence[bytes],
        note: Mapping[str, Any],
        reading: Mapping[str, Ranges],
    ) -> Manifest:
        shards = [ServerShard.from_dict(answer["shard"]) for answer in answers]
        is_full = all(shard.is_full for shard in shards)
        created = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
        return Manifest(
            name=saving.name,
            number=saving.number,
            kind="full" if is_full else "incremental",
            base=None if is_full else saving.base,
            mode=saving.mode,
            created=created.isoformat(timespec="seconds"),
            steps=list(steps),
            specs=answers[0]["specs"],
            servers=shards,
            workers=[
                self._write_state(saving.name, rank, state) for rank, state in enumerate(states)
            ],
            note=dict(note),
            reading=dict(reading),
            seconds=round(self._now() - saving.started, 3),
        )

    def _write_state(self, name: str, rank: int, state: bytes) -> FileEntry:
        path = f"worker-{rank}.state"
        with self.shelf.place.create(f"{name}/{path}") as file:
            file.write(state)
        digest = new_digest()
        digest.update(state)
        return FileEntry(path, len(state), digest.hexdigest())

    def _give_up(self, saving: Saving) -> None:
        try:
            self.shelf.place.remove(saving.name)
        except CheckpointError as error:
            self._leavings.failed(f"what is left of {saving.name} stays: {error}")

    def _write_error(self, name: str, error: PsliteError | ValueError) -> CheckpointWriteError:
        """What becomes of `error`, which may be that a server is dead; raises it if all is over."""
        if isinstance(error, ClusterStoppedError):
            raise error
        problem = error.problem if isinstance(error, CheckpointError) else str(error)
        try:
            last = self.shelf.last_good()
        except CheckpointError:
            last = None  # nobody can look
        return CheckpointWriteError(self.shelf.url, name, problem, last)

    def _prune(self) -> None:
        try:
            self.shelf.prune(self._keep)
        except CheckpointError as error:
            self._leavings.failed(f"old checkpoints stay: {error}")
        else:
            self._leavings.worked(f"checkpoints {self.shelf.url}: what is not kept was removed")

    # -- loading ----------------------------------------------------------------------------------

    def choose(self, which: str = "auto") -> list[Manifest] | None:
        """A checkpoint's chain, all of its files checked by the servers.

        Args:
            which: a name, or `auto`: the last that is good, None if there is none at all.
        Raises:
            NoCheckpointError: no checkpoint of that name, or none of several is good.
            DamagedCheckpointError: the one named is not.
        """
        if which != "auto":
            return self._checked(which)
        names = self.shelf.names()
        for name in reversed(names):
            try:
                return self._checked(name)
            except DamagedCheckpointError as error:
                log.warning("%s; trying the one before", error)
        if names:
            raise NoCheckpointError(
                self.shelf.url, f"none of the checkpoints {', '.join(names)} is good"
            )
        return None

    def _checked(self, name: str) -> list[Manifest]:
        chain = self.shelf.chain(name)
        for manifest in chain:
            count, files = self._shards.count, manifest.files()
            request = self._shards.start(
                Command.CHECK,
                [
                    {
                        "url": self.shelf.url,
                        "name": manifest.name,
                        "files": [dataclasses.asdict(file) for file in files[rank::count]],
                    }
                    for rank in range(count)
                ],
            )
            answers = self._shards.wait(request)
            _raise_failure(answers)
            problems = [problem for answer in answers for problem in answer["problems"]]
            if problems:
                raise DamagedCheckpointError(self.shelf.url, manifest.name, "; ".join(problems))
        return chain

    def load(self, chain: Sequence[Manifest], steps: Sequence[int]) -> list[str]:
        """Have the servers load a chain; what is to be said about it.

        Raises:
            CheckpointMismatchError: the tables are others; nothing was changed.
            CheckpointError: a server could not load its rows.
        """
        names = [manifest.name for manifest in chain]
        body = {"url": self.shelf.url, "names": names, "steps": list(steps)}
        request = self._shards.start(Command.LOAD, [body] * self._shards.count)
        answers = self._shards.wait(request)
        for answer in answers:
            if answer.get("kind") == CheckpointMismatchError.__name__:
                problems = answer["error"].removeprefix(f"{names[-1]} does not fit this job: ")
                raise CheckpointMismatchError(self.shelf.url, names[-1], problems.split("; "))
        _raise_failure(answers)
        notes = dict.fromkeys(note for answer in answers for note in answer["notes"])
        return list(notes)

    def states(self, manifest: Manifest) -> list[Any]:
        """The workers' own states, by rank.

        Raises:
            DamagedCheckpointError: one cannot be read.
        """
        found = []
        for entry in manifest.workers:
            with self.shelf.place.open(f"{manifest.name}/{entry.path}") as file:
                data = file.read()
            try:
                found.append(unpack_state(data))
            except ValueError as error:
                problem = f"file {entry.path}: {error}"
                raise DamagedCheckpointError(self.shelf.url, manifest.name, problem) from error
        return found

    def tell(self, news: Mapping[str, Any]) -> None:
        """Leave word for the other workers."""
        _ask_keepers(self._shards, Command.TELL, news)


@dataclass(frozen=True)
class Note:
    """What a worker has left for who leads.

    Attributes:
        about: `held`: checkpoint meetings that it knows of; `steps`: completed by it; `busy`:
            whether it has steps to take now; `done`: whether it never has again.
        state: its own, packed.
    """

    about: dict[str, Any]
    state: bytes


def leave_note(shards: Shards, rank: int, note: Note) -> None:
    """Leave a note of the worker of that rank, in place of its last one."""
    body = {"rank": rank, "about": note.about, "state": note.state}
    _ask_keepers(shards, Command.NOTE, body)


def notes_left(shards: Shards) -> dict[int, Note]:
    """The last note of each worker, by rank."""
    found: dict[int, Note] = {}
    for answer in reversed(_ask_keepers(shards, Command.NOTES, {})):
        for rank, about, state in answer["notes"]:
            found[int(rank)] = Note(dict(about), bytes(state))
    return found


def hear(shards: Shards) -> Answer:
    """What the leader told last; nothing if it has told nothing yet."""
    return next((news for news in _ask_keepers(shards, Command.HEAR, {}) if news), {})


def _ask_keepers(shards: Shards, command: Command, body: Mapping[str, Any]) -> list[Answer]:
    """Ask the servers that keep notes and news, the first ones that live.

    There are two where there can be, so that one may die: who comes in its place, or was not among
    them before, knows nothing, and the answer of the other counts. The first knows what is newest.
    """
    for _ in range(_TRIES):
        try:
            return shards.wait(shards.start(command, [body] * min(_KEEPERS, shards.count)))
        except (DeadNodeError, KVError) as error:
            log.info("asked again: %s", error)
    return shards.wait(shards.start(command, [body] * min(_KEEPERS, shards.count)))


def steps_for(manifest: Manifest, num_workers: int) -> list[int]:
    """Steps that the workers of a job go on from: their own if there are as many as there were."""
    if len(manifest.steps) == num_workers and manifest.mode == "step":
        return manifest.steps
    known = [steps for shard in manifest.servers for steps in shard.completed]
    return [max([*manifest.steps, *known], default=0)] * num_workers


def _raise_failure(answers: Sequence[Answer]) -> None:
    failed = [
        f"server {rank}: {answer['error']}"
        for rank, answer in enumerate(answers)
        if "error" in answer
    ]
    if failed:
        raise ValueError("; ".join(failed))
