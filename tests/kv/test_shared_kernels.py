"""The cache of kernels under processes that compile at once."""

from __future__ import annotations

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

    def _may(self, how: int) -> bool:
        with open(Path(self._cache_path) / LOCK, "ab") as other:
            try:
                fcntl.flock(other, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def save(self, key: object, data: object) -> tuple[bool, bool]:
        return self._may(fcntl.LOCK_EX), self._may(fcntl.LOCK_SH)

    def load(self, key: object) -> tuple[bool, bool]:
        return self._may(fcntl.LOCK_EX), self._may(fcntl.LOCK_SH)


def test_who_saves_a_kernel_is_alone_and_who_loads_one_is_not(tmp_path: Path) -> None:
    file = CacheFile(tmp_path)
    share(SimpleNamespace(_cache=SimpleNamespace(_cache_file=file)))

    assert file.save("key", "data") == (False, False)
    assert file.load("key") == (False, True)
    assert file._may(fcntl.LOCK_EX)  # and nothing stays locked


def test_a_cache_that_cannot_be_locked_is_used_as_it_is(tmp_path: Path) -> None:
    file = CacheFile(tmp_path / "nowhere")
    share(SimpleNamespace(_cache=SimpleNamespace(_cache_file=file)))

    with pytest.raises(FileNotFoundError):  # its own
        file.load("key")


def test_kernels_share_their_cache() -> None:
    assert hasattr(ahead_of._cache._cache_file.save, "__wrapped__")
    assert hasattr(ahead_of._cache._cache_file.load, "__wrapped__")
