"""One whole run: starts the peers, takes the workloads in turn, gathers the results.

Peers live in processes of their own, are kept alive and used in turn, in another order each round,
so that a change of the machine's speed meets them all. Idle ones wait in a system call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from pslite.bench import own, peers
from pslite.bench.cases import TableCase
from pslite.bench.children import Children, Driven
from pslite.bench.errors import BenchError, PeerError
from pslite.bench.machine import facts
from pslite.bench.peers import PeerFile, TablePeer
from pslite.bench.progress import Progress
from pslite.bench.results import Case, Failure, Results
from pslite.values import nearest

P = TypeVar("P")
T = TypeVar("T")

TEMPORARY = "pslite-bench-"  # folders of runs begin so, then the number of the process


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured at which sizes."""

    rounds: int = 5
    seconds: float = 0.15  # that one block should last
    rows: int = 1_000_000
    dims: tuple[int, ...] = (8, 16, 64)
    counts: tuple[int, ...] = (1_000, 10_000, 100_000)
    with_sgd: bool = True
    dense: tuple[int, ...] = (4 << 20, 16 << 20, 64 << 20)  # bytes
    entries: tuple[int, ...] = (1_000_000, 10_000_000)  # of the index
    traced: tuple[int, ...] = (1, 1_000, 100_000)  # keys of a call whose stages are shown
    grown: tuple[int, ...] = ()  # rows of large tables


FULL = Sizes()
QUICK = Sizes(
    rounds=3,
    seconds=0.03,
    dims=(16,),
    counts=(1_000, 100_000),
    with_sgd=False,
    dense=(4 << 20, 16 << 20),
    entries=(1_000_000,),
)
LEVELS = ("quick", "full", "large")
LARGE_ENTRIES = 50_000_000
LARGE_ROWS = (50_000_000, 100_000_000)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run.

    Attributes:
        only: names of workloads; empty: all of the chosen sizes.
        peers: the folder of peers; None: none but pslite.
        without: names of peer files to leave out.
        env: the environment of all processes.
    """

    sizes: Sizes = FULL
    only: tuple[str, ...] = ()
    peers: Path | None = None
    without: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True)
class Workload:
    """Something to measure.

    Attributes:
        what: one line for `--list`.
        level: the smallest run that has it, one of LEVELS.
        shares_peers: whether it works with the peers that the one before has started.
    """

    name: str
    what: str
    run: Callable[[Bench], None]
    level: str = "quick"
    shares_peers: bool = False


class Bench:
    """What workloads work with.

    Attributes:
        sizes: what to measure.
        results: where figures go.
        folder: for files of this run; it is removed afterwards.
        workload: the name of the one that runs.
    """

    def __init__(
        self, options: Options, children: Children, progress: Progress, folder: Path
    ) -> None:
        self.sizes, self.progress, self.results = options.sizes, progress, Results()
        self.children, self.folder, self.workload = children, folder, ""
        files = peers.peer_files(options.peers)
        refuse_unknown("--without", options.without, [file.name for file in files])
        self._files = [file for file in files if file.name not in options.without]
        self._tables: dict[str, TablePeer] = {}
        self._refused: set[str] = set()

    # -- peers ------------------------------------------------------------------------------

    @property
    def labels(self) -> list[str]:
        """The peers that take part, pslite not counted."""
        return [file.label for file in self._files]

    @property
    def table_files(self) -> list[PeerFile]:
        return [file for file in self._files if file.name != peers.BARE]

    def bare(self, transport: str) -> Driven | None:
        """Bare pyzmq over tcp, or over ipc for any other transport; None if there is none."""
        file = next((file for file in self._files if file.name == peers.BARE), None)
        if file is None:
            return None
        label = bare_label(transport)
        return self._attempt(
            label, lambda: peers.start(self.children, label, str(file.path), transport=transport)
        )

    def own_peers(self) -> list[TablePeer]:
        """pslite, one server and one worker, over each transport; kept for later workloads."""
        for transport in own.transports():
            label = own_label(transport)
            self._keep(label, partial(peers.start_own, self.children, label, transport))
        labels = [own_label(transport) for transport in own.transports()]
        return [self._tables[label] for label in labels if label in self._tables]

    def table_peers(self) -> list[TablePeer]:
        """pslite and all peers with a table; kept for later workloads."""
        found = self.own_peers()
        begun = {
            file: peers.begin(self.children, file)
            for file in self.table_files
            if not self._is_known(file.label)
        }
        for file, driven in begun.items():
            self._keep(file.label, partial(peers.begun_peer, file, driven))
        labels = [file.label for file in self.table_files]
        return found + [self._tables[label] for label in labels if label in self._tables]

    def own_team(self, transport: str, size: int) -> TablePeer | None:
        """pslite with `size` servers and `size` workers, for the caller to close."""
        label = own_label(transport) + f" {size}+{size}"
        return self._attempt(label, lambda: peers.start_own(self.children, label, transport, size))

    def driven(self, label: str, spec: str, **options: object) -> Driven | None:
        """Another process for this workload, for the caller to close; None if it fails."""
        return self._attempt(label, lambda: peers.start(self.children, label, spec, **options))

    def close_peers(self) -> None:
        """End the peers that are kept."""
        while self._tables:
            self._tables.popitem()[1].close()

    def _keep(self, label: str, start: Callable[[], TablePeer]) -> None:
        if not self._is_known(label):
            self.progress.show(f"starting {label}")
            peer = self._attempt(label, start)
            if peer is None:
                self._refused.add(label)
            else:
                self._tables[label] = peer

    def _is_known(self, label: str) -> bool:
        return label in self._tables or label in self._refused

    def _attempt(self, label: str, start: Callable[[], P]) -> P | None:
        try:
            return start()
        except PeerError as error:
            self.fail(label, error.problem)
            return None

    # -- rounds -----------------------------------------------------------------------------

    def fail(self, peer: str, problem: str) -> None:
        """Note that a peer failed; it takes no further part."""
        self.results.failures.append(Failure(workload=self.workload, peer=peer, problem=problem))
        self.progress.note(f"{self.workload}: {peer}: {problem}")
        if peer in self._tables:
            self._tables.pop(peer).kill()
            self._refused.add(peer)

    def rounds(self, figures: Mapping[str, Callable[[int], T]]) -> dict[str, list[T]]:
        """What each peer's function gives in each round; those that fail are left out.

        A function gets the number of the round, 1 and up; before, each is called once with 0 and
        what it gives is thrown away.
        """
        found: dict[str, list[T]] = {label: [] for label in figures}
        for number in range(self.sizes.rounds + 1):
            labels = list(found)
            for label in labels[number % len(labels) :] + labels[: number % len(labels)]:
                try:
                    value = figures[label](number)
                except PeerError as error:
                    self.fail(label, error.problem)
                    del found[label]
                else:
                    found[label] += [value] if number else []
        return found

    def rates(self, what: str, case: TableCase, table_peers: list[TablePeer]) -> None:
        """Measure the keys a second of a case, of all these peers in turn."""
        self.progress.show(case)
        figures = {
            peer.label: _after_calibration(peer, case, self.sizes.seconds) for peer in table_peers
        }
        for label, values in self.rounds(figures).items():
            self.results.add(self.workload, what, label, "keys/s", case.to_dict(), values)

    def seconds(
        self, what: str, case: Case, figures: Mapping[str, Callable[[int], float]]
    ) -> dict[str, list[float]]:
        """Measure seconds, each function's in turn, and note them as those of a peer."""
        self.progress.show(f"{what} {case}")
        found = self.rounds(figures)
        for label, values in found.items():
            self.results.add(self.workload, what, label, "s", case, values)
        return found


