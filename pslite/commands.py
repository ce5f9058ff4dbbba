"""What other programs may ask of a running launcher: one JSON object, answered by one.

The launcher listens on the Unix socket `RUN/launcher.sock`. The file is for its owner only (0600),
and the kernel says who is at the other end: other users are not listened to. A command is one
packet of at most 4 KiB, so nothing has to be put together; nothing but JSON is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from van.errors import ConfigError, PsliteError

FILE = "launcher.sock"
_LONGEST = 4096  # bytes of a command or an answer
_PATIENCE = 5.0  # seconds in which who connects must say something
_MOST = 16  # who may be connected at a time
_CREDENTIALS = struct.Struct("iII")  # Linux: struct ucred

Handle = Callable[[dict[str, Any]], dict[str, Any]]
"""Does what a command says; a `PsliteError` is told to who asked."""


class CommandSocket:
    """The launcher's end.

    Args:
        folder: of the job, which nobody else uses.
        handle: called for each command, in the thread that calls `turn`.
    Raises:
        ConfigError: the socket cannot be made.
    """

    def __init__(self, folder: Path, handle: Handle) -> None:
        self._folder, self._handle = folder, handle
        self._peers: dict[socket.socket, float] = {}
        self._socket = _new_socket()
        self._socket.setblocking(False)
        try:
            (folder / FILE).unlink(missing_ok=True)  # of a launcher that was killed
            with _short(folder) as path:
                _bind_private(self._socket, path)
            self._socket.listen(_MOST)
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"cannot be made: {error}", file=str(folder / FILE)) from None

    def fileno(self) -> int:
        """Of the listening socket: readable when somebody has come."""
        return self._socket.fileno()

    def turn(self, now: float) -> None:
        """Take who has come, and do what they say; never waits."""
        with contextlib.suppress(BlockingIOError):
            while len(self._peers) < _MOST:
                peer = self._socket.accept()[0]
                peer.setblocking(False)
                self._peers[peer] = now + _PATIENCE
        for peer, deadline in list(self._peers.items()):
            if self._hear(peer) or now > deadline:
                del self._peers[peer]
                peer.close()

    def _hear(self, peer: socket.socket) -> bool:
        """Answer a peer, if it has said something; whether it is done with."""
        try:
            data = peer.recv(_LONGEST + 1)
        except BlockingIOError:
            return False
        except OSError:
            return True
        if data and _user_of(peer) == os.geteuid():
            with contextlib.suppress(OSError):  # it has not waited
                peer.send(_as_json(self._answer(data)))
        return True

    def _answer(self, data: bytes) -> dict[str, Any]:
        try:
            command = json.loads(data) if len(data) <= _LONGEST else None
        except (ValueError, RecursionError):
            command = None
        if not isinstance(command, dict):
            return {"error": f"a command is one JSON object of at most {_LONGEST} bytes"}
        try:
            return self._handle(command)
        except PsliteError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """Nobody is listened to any more."""
        for peer in (self._socket, *self._peers):
            peer.close()
        self._peers.clear()
        with contextlib.suppress(OSError):
            (self._folder / FILE).unlink()


def has_launcher(folder: Path) -> bool:
    """Whether commands can be given to a launcher of the job in `folder`."""
    return (folder / FILE).is_socket()


def ask_launcher(folder: Path, command: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """What the launcher of the job in `folder` answers to `command`.

    Raises:
        ConfigError: there is none, it does not answer in time, or it refuses.
    """
    place = folder / FILE
    with _new_socket() as peer:
        peer.settimeout(timeout)
        deadline = time.monotonic() + timeout
        try:
            with _short(folder) as path:
                peer.connect(path)
            if _user_of(peer) not in (os.geteuid(), 0):
                raise ConfigError("another user listens here", file=str(place))
            peer.send(_as_json(command))
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            answer = json.loads(peer.recv(_LONGEST + 1))
        except (OSError, ValueError) as error:
            problem = f"the job's launcher does not answer: {error or 'timed out'}"
            raise ConfigError(problem, file=str(place)) from None
    if "error" in answer:
        raise ConfigError(f"the job's launcher refuses: {answer['error']}")
    return dict(answer)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _bind_private(server: socket.socket, path: str) -> None:
    former = os.umask(0o177)  # the file is made by bind, with these bits from the start
    try:
        server.bind(path)
    finally:
        os.umask(former)


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A path of the socket that fits its 108 bytes, however long that of the folder is."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{FILE}"
    finally:
        os.close(handle)


def _user_of(peer: socket.socket) -> int:
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return int(user)


def _as_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
