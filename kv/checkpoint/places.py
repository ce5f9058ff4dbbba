"""Where checkpoints lie: a local folder, or any URL that fsspec knows.

    URL/NAME/manifest.json    written last and at once: without it NAME is not there
    URL/NAME/...              its files
    URL/owner.json            which job saves there, see `owner`

A file counts as written when its bytes are on the disk, not in a cache; a manifest appears whole or
not at all. Names are never used again, so that a save can harm nothing that is good.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kv.checkpoint.errors import CheckpointError

MANIFEST = "manifest.json"
_HALF_URL = re.compile(r"([a-z][a-z0-9+.-]+):/")  # a slash is missing


class Place(ABC):
    """A folder of checkpoints. Paths are relative to it, with `/`.

    Attributes:
        url: as the user named it.
    """

    url: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is such a folder; in an object store, whether anything is in it."""

    @abstractmethod
    def names(self) -> list[str]:
        """All folders here, finished checkpoints or not, sorted."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Whether there is a file of that path."""

    @abstractmethod
    def make(self) -> None:
        """Make this folder, if it is not there; no bucket is made."""

    @abstractmethod
    def claim(self, name: str) -> bool:
        """Make a folder for a new checkpoint; False if there is one."""

    @abstractmethod
    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file to be read."""

    @abstractmethod
    def create(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A new file; what was written lasts when the context ends without an error."""

    @abstractmethod
    def publish(self, path: str, data: bytes) -> None:
        """A file that is there whole and lasting, or not at all."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a checkpoint, its manifest first."""

    @contextlib.contextmanager
    def reaching(self, path: str, verb: str) -> Iterator[None]:
        """Turn what the system says into a CheckpointError that names the file."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise CheckpointError(self.url, f"{path} cannot be {verb}: {reason}") from error


class LocalPlace(Place):
    """A folder of this machine, or one that all nodes of a job have mounted."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def exists(self) -> bool:
        with self.reaching(".", "looked for"):
            return self.folder.is_dir()

    def names(self) -> list[str]:
        with self.reaching(".", "listed"):
            if not self.folder.exists():
                return []
            return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def has(self, path: str) -> bool:
        with self.reaching(path, "looked for"):
            return (self.folder / path).is_file()

    def make(self) -> None:
        with self.reaching(".", "made"):
            _make_folder(self.folder)

    def claim(self, name: str) -> bool:
        self.make()
        with self.reaching(name, "made"):
            try:
                (self.folder / name).mkdir()
            except FileExistsError:
                return False
            _sync_folder(self.folder)
            return True

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        with self.reaching(path, "read"), (self.folder / path).open("rb") as file:
            yield file

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        target = self.folder / path
        with self.reaching(path, "written"):
            with target.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(target.parent)

    def publish(self, path: str, data: bytes) -> None:
        target = self.folder / path
        aside = target.with_name(f".{target.name}.new")
        with self.reaching(path, "written"):
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
            _sync_folder(target.parent)

    def remove(self, name: str) -> None:
        folder = self.folder / name
        with self.reaching(name, "removed"):
            (folder / MANIFEST).unlink(missing_ok=True)
            _sync_folder(folder)
            shutil.rmtree(folder)


