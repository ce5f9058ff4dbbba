"""Results against targets: what was reached, beside whom, met or missed.

Pure functions of `Results`. A target about many cases is judged by the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pslite.bench.results import Measurement, Results, ratio

SERVERLESS = "nn.Embedding, no server"  # shown beside servers, not compared with them
YARDSTICK = 10e6  # rows of 64 bytes a second of the machine for which look-ups have a target
TABLES = [
    # op, keys a call, times as fast as the best peer
    ("push", (10_000, 100_000), 5.0),
    ("push_pull", (10_000, 100_000), 4.0),
    ("pull", (10_000, 100_000), 1.3),
    ("push", (1_000,), 3.0),
    ("push_pull", (1_000,), 3.0),
    ("pull", (1_000,), 3.0),
]
NAMES = {"push_pull": "push + pull", "dense_pull": "dense pull", "dense_push": "dense push"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One target.

    Attributes:
        what: the target in words.
        where: the case it was judged by, the worst.
        figure, unit: ours there.
        peer, peer_figure: who it is compared with, if anybody.
        value: what the target is about: the ratio, or the figure.
        target: its bound, a least value, or a greatest if `at_most`.
    """

    what: str
    where: str
    figure: float
    unit: str
    peer: str
    peer_figure: float | None
    value: float
    target: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_met": self.is_met}


@dataclass(frozen=True)
class Comparison:
    """Our figure, a peer's, and how many times as fast ours is."""

    ours: Measurement
    theirs: Measurement
    ratio: float

    @classmethod
    def of(cls, ours: Measurement, theirs: Measurement) -> Comparison:
        return cls(ours, theirs, ratio(ours, theirs))

    def verdict(self, what: str, target: float, *, inverse: bool = False) -> Verdict:
        """With `inverse` the target is about how many times as long we take, at most."""
        return Verdict(
            what=what,
            where=where_of(self.ours),
            figure=self.ours.median,
            unit=self.ours.unit,
            peer=self.theirs.peer,
            peer_figure=self.theirs.median,
            value=1 / self.ratio if inverse else self.ratio,
            target=target,
            at_most=inverse,
        )


def verdicts(results: Results) -> list[Verdict]:
    """All targets for which there are figures, in the order of the tables of the documentation."""
    judges: list[Callable[[Results], Iterable[Verdict]]] = [
        _tables, _latency, _efficiency, _dense, _lookups, _optimisers, _scale, _growth, _start,
    ]  # fmt: skip
    return [verdict for judge in judges for verdict in judge(results)]


def where_of(found: Measurement) -> str:
    """The case in short.

    >>> case = {"op": "pull", "dim": 8, "count": 1000, "optimizer": "sgd", "rows": 5}
    >>> where_of(Measurement(workload="", what="", peer="", unit="", case=case, values=(1.0,)))
    'dim 8, K = 1 000'
    """
    case, parts = found.case, []
    if "nbytes" in case:
        parts.append(f"{case['nbytes'] >> 20} MiB")
    if "entries" in case:
        parts.append(f"{thousands(case['entries'])} entries")
    if "beside" in case:
        parts.append(f"{thousands(case['rows'])} rows")
    if "dim" in case:
        parts.append(f"dim {case['dim']}")
    if "count" in case:
        parts.append(f"K = {thousands(case['count'])}")
    if case.get("is_repeated"):
        parts.append("the same keys")
    return ", ".join(parts)


def thousands(number: int) -> str:
    """
    >>> thousands(1234567)
    '1 234 567'
    """
    return f"{number:,}".replace(",", " ")


def best_peer(results: Results, ours: Measurement) -> Measurement | None:
    """The fastest other server in the case of `ours`."""
    rivals = [
        found
        for found in results.select(workload=ours.workload, what=ours.what)
        if found.case == ours.case and is_rival(found.peer)
    ]
    fastest = max if ours.is_rate else min
    return fastest(rivals, key=lambda found: found.median, default=None)


def is_rival(peer: str) -> bool:
    """Whether a peer is a parameter server that is not ours."""
    return not peer.startswith(("pslite", "bare")) and peer != SERVERLESS


def _own(results: Results, workload: str) -> list[str]:
    return list(
        dict.fromkeys(
            found.peer
            for found in results.select(workload=workload)
            if found.peer.startswith("pslite")
        )
    )


def _worst(compared: Iterable[Comparison]) -> Comparison | None:
    return min(compared, key=lambda one: one.ratio, default=None)


def _tables(results: Results) -> Iterator[Verdict]:
    for peer in _own(results, "tables"):
        for op, counts, target in TABLES:
            compared = [
                Comparison.of(ours, theirs)
                for count in counts
                for ours in results.select(
                    workload="tables", what=op, peer=peer, count=count, optimizer="adagrad"
                )
                if (theirs := best_peer(results, ours)) is not None
            ]
            if worst := _worst(compared):
                sizes = "K = 1 000" if counts == (1_000,) else "K = 10 000, 100 000"
                yield worst.verdict(f"{NAMES.get(op, op)}, {sizes}, {peer}", target)


