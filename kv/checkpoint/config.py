"""Settings of checkpoints, the ini section `[checkpoint]`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from van.errors import ConfigError
from van.quantities import Seconds

if TYPE_CHECKING:
    from kv.checkpoint.places import Place


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the job's state is saved, and where."""

    dir: str = ""  # folder or URL of checkpoints, the same for all nodes; empty: none are taken
    every: Seconds = 0.0  # seconds between two; 0: by steps alone
    every_steps: int = 0  # steps of a worker between two; 0: by time alone
    kind: Literal["step", "fuzzy"] = "step"  # at a barrier, or while training goes on
    keep: int = 3  # the last so many are kept, with what they go on from; 0: all
    full_every: int = 10  # of so many one has all rows, the others those that changed
    resume: str = "auto"  # go on from the last good one (auto), from none (no), or from this name

    def __post_init__(self) -> None:
        if self.kind not in ("step", "fuzzy"):
            self._refuse("kind", f"expected step or fuzzy, got {self.kind!r}")
        for key, least in (("every", 0), ("every_steps", 0), ("keep", 0), ("full_every", 1)):
            if not getattr(self, key) >= least:
                self._refuse(key, f"expected {least} or more, got {getattr(self, key)}")
        if not self.resume:
            self._refuse("resume", "expected auto, no, or the name of a checkpoint")

    def require_times(self) -> None:
        """Raise ConfigError unless it says when to save, for who saves by itself."""
        if self.dir and not (self.every or self.every_steps):
            self._refuse("every", "dir is set, so either every or every_steps must be above 0")

    def require_place(self) -> None:
        """Raise ConfigError unless checkpoints can be kept in `dir`, if it is set; see `places`.

        In a local folder the one that `resume` names must be there.
        """
        from kv.checkpoint.places import MANIFEST, LocalPlace, require_place

        if not self.dir:
            return
        with self._naming_dir():
            require_place(self.dir)
        if self.resume not in ("auto", "no"):
            place = self.place()
            if isinstance(place, LocalPlace) and not place.has(f"{self.resume}/{MANIFEST}"):
                known = ", ".join(place.names()[-3:]) or "nothing"
                self._refuse("resume", f"{self.dir} has no {self.resume}; it has {known}")

    def place(self) -> Place:
        """The place that `dir` names.

        Raises:
            ConfigError: it can name none.
        """
        from kv.checkpoint.places import place_of

        with self._naming_dir():
            return place_of(self.dir)

    @contextlib.contextmanager
    def _naming_dir(self) -> Iterator[None]:
        from kv.checkpoint.errors import CheckpointError

        try:
            yield
        except CheckpointError as error:
            raise ConfigError(
                f"{self.dir}: {error.problem}", section="checkpoint", key="dir"
            ) from error

    def _refuse(self, key: str, problem: str) -> None:
        raise ConfigError(problem, section="checkpoint", key=key)
