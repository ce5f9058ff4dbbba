"""What is measured. Each function takes the `Bench` of a run and adds figures to its results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pslite.bench import own, parts
from pslite.bench.cases import TableCase
from pslite.bench.children import Driven
from pslite.bench.errors import PeerError
from pslite.bench.machine import memory
from pslite.bench.peers import TablePeer
from pslite.bench.run import Bench, Workload, bare_label, own_label
from pslite.bench.stages import stages

OPS = ("pull", "push", "push_pull")
SIZE_OF = {"adagrad": 2, "sgd": 1}  # arrays of a row
EFFICIENT = 100_000  # keys of a call whose parts are measured alone
SCALED = (10_000, 100_000)  # keys of a call of two workers
LATENCY_DIM = 16
SECONDS_PER_CALL = 300.0  # a limit for calls that build large tables
BYTES_OF_ENTRY = 160  # of index, narrow row and wide row, reckoned generously
ROW_OVERHEAD = 48  # bytes a row besides weights and state, reckoned generously


def tables(bench: Bench) -> None:
    """Keys a second of one worker on one server, many keys a call."""
    sizes = bench.sizes
    for dim in sizes.dims:
        for optimizer in ("adagrad", "sgd") if sizes.with_sgd else ("adagrad",):
            for op in OPS if optimizer == "adagrad" else ("push",):
                for count in sizes.counts:
                    case = TableCase(
                        op=op, count=count, dim=dim, optimizer=optimizer, rows=sizes.rows
                    )
                    bench.rates(op, case, bench.table_peers())


def repeats(bench: Bench) -> None:
    """The same keys again and again, as in evaluation or with few users a batch; pslite alone."""
    for op in OPS:
        for count in (1_000, 100_000):
            case = TableCase(op=op, count=count, dim=16, optimizer="adagrad", rows=bench.sizes.rows)
            for is_repeated in (False, True):
                bench.rates(op, replace(case, is_repeated=is_repeated), bench.own_peers())


def latency(bench: Bench) -> None:
    """One key there and back: median and 99th percentile, beside a bare round trip."""
    bare = {t: bench.bare(t) for t in own.transports()}
    for op in OPS:
        case = TableCase(
            op=op, count=1, dim=LATENCY_DIM, optimizer="adagrad", rows=bench.sizes.rows
        )
        bench.progress.show(case)
        figures = {
            peer.label: _quantiles(peer, case, bench.sizes.seconds) for peer in bench.table_peers()
        }
        for transport, peer in bare.items():
            if peer is not None:
                figures[bare_label(transport)] = _ping(peer)
        for label, found in bench.rounds(figures).items():
            for place, what in enumerate((op, f"{op} p99")):
                values = [quantiles[place] for quantiles in found]
                bench.results.add(bench.workload, what, label, "s", case.to_dict(), values)
    _close(*bare.values())


def _quantiles(
    peer: TablePeer, case: TableCase, seconds: float
) -> Callable[[int], tuple[float, float]]:
    def measure(number: int) -> tuple[float, float]:
        if number == 0:
            peer.calibrate(case, seconds)
            return 0.0, 0.0
        return median_and_p99(peer.seconds(case, number))

    return measure


def _ping(peer: Driven, calls: int = 1000) -> Callable[[int], tuple[float, float]]:
    return lambda number: median_and_p99(peer.ask("loop", method="ping", arguments={}, calls=calls))


def median_and_p99(seconds: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile (nearest rank).

    >>> median_and_p99([3.0, 1.0, 2.0])
    (2.0, 3.0)
    """
    ordered = sorted(seconds)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def dense(bench: Bench) -> None:
    """Whole arrays, beside bare pyzmq without copies but one at each end."""
    peers: dict[str, Driven] = {}
    for transport in own.transports():
        label = own_label(transport)
        found = bench.driven(label, "pslite.bench.own:Peer", transport=transport)
        bare = bench.bare(transport)
        peers |= {label: found} if found is not None else {}
        peers |= {bare_label(transport): bare} if bare is not None else {}
    for nbytes in bench.sizes.dense:
        for label, peer in list(peers.items()):
            try:
                peer.ask("prepare_dense", nbytes=nbytes)
            except PeerError as error:
                bench.fail(label, error.problem)
                del peers[label]
        for op in ("dense_pull", "dense_push"):
            bench.progress.show(f"{op} {nbytes >> 20} MiB")
            calls = max(3, round(bench.sizes.seconds * 1e9 / nbytes))
            figures = {
                label: _looped(peer, op, calls, nbytes=nbytes) for label, peer in peers.items()
            }
            for label, seconds in bench.rounds(figures).items():
                rates = [nbytes / value for value in seconds]
                what = op.removeprefix("dense_")
                bench.results.add(bench.workload, what, label, "B/s", {"nbytes": nbytes}, rates)
    _close(*peers.values())