class RemotePlace(Place):
    """A folder behind a URL such as s3://bucket/job, by way of fsspec.

    In an object store an object appears whole or not at all, which is what `publish` needs.

    Raises:
        CheckpointError: fsspec knows no such URL, or it, or what it needs, is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        require_packages(url)
        from fsspec.core import url_to_fs

        with self.reaching(".", "reached"):
            self._fs, self._root = url_to_fs(url, use_listings_cache=False)

    def exists(self) -> bool:
        with self.reaching(".", "looked for"):
            return bool(self._fs.exists(self._root))

    @contextlib.contextmanager
    def reaching(self, path: str, verb: str) -> Iterator[None]:
        """As above; file systems of fsspec raise whatever their libraries do."""
        try:
            with super().reaching(path, verb):
                yield
        except CheckpointError:
            raise
        except Exception as error:
            problem = f"{path} cannot be {verb}: {type(error).__name__}: {error}"
            raise CheckpointError(self.url, problem) from error

    def names(self) -> list[str]:
        with self.reaching(".", "listed"):
            try:
                found = self._fs.ls(self._root, detail=True, refresh=True)
            except FileNotFoundError:
                return []
            folders = [item["name"] for item in found if item["type"] == "directory"]
            return sorted(name.rstrip("/").rpartition("/")[2] for name in folders)

    def has(self, path: str) -> bool:
        with self.reaching(path, "looked for"):
            return bool(self._fs.isfile(self._at(path)))

    def make(self) -> None:
        with self.reaching(".", "made"):
            bucket = self._root.partition("/")[0]  # empty where paths begin with a slash
            if bucket and not self._fs.exists(bucket):  # which makedirs would make, for money
                raise FileNotFoundError(f"there is no bucket {bucket}")

    def claim(self, name: str) -> bool:
        self.make()
        with self.reaching(name, "made"):
            if self._fs.exists(self._at(name)):
                return False
            self._fs.makedirs(self._at(name), exist_ok=True)  # nothing, in an object store
            return True

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        with self.reaching(path, "read"), self._fs.open(self._at(path), "rb") as file:
            yield file

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        with self.reaching(path, "written"), self._fs.open(self._at(path), "wb") as file:
            yield file

    def publish(self, path: str, data: bytes) -> None:
        with self.reaching(path, "written"):
            self._fs.pipe_file(self._at(path), data)

    def remove(self, name: str) -> None:
        with self.reaching(name, "removed"):
            manifest = self._at(f"{name}/{MANIFEST}")
            if self._fs.isfile(manifest):
                self._fs.rm_file(manifest)
            if self._fs.exists(self._at(name)):
                self._fs.rm(self._at(name), recursive=True)

    def _at(self, path: str) -> Any:
        return f"{self._root}/{path}"


def place_of(url: str) -> Place:
    """The place a URL or a path names.

    Raises:
        CheckpointError: it cannot be reached.
    """
    folder = local_folder(url)
    return LocalPlace(folder, url) if folder is not None else RemotePlace(url.rstrip("/"))


def local_folder(url: str) -> Path | None:
    """The folder that `url` names; None if it is one for fsspec.

    Raises:
        CheckpointError: it can be neither.
    """
    scheme, colon, rest = url.partition("://")
    if "\0" in url:
        raise CheckpointError(url.replace("\0", "?"), "a name has no byte 0")
    if not colon and (half := _HALF_URL.match(url)):
        problem = f"neither a folder nor a URL; a URL begins with {half[1]}://"
        raise CheckpointError(url, problem)
    if not colon or scheme == "file":
        return Path(rest if colon else url)
    return None


def require_packages(url: str) -> None:
    """See that fsspec knows the scheme of a URL, and has what it needs; nothing is connected to.

    Raises:
        CheckpointError: it does not; the text says what to install.
    """
    try:
        from fsspec.registry import get_filesystem_class, known_implementations
    except ImportError:
        raise CheckpointError(
            url, "a URL needs fsspec: pip install 'pslite[checkpoint]', and s3fs for s3://"
        ) from None
    for scheme in (part.partition("://")[0] for part in url.split("::")):
        try:
            get_filesystem_class(scheme)
        except ValueError:
            close = difflib.get_close_matches(scheme.lower(), known_implementations, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; known are s3, gs, sftp and others"
            raise CheckpointError(url, f"fsspec knows no scheme {scheme!r}{hint}") from None
        except ImportError as error:
            problem = f"scheme {scheme!r} needs a package that is not installed: {error}"
            raise CheckpointError(url, problem) from None


def require_place(url: str) -> None:
    """See before anything starts, and without a network, that checkpoints can be kept under `url`.

    A local folder is made.

    Raises:
        CheckpointError: they cannot; the text says why.
    """
    folder = local_folder(url)
    if folder is None:
        require_packages(url)
        if url.startswith("memory://"):
            raise CheckpointError(url, "each process has a memory of its own; use a folder")
        return
    try:
        _make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(url, f"nothing can be kept there: {error.strerror}") from error


def _make_folder(folder: Path) -> None:
    """Make a folder and those it lies in, and see that they are on the disk."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """See that the folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