def run(options: Options, progress: Progress, workloads: Sequence[Workload]) -> Results:
    """Run workloads one after the other; what they measured.

    Raises:
        BenchError: an option names what there is not.
    """
    with _temporary_folder() as folder:
        env = {**options.env, "TMPDIR": str(folder), "RAY_TMPDIR": str(folder)}
        with Children(env) as children:
            bench = Bench(options, children, progress, folder)
            bench.results.facts |= facts(options.sizes, own.transports(), bench.labels)
            try:
                for place, workload in enumerate(workloads, 1):
                    bench.workload = workload.name
                    progress.workload(workload.name, place, len(workloads))
                    if not workload.shares_peers:
                        bench.close_peers()
                    try:
                        workload.run(bench)
                    except PeerError as error:  # of one without which it cannot go on
                        bench.fail(error.peer, error.problem)
                bench.close_peers()
            finally:
                progress.close()
    return bench.results


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder for all files of the run; also removes those of runs that were killed."""
    place = Path(tempfile.gettempdir())
    for old in place.glob(f"{TEMPORARY}*"):
        process = old.name.removeprefix(TEMPORARY).partition("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{TEMPORARY}{os.getpid()}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def refuse_unknown(option: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise BenchError for the first of `names` that is not known."""
    for name in names:
        if name not in known:
            hint = nearest(name, known) or f"; known: {', '.join(known)}"
            raise BenchError(f"{option} {name}: there is none of that name{hint}")


def _after_calibration(peer: TablePeer, case: TableCase, seconds: float) -> Callable[[int], float]:
    def rate(number: int) -> float:
        if number == 0:
            peer.calibrate(case, seconds)
            return 0.0
        return peer.rate(case, number)

    return rate


def own_label(transport: str) -> str:
    return f"pslite {transport}"


def bare_label(transport: str) -> str:
    return f"bare pyzmq {'tcp' if transport == 'tcp' else 'ipc'}"
