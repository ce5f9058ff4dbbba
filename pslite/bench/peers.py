"""Who is measured: pslite in its shapes, and the peers of a folder.

A peer of the folder is a Python file that imports nothing of pslite: a text `label` and a class
`Peer` (`start`, `prepare(rows, dim, optimizer)`, `keys(positions)`, `pull`, `push`, `push_pull`,
`close`). `spins = True` says that it uses the processor when idle: it is then stopped while others
are measured. `bare_zmq`, which has no table, is used by its name.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pslite
from pslite.bench.cases import TableCase
from pslite.bench.children import Children, Driven
from pslite.bench.errors import BenchError

OWN = "pslite.bench.own:Peer"
BARE = "bare_zmq"  # the file without a table
START_TIMEOUT = 120.0


@dataclass(frozen=True)
class PeerFile:
    """One file of the folder.

    Attributes:
        spins: whether it uses the processor when idle.
    """

    path: Path
    label: str
    spins: bool

    @property
    def name(self) -> str:
        return self.path.stem


def default_folder() -> Path | None:
    """`bench/peers` of the source tree that this pslite is, or None if it is an installed one."""
    folder = Path(pslite.__file__).resolve().parent.parent / "bench" / "peers"
    return folder if folder.is_dir() else None


def peer_files(folder: Path | None) -> list[PeerFile]:
    """The peers of a folder, by name; none without a folder.

    Raises:
        BenchError: the folder cannot be read, or a file is no Python.
    """
    if folder is None:
        return []
    if not folder.is_dir():
        raise BenchError(f"--peers {folder}: no such folder")
    found = []
    for path in sorted(folder.glob("*.py")):
        try:
            constants = _constants(path)
        except (OSError, SyntaxError) as error:
            raise BenchError(f"peer {path}: {error}") from None
        label = str(constants.get("label", path.stem))
        found.append(PeerFile(path, label, bool(constants.get("spins", False))))
    return found


def _constants(path: Path) -> dict[str, Any]:
    """The module's plain constants, read without running it: it may need what is not installed."""
    constants = {}
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    constants[target.id] = node.value.value
    return constants


class TablePeer:
    """One that has a table and is timed on `TableCase`s: by one process, or by several at once."""

    def __init__(self, label: str, members: list[Driven], *, spins: bool = False) -> None:
        self.label, self.members, self._spins = label, members, spins
        self._calls: dict[TableCase, int] = {}
        self._pause()

    def calibrate(self, case: TableCase, seconds: float) -> None:
        """Learn how many calls fill `seconds`; also warms up."""
        with self._awake():
            self._calls[case] = min(
                int(member.ask("calibrate", case=case.to_dict(), seconds=seconds))
                for member in self.members
            )

    def seconds(self, case: TableCase, seed: int) -> list[float]:
        """Seconds of each call of one block, of a peer of one process."""
        (block,) = self._block(case, seed)
        taken: list[float] = block["seconds"]
        return taken

    def rate(self, case: TableCase, seed: int) -> float:
        """Keys a second of one block, all members together."""
        blocks = self._block(case, seed)
        whole = max(block["ended"] for block in blocks) - min(block["began"] for block in blocks)
        return float(len(blocks) * self._calls[case] * case.count / whole)

    def _block(self, case: TableCase, seed: int) -> list[dict[str, Any]]:
        """One block of every member; they begin together."""
        wanted = {"case": case.to_dict(), "calls": self._calls[case]}
        with self._awake():
            for place, member in enumerate(self.members):
                member.send("arm", seed=seed + 1000 * place, **wanted)
            for member in self.members:
                member.answer()
            for member in self.members:
                member.send("fire")
            return [member.answer() for member in self.members]

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        if self._spins:
            self.members[0].resume()
        yield
        self._pause()

    def _pause(self) -> None:
        if self._spins:
            self.members[0].pause()

    def close(self) -> None:
        if self._spins:
            self.members[0].resume()
        for member in self.members:
            member.shut()
        for member in self.members:
            member.close()

    def kill(self) -> None:
        for member in self.members:
            member.kill()


def begin(children: Children, peer: PeerFile) -> Driven:
    """Begin to start a peer of the folder, so that several may load their libraries at once."""
    begun = children.start(peer.label, str(peer.path))
    begun.send("start")
    return begun


def begun_peer(peer: PeerFile, begun: Driven) -> TablePeer:
    """The peer, once it is there; raises PeerError."""
    try:
        begun.answer(START_TIMEOUT)
    except BaseException:
        begun.kill()
        raise
    return TablePeer(peer.label, [begun], spins=peer.spins)


def start_own(children: Children, label: str, transport: str, size: int = 1) -> TablePeer:
    """Start pslite with `size` servers and as many workers; raises PeerError."""
    options = {"transport": transport, "servers": size, "workers": size}
    members = [children.start(label, OWN, **options) for _ in range(size)]
    peer = TablePeer(label, members)
    try:
        address = members[0].ask("start_nodes", START_TIMEOUT)
        for rank, member in enumerate(members):
            member.send("connect", address=address, rank=rank)
        for member in members:
            member.answer(START_TIMEOUT)
    except BaseException:
        peer.kill()
        raise
    return peer


def start(children: Children, label: str, spec: str, **options: Any) -> Driven:
    """Start any peer; raises PeerError."""
    peer = children.start(label, spec, **options)
    try:
        peer.ask("start", START_TIMEOUT)
    except BaseException:
        peer.kill()
        raise
    return peer
