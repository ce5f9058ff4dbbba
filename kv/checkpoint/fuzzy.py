"""Fuzzy checkpoints as who leads takes them: begun, written while others go on, then made one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.errors import CheckpointWriteError
from kv.checkpoint.leading import Leader, Saving
from kv.checkpoint.outcome import Tally
from kv.leases.reading import Ranges

Standing = Callable[[], tuple[list[bytes], dict[str, Ranges]]]
"""The workers' own states that there are, by rank, and how far data sets have been read."""


@dataclass(frozen=True)
class Underway:
    """A checkpoint that servers are at work on, and what was known when it began."""

    saving: Saving
    states: list[bytes]
    reading: dict[str, Ranges]


class FuzzySaves:
    """One at a time.

    Args:
        config: when they are due.
        leader: who leads, made when it is needed.
        tally: what becomes of them.
        note: of the application.
        now: the time in seconds.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        leader: Callable[[], Leader],
        tally: Tally,
        note: Mapping[str, Any],
        now: float,
    ) -> None:
        self._config, self._leader, self._tally, self._note = config, leader, tally, note
        self._saved_at = now
        self._underway: Underway | None = None

    def turn(self, steps: int, workers: int, now: float, standing: Standing) -> None:
        """After a step of who leads: begin one that is due, or end the one under way.

        Args:
            steps: that it has completed.
            workers: how many there are.
            now: the time in seconds.
            standing: looks at the workers, if one begins.
        """
        if self._underway is not None:
            if self._leader().is_written(self._underway.saving):
                self.finish(steps, workers)
            return
        by_steps, every = self._config.every_steps, self._config.every
        is_due = bool(by_steps) and steps % by_steps == 0
        if not is_due and not (every > 0 and now >= self._saved_at + every):
            return
        self._saved_at = now
        states, reading = standing()  # what workers have said up to here is in all rows read later
        try:
            self._underway = Underway(self._leader().begin("fuzzy"), states, reading)
        except CheckpointWriteError as error:
            self._tally.failure(error)

    def finish(self, steps: int, workers: int) -> None:
        """Wait for the one under way, if there is one, and make it a checkpoint."""
        underway, self._underway = self._underway, None
        if underway is None:
            return
        # Where some have not left word yet, the others' would be taken for the wrong ranks'.
        states = underway.states if len(underway.states) == workers else []
        try:
            manifest = self._leader().finish(
                underway.saving, [steps] * workers, states, self._note, underway.reading
            )
        except CheckpointWriteError as error:
            self._tally.failure(error)
        else:
            self._tally.success(manifest, self._config.dir)