def _looped(peer: Driven, method: str, calls: int, **arguments: Any) -> Callable[[int], float]:
    """The median seconds of a call."""
    return lambda number: statistics.median(
        peer.ask("loop", SECONDS_PER_CALL, method=method, arguments=arguments, calls=calls)
    )


def scale(bench: Bench) -> None:
    """All keys a second of two workers on two servers, beside one on one."""
    for transport in own.transports():
        teams = [bench.own_team(transport, size) for size in (1, 2)]
        for op in OPS:
            for count in SCALED:
                case = TableCase(
                    op=op, count=count, dim=16, optimizer="adagrad", rows=bench.sizes.rows
                )
                bench.rates(op, case, [team for team in teams if team is not None])
        _close(*teams)


def efficiency(bench: Bench) -> None:
    """The parts of a large request measured alone, over the request from end to end, over tcp."""
    label = own_label("tcp")
    whole = next((peer for peer in bench.own_peers() if peer.label == label), None)
    bare = bench.bare("tcp")
    store = bench.driven("store", "pslite.bench.parts:StoreParts")
    if whole is not None and bare is not None and store is not None:
        alone = TablePeer("store", [store])
        for dim in bench.sizes.dims:
            for op in ("pull", "push"):
                _efficiency(bench, op, dim, whole, alone, bare)
    _close(bare, store)


def _efficiency(
    bench: Bench, op: str, dim: int, whole: TablePeer, store: TablePeer, bare: Driven
) -> None:
    def case(op: str) -> TableCase:
        rows = bench.sizes.rows
        return TableCase(op=op, count=EFFICIENT, dim=dim, optimizer="adagrad", rows=rows)

    keys, values = 8 * EFFICIENT, 4 * EFFICIENT * dim
    send, receive = ([keys], values) if op == "pull" else ([keys, values], 64)
    work = "gather" if op == "pull" else "update"
    found = bench.seconds(
        op,
        case(op).to_dict(),
        {
            whole.label: _block(whole, case(op), bench.sizes.seconds),
            "look-up": _block(store, case("lookup"), bench.sizes.seconds),
            work: _block(store, case(work), bench.sizes.seconds),
            bare_label("tcp"): _looped(bare, "transfer", 15, send=send, receive=receive),
        },
    )
    alone = [found[name] for name in ("look-up", work, bare_label("tcp")) if name in found]
    if len(alone) == 3 and whole.label in found:
        shares = [
            sum(seconds) / total for *seconds, total in zip(*alone, found[whole.label], strict=True)
        ]
        bench.results.add(
            bench.workload, f"{op} efficiency", whole.label, "", case(op).to_dict(), shares
        )


def _block(peer: TablePeer, case: TableCase, seconds: float) -> Callable[[int], float]:
    """The median seconds of a call."""

    def measure(number: int) -> float:
        if number == 0:
            peer.calibrate(case, seconds)
            return 0.0
        return statistics.median(peer.seconds(case, number))

    return measure


def lookups(bench: Bench) -> None:
    """Keys found a second in an index, one thread, beside rows of 64 bytes read by NumPy."""
    peer = bench.driven("index", "pslite.bench.parts:Lookups")
    if peer is None:
        return
    for entries in bench.sizes.entries:
        bench.progress.show(f"{entries} entries")
        if memory("MemAvailable") < BYTES_OF_ENTRY * entries:
            bench.fail(f"{entries} entries", "not enough memory")
            continue
        peer.ask("prepare", SECONDS_PER_CALL, entries=entries)
        figures = {
            "pslite": _looped(peer, "lookup", 3),
            "rows of 64 bytes": _looped(peer, "yardstick", 3),
        }
        for label, seconds in bench.rounds(figures).items():
            rates = [parts.QUERIES / value for value in seconds]
            bench.results.add(
                bench.workload, "look-up", label, "rows/s", {"entries": entries}, rates
            )
    peer.close()


