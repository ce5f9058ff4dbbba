"""The cache of kernels under processes that compile at once."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from types import SimpleNamespace

import pytest

from kv.kernels.jit import ahead_of
from kv.kernels.sharing import LOCK, share


class CacheFile:
    """As Numba's; tells whether another process could save, or load, meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._cache_path = str(folder)
        self.was_asked = False

    def _may(self, how: int) -> bool:
        with open(Path(self._cache_path) / LOCK, "ab") as other:
            try:
                fcntl.flock(other, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def save(self, key: object, data: object) -> None:
        self.during_save = self._may(fcntl.LOCK_EX), self._may(fcntl.LOCK_SH)
        if data == "too much":
            raise OSError(errno.ENOSPC, "No space left on device")

    def load(self, key: object) -> tuple[bool, bool]:
        self.was_asked = True
        return self._may(fcntl.LOCK_EX), self._may(fcntl.LOCK_SH)


def test_who_saves_a_kernel_is_alone_and_who_loads_one_is_not(tmp_path: Path) -> None:
    file = CacheFile(tmp_path)
    share(SimpleNamespace(_cache=SimpleNamespace(_cache_file=file)))

    file.save("key", "data")
    assert file.during_save == (False, False)
    assert file.load("key") == (False, True)
    assert file._may(fcntl.LOCK_EX)  # and nothing stays locked


def test_a_cache_that_cannot_be_locked_is_used_as_it_is(tmp_path: Path) -> None:
    file = CacheFile(tmp_path / "nowhere")
    share(SimpleNamespace(_cache=SimpleNamespace(_cache_file=file)))

    with pytest.raises(FileNotFoundError):  # its own
        file.load("key")
    assert file.was_asked


def test_a_kernel_that_cannot_be_kept_is_said_once_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = CacheFile(tmp_path)
    share(SimpleNamespace(_cache=SimpleNamespace(_cache_file=file)))

    file.save("key", "too much")
    file.save("other key", "too much")

    (line,) = caplog.messages
    assert str(tmp_path) in line
    assert "No space left on device" in line
    assert file._may(fcntl.LOCK_EX)


def test_a_folder_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CacheFile(tmp_path)
    share(SimpleNamespace(_cache=SimpleNamespace(_cache_file=file)))
    (tmp_path / LOCK).touch()

    def refuse(lock: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):  # its own look
        file.load("key")
    assert file.was_asked


def test_kernels_share_their_cache() -> None:
    assert ahead_of._cache._cache_file.save.__module__ == share.__module__
    assert ahead_of._cache._cache_file.load.__module__ == share.__module__
