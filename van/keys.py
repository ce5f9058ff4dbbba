"""Key files: one pair a node, and for each role the list of the keys that may take it.

    KEYS/worker-0.secret      only for the node itself: mode 0600, else it is refused
    KEYS/worker-0.public      for anybody
    KEYS/worker.allowed       lines `KEY NAME`, as in ssh's authorized_keys

A list is read again when its file has changed, so that nodes can be let in while a job runs.

Keys are Curve25519 in Z85 (ZeroMQ RFC 32), 40 characters each.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from van.errors import ConfigError

log = logging.getLogger(__name__)

ROLES = ("scheduler", "server", "worker", "dispatcher", "observer")
SECRET, PUBLIC, ALLOWED = ".secret", ".public", ".allowed"
_KEY_SIZE = 40
_MOST_LIST_NBYTES = 16 << 20  # some 200 000 keys; a larger file is none of ours
_Z85 = frozenset(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)


@dataclass(frozen=True)
class KeyPair:
    """A node's keys; the secret one is in no repr."""

    public: str
    secret: str = field(repr=False)
    file: Path | None = None  # where the secret one came from


def new_pair() -> KeyPair:
    """A fresh pair, from the system's source of randomness."""
    import zmq  # a launcher without keys does without

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def is_key(text: str) -> bool:
    """Whether `text` has the form of a key."""
    return len(text) == _KEY_SIZE and _Z85.issuperset(text)


def read_secret(file: Path) -> KeyPair:
    """The pair whose secret key is in `file`.

    Raises:
        ConfigError: it cannot be read, others may read it, or it holds no key.
    """
    import zmq

    text = _read(file)
    if os.stat(file).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others may read this secret key; chmod 600 {file}", file=str(file))
    secret = _one_key(file, text)
    try:
        public = zmq.curve_public(secret.encode()).decode()
    except zmq.ZMQError as error:
        raise ConfigError(f"holds no usable key: {error.strerror}", file=str(file)) from None
    return KeyPair(public, secret, file)


def read_public(file: Path) -> str:
    """The public key in `file`.

    Raises:
        ConfigError: it cannot be read or holds no key.
    """
    return _one_key(file, _read(file))


def write_pair(folder: Path, name: str, pair: KeyPair) -> None:
    """Write the two files of the key called `name`; the secret one is never open to others.

    Raises:
        ConfigError: it is there already, or the folder cannot be written.
    """
    secret, public = folder / f"{name}{SECRET}", folder / f"{name}{PUBLIC}"
    try:
        if secret.exists():
            raise FileExistsError
        public.write_text(f"{pair.public}\n", encoding="ascii")
        fd = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as out:
            out.write(f"{pair.secret}\n")
    except FileExistsError:
        raise ConfigError("is there already", file=str(secret)) from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(secret)) from None


def allow(folder: Path, role: str, key: str, name: str) -> None:
    """Let the holder of the public `key` take `role`.

    Raises:
        ConfigError: the list cannot be written.
    """
    file = folder / f"{role}{ALLOWED}"
    try:
        with open(file, "a", encoding="utf-8") as out:
            out.write(f"{key} {name}\n")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(file)) from None


def read_allowed(file: Path) -> dict[str, str]:
    """The keys in a list, each with its name; a file that is not there holds none.

    Raises:
        ConfigError: it cannot be read, or a line is no key.
    """
    try:
        if os.stat(file).st_size > _MOST_LIST_NBYTES:
            raise ConfigError("is too large for a list of keys", file=str(file))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from None
    found = {}
    for number, line in enumerate(_read(file).splitlines(), 1):
        key, _, name = line.strip().partition(" ")
        if not key or key == "#":  # a key may begin with one, but holds no blank
            continue
        if not is_key(key):
            raise ConfigError(f"line {number} is not `KEY NAME`: {line!r}", file=str(file))
        found[key] = name.strip()
    return found


class AllowLists:
    """Which keys may take which role, as the files of a folder say now.

    Args:
        folder: holds `ROLE.allowed`; a role without a file is for nobody.
    Raises:
        ConfigError: a list is damaged. One that is damaged later stays as it was.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lists: dict[str, dict[str, str]] = {}
        self._stamps: dict[str, tuple[int, int, int] | None] = {}
        for role in ROLES:
            self._stamps[role] = self._stamp(role)
            self._lists[role] = read_allowed(self._file(role))

    def roles_of(self, key: str) -> frozenset[str]:
        """The roles that the holder of `key` may take; none: it may not even connect."""
        self._refresh()
        return frozenset(role for role, keys in self._lists.items() if key in keys)

    def _file(self, role: str) -> Path:
        return self.folder / f"{role}{ALLOWED}"

    def _stamp(self, role: str) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._file(role))
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _refresh(self) -> None:
        for role in ROLES:
            stamp = self._stamp(role)
            if stamp == self._stamps[role]:
                continue
            self._stamps[role] = stamp
            try:
                self._lists[role] = read_allowed(self._file(role))
            except ConfigError as error:
                log.warning("the list of allowed keys stays as it was: %s", error)

    def __repr__(self) -> str:
        sizes = " ".join(f"{role}={len(keys)}" for role, keys in self._lists.items() if keys)
        return f"<AllowLists {self.folder} {sizes}>"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from None
    except ValueError:
        raise ConfigError("is no text", file=str(file)) from None


def _one_key(file: Path, text: str) -> str:
    key = text.strip()
    if not is_key(key):
        raise ConfigError(f"holds no key of {_KEY_SIZE} characters", file=str(file))
    return key
