"""The checkpoints of a place: which there are, which are good, which may go.

A checkpoint is good if its manifest is, each of its files is as the manifest says, and so is the
checkpoint that it goes on from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from kv.checkpoint.errors import CheckpointError, DamagedCheckpointError, NoCheckpointError
from kv.checkpoint.manifest import FileEntry, Manifest
from kv.checkpoint.places import MANIFEST, Place, place_of
from kv.checkpoint.rowfile import new_digest

_NAME = re.compile(r"ckpt-(\d{6,})")
_READ = 1 << 20  # bytes at a time
Progress = Callable[[int], None]
"""Told how many bytes more have been read or written."""


def number_of(name: str) -> int | None:
    """The number in a checkpoint's name; None if it is no name of one."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


class Shelf:
    """What lies in a place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def url(self) -> str:
        return self.place.url

    def names(self) -> list[str]:
        """Of finished checkpoints, oldest first; whether they are good is another question."""
        found = [name for name in self._all() if self.place.has(f"{name}/{MANIFEST}")]
        return sorted(found, key=lambda name: number_of(name) or 0)

    def unfinished(self) -> list[str]:
        """Folders of checkpoints that have no manifest."""
        return [name for name in self._all() if not self.place.has(f"{name}/{MANIFEST}")]

    def _all(self) -> list[str]:
        return [name for name in self.place.names() if number_of(name) is not None]

    def claim(self, after: int = 0) -> tuple[str, int]:
        """A new checkpoint's name, now taken, and its number, which is larger than `after`."""
        number = max([after, *(number_of(name) or 0 for name in self._all())]) + 1
        while not self.place.claim(f"ckpt-{number:06d}"):
            number += 1
        return f"ckpt-{number:06d}", number

    def manifest(self, name: str) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            NoCheckpointError: there is no such checkpoint.
            DamagedCheckpointError: it cannot be used.
        """
        path = f"{name}/{MANIFEST}"
        if not self.place.has(path):
            known = ", ".join(self.names()[-5:]) or "none"
            raise NoCheckpointError(
                self.url, f"there is no checkpoint {name}; the last are {known}"
            )
        with self.place.open(path) as file:
            data = file.read()
        try:
            found = Manifest.from_bytes(data)
        except ValueError as error:
            raise DamagedCheckpointError(self.url, name, str(error)) from None
        if found.name != name:
            raise DamagedCheckpointError(self.url, name, f"it holds the manifest of {found.name}")
        return found

    def chain(self, name: str) -> list[Manifest]:
        """The checkpoints that `name` is made of, the full one first.

        Raises:
            DamagedCheckpointError: one of them is missing or cannot be used.
        """
        found = [self.manifest(name)]
        while found[0].base is not None:
            base = found[0].base
            if (number_of(base) or 0) >= found[0].number:
                problem = f"it goes on from {base}, which is later"
                raise DamagedCheckpointError(self.url, found[0].name, problem)
            try:
                found.insert(0, self.manifest(base))
            except NoCheckpointError:
                problem = f"{base}, from which {found[0].name} goes on, is missing"
                raise DamagedCheckpointError(self.url, name, problem) from None
        return found

    def check_files(
        self, name: str, files: Iterable[FileEntry], progress: Progress | None = None
    ) -> list[str]:
        """What is wrong with files of the checkpoint `name`, a line each."""
        problems = []
        for entry in files:
            try:
                problem = self._check_file(f"{name}/{entry.path}", entry, progress)
            except CheckpointError as error:
                problem = error.problem
            if problem:
                problems.append(problem)
        return problems

    def _check_file(self, path: str, entry: FileEntry, progress: Progress | None) -> str:
        if not self.place.has(path):
            return f"file {path} is missing"
        digest, nbytes = new_digest(), 0
        with self.place.open(path) as file:
            while data := file.read(_READ):
                digest.update(data)
                nbytes += len(data)
                if progress is not None:
                    progress(len(data))
        if nbytes != entry.nbytes:
            return f"file {path} has {nbytes} bytes, not {entry.nbytes}"
        if digest.hexdigest() != entry.digest:
            return f"file {path} was altered: its checksum is another"
        return ""

    def verify(self, name: str, progress: Progress | None = None) -> list[Manifest]:
        """The chain of a checkpoint, if all of it is good.

        Raises:
            NoCheckpointError, DamagedCheckpointError: it is not.
        """
        chain = self.chain(name)
        for manifest in chain:
            problems = self.check_files(manifest.name, manifest.files(), progress)
            if problems:
                raise DamagedCheckpointError(self.url, manifest.name, "; ".join(problems))
        return chain

    def last_good(self) -> str | None:
        """The name of the last checkpoint whose manifests are good; None if there is none.

        Files are looked at for being there, not read.
        """
        for name in reversed(self.names()):
            try:
                chain = self.chain(name)
            except CheckpointError:
                continue
            paths = [f"{part.name}/{file.path}" for part in chain for file in part.files()]
            if all(map(self.place.has, paths)):
                return name
        return None

    def prune(self, keep: int, also: Iterable[str] = ()) -> list[str]:
        """Remove all but the last `keep` checkpoints and what they go on from; the names removed.

        Unfinished ones from before the last go, too.
        """
        names = self.names()
        wanted = {*also, *names[-keep:]} if keep else set(names)
        needed = set()
        for name in wanted:
            try:
                needed |= {part.name for part in self.chain(name)}
            except CheckpointError:
                needed.add(name)
        # The last first: what is left at any moment is whole, as are those that go on from it.
        gone = [name for name in reversed(names) if name not in needed]
        last = number_of(names[-1]) or 0 if names else 0
        gone += [name for name in self.unfinished() if (number_of(name) or 0) < last]
        for name in gone:
            self.place.remove(name)
        return gone


def last_good(url: str) -> str | None:
    """The name of the last checkpoint under `url` that can be used; None if there is none.

    Raises:
        CheckpointError: the place cannot be reached.
    """
    return Shelf(place_of(url)).last_good()