def optimisers(bench: Bench) -> None:
    """Rows updated a second by each optimiser's kernel, beside its formula in NumPy."""
    peer = bench.driven("optimisers", "pslite.bench.parts:Optimisers")
    if peer is None:
        return
    for name in parts.compared_optimisers():
        for dim in bench.sizes.dims:
            bench.progress.show(f"{name} dim {dim}")
            peer.ask("prepare", name=name, dim=dim)
            figures = {"pslite": _looped(peer, "ours", 5), "NumPy": _looped(peer, "numpy", 3)}
            for label, seconds in bench.rounds(figures).items():
                rates = [parts.ROWS / value for value in seconds]
                bench.results.add(bench.workload, name, label, "rows/s", {"dim": dim}, rates)
    peer.close()


def start(bench: Bench) -> None:
    """Seconds until `import pslite`, `pslite --help` and a server are done or ready."""
    peer = bench.driven("start", "pslite.bench.startup:Starts")
    if peer is None:
        return
    names = {
        "importing": ["import pslite"],
        "help": ["pslite --help"],
        "server": ["server ready", "server's first answer"],
        "bare": ["import numba, call a cached kernel"],
    }
    for method, found in bench.rounds({name: _asked(peer, name) for name in names}).items():
        for what, *seconds in zip(names[method], *found, strict=True):
            bench.results.add(bench.workload, what, what, "s", {}, seconds)
    peer.close()


def _asked(peer: Driven, method: str) -> Callable[[int], list[float]]:
    return lambda number: list(peer.ask(method))


def growth(bench: Bench) -> None:
    """Large tables: the worst push while they fill, and their speed beside a small one's."""
    for rows in bench.sizes.grown:
        dim = 8
        need = rows * (4 * dim * SIZE_OF["adagrad"] + ROW_OVERHEAD)
        if memory("MemAvailable") < need:
            problem = f"needs {need / 2**30:.0f} GiB of free memory"
            bench.fail(f"{rows // 10**6} M rows", problem)
            continue
        label = own_label("tcp")
        peer = bench.driven(label, "pslite.bench.own:Peer", transport="tcp")
        if peer is None:
            return
        bench.progress.show(f"{rows // 10**6} M rows fill")
        begun = {"rows": rows, "beside": rows, "dim": dim}
        pushes = peer.ask("grow", 4 * SECONDS_PER_CALL, rows=rows, dim=dim, optimizer="adagrad")
        bench.results.add(bench.workload, "worst push", label, "s", begun, [max(pushes)])
        bench.results.add(bench.workload, "fill", label, "s", begun, [sum(pushes)])
        for op in OPS:
            _small_and_large(bench, op, rows, TablePeer(label, [peer]))
        peer.close()


def _small_and_large(bench: Bench, op: str, rows: int, peer: TablePeer) -> None:
    """The same calls on a table of the usual size and on the large one, in turn."""
    figures = {}
    cases = {}
    for size in (bench.sizes.rows, rows):
        case = TableCase(op=op, count=EFFICIENT, dim=8, optimizer="adagrad", rows=size)
        name = f"{size} rows"
        cases[name] = case

        def rate(number: int, case: TableCase = case) -> float:
            if number == 0:
                peer.calibrate(case, bench.sizes.seconds)
                return 0.0
            return peer.rate(case, number)

        figures[name] = rate
    for name, rates in bench.rounds(figures).items():
        sized = cases[name].to_dict() | {"beside": rows}
        bench.results.add(bench.workload, op, peer.label, "keys/s", sized, rates)


def _close(*peers: Driven | TablePeer | None) -> None:
    for peer in peers:
        if peer is not None:
            peer.close()


WORKLOADS = [
    Workload(
        "tables",
        "pull, push, push + pull of many keys, against all peers",
        tables,
        shares_peers=True,
    ),
    Workload(
        "latency",
        "one key there and back, against a bare pyzmq round trip",
        latency,
        shares_peers=True,
    ),
    Workload("repeats", "the same keys in each call, against new ones", repeats, "full"),
    Workload("dense", "arrays of some MB, against bare pyzmq", dense),
    Workload("scale", "2 servers + 2 workers against 1 + 1", scale, "full"),
    Workload("efficiency", "the parts of a large request over the whole of it", efficiency),
    Workload("stages", "where the time of a request goes", stages),
    Workload("lookups", "the index by itself", lookups),
    Workload("optimisers", "optimiser kernels against NumPy", optimisers),
    Workload("start", "imports, --help, a server", start),
    Workload("growth", "tables of 50 and 100 million rows", growth, "large"),
]
