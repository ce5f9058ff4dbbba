"""A disk that comes to its end at any thing that is done to it, and what may then lie on it.

`Disk` stands between a process and a folder: it counts what makes, fills, syncs, renames and
removes files. At the n-th of these the process is killed, or the disk is full from there on. After
a kill the folder is as it was left. After a power cut, which `after_power_cut` makes, that alone is
certain which was synced: bytes by `fsync` of their file, names by `fsync` of their folder. Of all
the rest a seed decides what had come to the disk.
"""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

Entry = int | None
"""An inode of a file; None: a folder."""


class KilledError(BaseException):
    """The process is no more: nothing of ours catches this."""


class _File(io.FileIO):
    """A file that is written, below its buffer."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk, self._inode = disk, os.fstat(self.fileno()).st_ino

    def write(self, data: Any) -> int:
        if self._disk.is_dead:
            return len(data)  # what a buffer holds goes with the process
        half = len(data) // 2
        try:
            self._disk.step()
        except BaseException:
            self._put(data[:half])
            raise
        self._put(data)
        return len(data)

    def _put(self, data: Any) -> None:
        super().write(data)
        self._disk.contents[self._inode] += bytes(data)


class Disk:
    """What happens below `folder`.

    Args:
        folder: all that is there by now is certain.
        moment: how many things are done before the end.
        end: `killed`, or `full`: nothing more is made or written, but removed.

    Attributes:
        is_dead: whether the end has come.
        contents: bytes of files by inode, synced or not.
    """

    def __init__(self, folder: Path, moment: int, end: Literal["killed", "full"]) -> None:
        self.folder, self._left, self._end = folder, moment, end
        self.is_over = False
        self.contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, Entry]] = {}
        for place, folders, files in os.walk(folder):
            inodes = {name: os.stat(os.path.join(place, name)).st_ino for name in files}
            self._names[place] = dict.fromkeys(folders) | inodes
            for name, inode in inodes.items():
                self.contents[inode] = Path(place, name).read_bytes()
        self._synced = dict(self.contents)
        self._synced_names = {place: dict(names) for place, names in self._names.items()}

    @property
    def is_dead(self) -> bool:
        return self.is_over and self._end == "killed"

    def step(self, *, frees: bool = False) -> None:
        """Something is done to the disk; with `frees` a full one does not mind."""
        self._left -= 1
        self.is_over |= self._left < 0
        if self.is_dead:
            raise KilledError
        if self.is_over and not frees:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stand_between(self, patch: pytest.MonkeyPatch) -> None:
        """From now on all goes through here."""
        for name in ("mkdir", "replace", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, self._watched(name))
        real = io.open

        def open_file(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if set(mode).isdisjoint("wx") or not self._is_here(str(file)):
                return real(file, mode, *rest, **options)
            self.step()
            opened = _File(self, str(file), mode.replace("b", ""))
            inode = os.fstat(opened.fileno()).st_ino
            self.contents[inode] = b""
            self._synced.pop(inode, None)
            self._put(str(file), inode)
            return io.BufferedWriter(opened)

        patch.setattr(io, "open", open_file)

    def _is_here(self, path: str) -> bool:
        return path == str(self.folder) or path.startswith(f"{self.folder}/")

    def _watched(self, name: str) -> Callable[..., None]:
        real, note = getattr(os, name), getattr(self, f"_{name}")

        def call(target: Any, *rest: Any, **options: Any) -> None:
            path = f"/proc/self/fd/{target}" if isinstance(target, int) else os.fspath(target)
            if isinstance(target, int):
                path = os.readlink(path)
            elif options.get("dir_fd") is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{options['dir_fd']}"), path)
            if not self._is_here(path):
                real(target, *rest, **options)
                return
            self.step(frees=name in ("unlink", "rmdir") or os.path.isdir(path))
            real(target, *rest, **options)
            note(path, *rest)

        return call

    # -- what is done ---------------------------------------------------------------------------

    def _put(self, path: str, entry: Entry) -> None:
        place, _, name = path.rpartition("/")
        self._names.setdefault(place, {})[name] = entry

    def _take(self, path: str) -> Entry:
        place, _, name = path.rpartition("/")
        return self._names[place].pop(name)

    def _mkdir(self, path: str, *_: object) -> None:
        self._names[path] = {}
        self._put(path, None)

    def _replace(self, path: str, target: object, *_: object) -> None:
        self._put(str(target), self._take(path))

    def _unlink(self, path: str, *_: object) -> None:
        self._take(path)

    def _rmdir(self, path: str, *_: object) -> None:
        self._take(path)

    def _fsync(self, path: str) -> None:
        if os.path.isdir(path):
            self._synced_names[path] = dict(self._names[path])
        else:
            inode = os.stat(path).st_ino
            self._synced[inode] = self.contents[inode]

    # -- what is left ---------------------------------------------------------------------------

    def after_power_cut(self, target: Path, seed: int) -> None:
        """Make `target` what may lie in the folder after a power cut."""
        self._restore(str(self.folder), target, random.Random(seed))

    def _restore(self, place: str, target: Path, chance: random.Random) -> None:
        target.mkdir()
        certain, now = self._synced_names.get(place, {}), self._names.get(place, {})
        for name in sorted(certain.keys() | now.keys()):
            both = [names[name] for names in (certain, now) if name in names]
            if len(both) == 1 and chance.random() < 0.5:  # was it there, or is it?
                continue
            entry = chance.choice(both)
            if entry is None:
                self._restore(f"{place}/{name}", target / name, chance)
            else:
                (target / name).write_bytes(self._bytes_of(entry, chance))

    def _bytes_of(self, inode: int, chance: random.Random) -> bytes:
        data = self.contents[inode]
        if self._synced.get(inode) == data:
            return data
        return data[: chance.choice((0, len(data) // 2, len(data)))]