def _latency(results: Results) -> Iterator[Verdict]:
    for peer in _own(results, "latency"):
        medium = "tcp" if peer.endswith("tcp") else "ipc"
        for op in ("pull", "push"):
            ours = results.find(workload="latency", what=op, peer=peer)
            bare = results.find(workload="latency", what=op, peer=f"bare pyzmq {medium}")
            if ours and bare:
                compared = Comparison.of(ours, bare)
                yield compared.verdict(f"one-key {op}, {peer}, times bare", 1.5, inverse=True)


def _efficiency(results: Results) -> Iterator[Verdict]:
    for op in ("pull", "push"):
        found = list(results.select(workload="efficiency", what=f"{op} efficiency"))
        if worst := min(found, key=lambda one: one.median, default=None):
            yield _plain(f"efficiency of a {op}, tcp", worst, 0.7)


def _dense(results: Results) -> Iterator[Verdict]:
    for op in ("pull", "push"):
        ours = list(results.select(workload="dense", what=op, peer="pslite tcp"))
        bare, local = (
            [(one, results.find(workload="dense", what=op, peer=peer, **one.case)) for one in ours]
            for peer in ("bare pyzmq tcp", "pslite local")
        )
        if worst := _worst(Comparison.of(one, theirs) for one, theirs in bare if theirs):
            yield worst.verdict(f"dense {op}, tcp, of bare pyzmq", 0.8)
        if worst := _worst(Comparison.of(faster, one) for one, faster in local if faster):
            yield worst.verdict(f"dense {op}, local, times tcp", 1.5)


def _lookups(results: Results) -> Iterator[Verdict]:
    for entries, target in ((1_000_000, 20e6), (50_000_000, 10e6)):
        wanted = {"workload": "lookups", "entries": entries}
        ours = results.find(peer="pslite", **wanted)
        machine = results.find(peer="rows of 64 bytes", **wanted)
        if ours and machine:
            # both figures of a round, so that a slow moment of the machine excuses itself
            least = target / YARDSTICK
            yield Comparison.of(ours, machine).verdict("look-ups, times rows of 64 bytes", least)


def _optimisers(results: Results) -> Iterator[Verdict]:
    compared: dict[str, list[Comparison]] = {}
    for ours in results.select(workload="optimisers", peer="pslite"):
        theirs = results.find(workload="optimisers", what=ours.what, peer="NumPy", **ours.case)
        if theirs:
            compared.setdefault(ours.what, []).append(Comparison.of(ours, theirs))
    for name, found in compared.items():
        if worst := _worst(found):
            yield worst.verdict(f"{name} kernel", 3.0)


def _scale(results: Results) -> Iterator[Verdict]:
    for peer in _own(results, "scale"):
        if not peer.endswith(" 2+2"):
            continue
        alone = peer.removesuffix("2+2") + "1+1"
        compared = [
            Comparison.of(ours, theirs)
            for ours in results.select(workload="scale", peer=peer)
            if (theirs := results.find(workload="scale", what=ours.what, peer=alone, **ours.case))
        ]
        if worst := _worst(compared):
            op = NAMES.get(worst.ours.what, worst.ours.what)
            yield worst.verdict(f"2 servers + 2 workers, total, {peer.split()[1]}, {op}", 1.0)


def _growth(results: Results) -> Iterator[Verdict]:
    for found in results.select(workload="growth", what="worst push"):
        if found.case["rows"] == 50_000_000:
            yield _plain("worst push while growing", found, 0.05, at_most=True)
    rates = list(results.select(workload="growth", unit="keys/s", beside=50_000_000))
    large = [found for found in rates if found.case["rows"] == found.case["beside"]]
    compared = [
        Comparison.of(ours, theirs)
        for ours in large
        for theirs in rates
        if theirs.what == ours.what and theirs.case["rows"] < ours.case["rows"]
    ]
    if worst := _worst(compared):
        yield worst.verdict("50 M rows, times 1 M rows", 0.5)


def _start(results: Results) -> Iterator[Verdict]:
    for what, target in (("import pslite", 0.15), ("pslite --help", 0.3)):
        if found := results.find(workload="start", what=what):
            yield _plain(what, found, target, at_most=True)
    ready = results.find(workload="start", what="server ready")
    bare = results.find(workload="start", what="import numba, call a cached kernel")
    if ready and bare:
        yield Comparison.of(ready, bare).verdict("server ready, times bare", 1.3, inverse=True)


def _plain(what: str, found: Measurement, target: float, *, at_most: bool = False) -> Verdict:
    return Verdict(
        what=what,
        where=where_of(found),
        figure=found.median,
        unit=found.unit,
        peer="",
        peer_figure=None,
        value=found.median,
        target=target,
        at_most=at_most,
    )
