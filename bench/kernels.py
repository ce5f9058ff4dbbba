"""The kernels beside the NumPy code they replace, on this machine.

    python bench/kernels.py
    python bench/kernels.py --keys 10000 --rows 5000000 --dim 8

Each line is the best of some runs: rows or keys a second in millions, ours and NumPy's, and how
many times ours is. Both work on the same arrays; compiling is not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kv.global_norm import GlobalNorm
from kv.kernels import merge, rows, slots
from kv.kernels.jit import frozen
from kv.kernels.updates import update_of
from kv.optimizers import Adagrad, Optimizer, RMSprop, by_name
from kv.placement import SlotMap, slot_of
from kv.spec import TableSpec
from kv.store import arena
from kv.store.formats import format_of, stride_of
from kv.store.index import Index
from pslite.bench.formulas import FORMULAS

Case = tuple[str, Callable[[], Any], Callable[[], Any]]


def best(call: Callable[[], Any], runs: int) -> float:
    """Seconds of the fastest of `runs` calls, after one that is not counted."""
    call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def key_cases(rng: np.random.Generator, count: int, size: int) -> Iterator[Case]:
    """Lists of keys: merged, split by server, found."""
    owner = SlotMap.even(8).owner
    lists = {
        "hashed, 30 % repeat": rng.choice(
            rng.integers(0, 2**64, int(1.4 * count), np.uint64), count
        ),
        "zipf 1.2": rng.zipf(1.2, count).astype(np.uint64) % np.uint64(10**6),
    }
    for kind, listed in lists.items():
        keys = frozen(listed)
        yield (
            f"merge keys ({kind})",
            lambda k=keys: merge.merge_keys(k),
            lambda k=keys: np.unique(k, return_inverse=True),
        )
    out = [np.empty(count, np.uint16), np.empty(8, np.int64), np.empty(8, np.int64)]
    order = np.empty(count, np.int64)
    yield (
        "group keys by 8 servers",
        lambda: slots.group_by_owner(keys, owner, *out, order),
        lambda: np.argsort(owner[slot_of(keys)], kind="stable"),
    )
    known = np.unique(rng.integers(0, 2**64, size, np.uint64))
    index, table = Index(capacity=known.size), {key: i for i, key in enumerate(known.tolist())}
    index.add(frozen(known), np.arange(known.size))
    wanted = frozen(rng.choice(known, count))
    yield (
        "find rows of keys (dict)",
        lambda: index.find(wanted),
        lambda: np.fromiter(map(table.__getitem__, wanted.tolist()), np.int64, wanted.size),
    )


def row_cases(rng: np.random.Generator, count: int, size: int, dim: int) -> Iterator[Case]:
    """Rows scattered over an arena: read, summed, updated."""
    grads = frozen(rng.standard_normal((count, dim)).astype(np.float32))
    data = filled(size, 2 * dim)
    chosen = rng.permutation(size)[:count]
    out = np.empty((count, dim), np.float32)
    yield "gather rows", lambda: rows.gather(data, chosen, out), lambda: data[chosen, :dim]
    places = rng.integers(0, count, count)
    sums = np.zeros((count, dim), np.float32)
    yield (
        "sum rows of equal keys",
        lambda: merge.add_rows(sums, places, grads),
        lambda: np.add.at(sums, places, grads),
    )
    bits = grads.reshape(-1).view(np.uint32)
    yield (
        "look for NaN",
        lambda: merge.first_not_finite(bits),
        lambda: np.isfinite(grads).all(),
    )
    yield from update_cases(size, dim, chosen, grads)
    yield from care_cases(size, dim, chosen, grads)
    yield from half_cases(size, dim, chosen, grads)


def update_cases(size: int, dim: int, chosen: np.ndarray, grads: np.ndarray) -> Iterator[Case]:
    """One optimiser step on scattered rows, and the same with fancy indexing."""
    for name, formula in FORMULAS.items():
        optimizer = optimizer_called(name)
        update = update_of(optimizer)
        data = filled(size, dim + optimizer.state_floats(dim))
        weights, steps = filled(size, dim)[:, :dim], filled(size, 1)
        state = [filled(size, dim)[:, :dim] for _ in range(formula.arrays)]
        yield (
            f"{name.replace('_', ' ')} step",
            lambda u=update, d=data: u(d, dim, chosen, grads, 0),
            lambda f=formula, w=weights, s=state, n=steps: f.step(w, s, n, chosen, grads),
        )


def care_cases(size: int, dim: int, chosen: np.ndarray, grads: np.ndarray) -> Iterator[Case]:
    """Adagrad with what may be done before and after a step."""
    formula, data = FORMULAS["adagrad"], filled(size, 2 * dim)
    weights, state = filled(size, dim)[:, :dim], [filled(size, dim)[:, :dim]]

    def in_numpy(value: float, norm: float, bound: float) -> None:
        g = np.clip(grads, -value, value)
        lengths = np.sqrt((g * g).sum(axis=1, keepdims=True))
        g = g * np.minimum(np.float32(1), norm / lengths)
        formula.step(weights, state, None, chosen, g)
        weights[chosen] = np.clip(weights[chosen], -bound, bound)

    inf = np.inf
    for what, settings, limits in (
        ("clipped by value", {"clip_value": 1.0}, (1.0, inf, inf)),
        ("clipped by norm", {"clip_norm": 1.0}, (inf, 1.0, inf)),
        ("within bounds", {"weight_bounds": (-1.0, 1.0)}, (inf, inf, 1.0)),
    ):
        update = update_of(Adagrad(**settings))
        yield (
            f"adagrad step {what}",
            lambda u=update: u(data, dim, chosen, grads, 0),
            lambda of=limits: in_numpy(*of),
        )
    norm = GlobalNorm(Adagrad(clip_global_norm=1.0), is_whole=False)
    yield "norm of all rows", lambda: norm.scale(grads), lambda: np.linalg.norm(grads)


def optimizer_called(name: str) -> Optimizer:
    """The optimiser of a formula in NumPy."""
    return RMSprop(momentum=0.9) if name == "rmsprop_momentum" else by_name(name)


def half_cases(size: int, dim: int, chosen: np.ndarray, grads: np.ndarray) -> Iterator[Case]:
    """Adagrad on float16 rows, and the same in NumPy (which rounds to nearest)."""
    rows = format_of(TableSpec.sparse("t", dim, optimizer=Adagrad(), storage="float16"))
    data, keys = filled(size, rows.floats), frozen(np.arange(chosen.size, dtype=np.uint64))
    halves = data.view(np.float16)
    out = np.empty((chosen.size, dim), np.float32)
    rate, eps = np.float32(0.01), np.float32(1e-8)

    def in_numpy() -> None:
        weights = halves[chosen, :dim].astype(np.float32)
        state = data[chosen, rows.state_at : rows.floats]
        state += grads * grads
        weights -= rate * grads / (np.sqrt(state) + eps)
        data[chosen, rows.state_at : rows.floats] = state
        halves[chosen, :dim] = weights

    yield (
        "gather float16 rows",
        lambda: rows.gather(data, chosen, out),
        lambda: halves[chosen, :dim].astype(np.float32),
    )
    yield "adagrad step on float16", lambda: rows.update(data, keys, chosen, grads, 0), in_numpy


def filled(size: int, floats: int) -> np.ndarray:
    """An arena of `size` rows as a store has it, every page touched."""
    data = arena.reserve((size, stride_of(floats)), np.float32)
    data[:] = 0.01
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000, help="keys or rows of one call")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument(
        "--dim", type=int, nargs="*", default=[8, 16, 32, 64], help="floats of a row"
    )
    parser.add_argument("--runs", type=int, default=7, help="runs, of which the best counts")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    if chosen.keys > chosen.rows:
        parser.error(f"--keys {chosen.keys} are more than --rows {chosen.rows}")

    def show(cases: Iterator[Case], dim: str) -> None:
        for name, ours, in_numpy in cases:
            mine, theirs = best(ours, chosen.runs), best(in_numpy, max(2, chosen.runs // 3))
            rates = (chosen.keys / seconds / 1e6 for seconds in (mine, theirs))
            print("{:36s}{:>4s} {:9.1f} {:9.1f} {:7.1f}".format(name, dim, *rates, theirs / mine))

    print(f"{chosen.keys} keys, {chosen.rows} rows, seed {chosen.seed}; millions a second")
    print(f"{'':36s}{'dim':>4s} {'ours':>9s} {'NumPy':>9s} {'times':>7s}")
    show(key_cases(rng, chosen.keys, chosen.rows), "")
    for dim in chosen.dim:
        show(row_cases(rng, chosen.keys, chosen.rows, dim), str(dim))


if __name__ == "__main__":
    main()
