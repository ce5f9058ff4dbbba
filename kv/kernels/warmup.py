"""Compile every kernel before the first request, or load it from the cache.

A kernel compiles at its first call, which takes up to a second: a server warms up before it says
that it is ready, and the launcher before it starts servers, which would otherwise all compile the
same at once. The arguments here have the types used in production, read-only inputs included;
`signatures` lets a test see that production adds none.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from kv.kernels import (
    batches,
    bloom,
    delay,
    deltas,
    digest,
    gradients,
    halves,
    merge,
    records,
    rows,
    slots,
    sums,
    tiers,
    transfer,
    updates,
)
from kv.kernels import hash as index
from kv.kernels.jit import frozen
from kv.optimizers import Optimizer, RMSprop

MODULES = (
    *("hash", "records", "tiers", "bloom", "merge", "rows", "slots", "jit", "sums", "halves"),
    *(
        "deltas",
        "digest",
        "transfer",
        "batches",
        "gradients",
        "sgd",
        "momentum",
        "adagrad",
        "rowwise",
    ),
    *("adam", "rmsprop", "adadelta", "ftrl", "delay"),
    *("quantise", "onebit", "topk", "residuals"),  # called first by kv.compression.rehearsal
)


def warm_up(dim: int, optimizer: Optimizer) -> None:
    """Call each kernel that a table of `dim` floats with `optimizer` uses."""
    keys = frozen(np.array([7, 0, 2**64 - 1, 7], np.uint64))
    _warm_slots()
    grads = frozen(np.ones((keys.size, dim), np.float32))
    merge.first_not_finite(grads.reshape(-1).view(np.uint32))
    unique, inverse = merge.merge_keys(keys)
    assert inverse is not None
    merge.settle(keys, np.uint64(2), np.array([1, 0, 3, 2], np.uint64))
    merged = np.full((unique.size, dim), -0.0, np.float32)
    merge.add_rows(merged, inverse, grads)
    _warm_sums(inverse, grads)
    _warm_rows(frozen(unique), frozen(merged), _warm_index(frozen(unique)), optimizer)
    out = np.empty((keys.size, dim), np.float32)
    rows.expand(frozen(merged), inverse, out)
    _warm_requests(frozen(unique), frozen(merged))


def signatures() -> dict[str, int]:
    """How many argument types each kernel has been compiled for, by name."""
    found: dict[str, int] = {}
    for name in MODULES:
        module: Any = sys.modules.get(f"kv.kernels.{name}")
        for function in vars(module).values() if module else ():
            if hasattr(function, "signatures") and hasattr(function, "py_func"):
                found[function.py_func.__name__] = len(function.signatures)
    return found


def _warm_slots() -> None:
    keys = frozen(np.zeros(1, np.uint64))
    slots.slots_of(keys, np.empty(1, np.uint16))
    owner = frozen(np.zeros(1024, np.uint16))
    counts, starts, order = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.int64)
    slots.group_by_owner(keys, owner, np.empty(1, np.uint16), counts, starts, order)


def _warm_requests(keys: Any, values: Any) -> None:
    """What workers and servers do to lists and values on their way; keys increase."""
    digest.digest(keys, np.uint64(1))
    widths = np.empty(1, np.uint8)
    coded = np.empty(deltas.measure(keys, widths), np.uint8)
    deltas.write(keys, widths, coded)
    deltas.read(keys[0], frozen(widths), frozen(coded), np.empty(keys.size, np.uint64))
    bits, out = values.view(np.uint32), np.empty(values.shape, np.uint32)
    order, out_keys = np.arange(keys.size), np.empty(keys.size, np.uint64)
    transfer.copy_finite(bits.reshape(-1), out.reshape(-1))
    transfer.gather_pairs(keys, bits, order, out_keys, out)
    transfer.take_keys(keys, order, out_keys)
    transfer.pack_blocks(bits.reshape(-1), order, out)
    transfer.unpack_blocks(values, order, np.empty(values.size, np.float32))


def _warm_index(keys: Any) -> Any:
    """Rows 0, 1, … of `keys`, by way of an index that begins to grow."""
    entries, where = np.zeros(1024, np.uint64), np.array([0, 26, 256, 26, 0, 1], np.uint64)
    records, cold = np.zeros((keys.size, 3), np.uint64), np.zeros((1, 3), np.uint64)
    found, rows = np.empty(keys.size, np.int64), np.arange(keys.size)
    index.insert(entries, where, records, keys, rows)
    index.move(entries, where, 1)
    index.lookup(entries, where, records, cold, keys, found)
    index.lookup_and_note(entries, where, records, cold, keys, found, 1, 1, 1, 0.0)
    index.redirect(entries, where, keys, rows, rows)
    index.delete(entries, where, records, cold, keys, found)
    return found


def _warm_records(keys: Any, found: Any, data: Any) -> None:
    """What the store does beside the optimiser: records, tiers, admission."""
    of_rows = np.ones((keys.size, 3), np.uint64)
    records.begin(of_rows, found, 1, 1)
    records.see(of_rows, found, 1, 1, 1, 0.0)
    records.add_shows(of_rows, found, frozen(np.ones(found.size, np.float32)))
    records.expired(of_rows, 0, 1, 1, 0.0, 1, 0.0, np.empty(1, np.int64))
    marks, words = np.ones(found.size, np.uint8), data.view(np.uint32)
    on_disk = np.zeros((found.size, words.shape[1] + 6), np.uint32)
    tiers.mark(marks, found, tiers.USED)
    tiers.choose(marks, of_rows, found.size, 0, np.empty(1, np.int64))
    tiers.spill(words, of_rows.view(np.uint32), found, on_disk, found)
    tiers.fetch(words, of_rows.view(np.uint32), found, on_disk, found)
    _warm_batches(words, of_rows, found)
    counters = np.zeros(64, np.uint8)
    bloom.sight(counters, np.uint64(1), keys, np.empty(keys.size, np.uint8))
    bloom.halve(counters)


def _warm_batches(words: Any, of_rows: Any, found: Any) -> None:
    """Whole rows out of a store and into one."""
    out, versions = np.empty((found.size, 1), np.uint32), np.ones(found.size, np.int64)
    shows, seen = np.ones(found.size, np.uint32), np.ones(found.size, np.uint32)
    batches.take_batch(words, of_rows, found, 0, out, versions, shows, seen)
    columns = frozen(out), frozen(versions), frozen(shows), frozen(seen)
    batches.put_batch(words, of_rows, found, *columns)


def _warm_rows(keys: Any, values: Any, found: Any, optimizer: Optimizer) -> None:
    dim = values.shape[1]
    stride = dim + optimizer.state_floats(dim)
    data, out = np.zeros((keys.size, stride), np.float32), np.empty(values.shape, np.float32)
    rows.initialize(data, found, keys, dim, rows.CONSTANT, 0.0, 0.0, np.uint64(0))
    rows.reset_state(data, found, dim, np.float32(0))
    rows.scatter(data, found, values)
    rows.gather(data, found, out)
    rows.gather_or_zero(data, found, out)
    _warm_records(keys, found, data)
    _warm_halves(data, found, keys, values, out)
    gradients.clipped_total(values, np.float32(1), np.float32(1))
    gradients.clip_rows(values, np.float32(1), np.float32(1), out)
    delay.compensate(data, dim, found, values, values, np.float32(1), out)
    for variant in _variants(optimizer):
        update = updates.update_of(variant, is_whole=True)
        wide = np.zeros((keys.size, dim + variant.state_floats(dim)), np.float32)
        update(wide, dim, found, values, 0)


def _variants(optimizer: Optimizer) -> Iterator[Optimizer]:
    """The settings of `optimizer` that call other kernels."""
    yield optimizer
    yield dataclasses.replace(optimizer, clip_norm=1e-9, weight_bounds=(-1.0, 1.0))
    if isinstance(optimizer, RMSprop):
        yield dataclasses.replace(optimizer, momentum=0.0 if optimizer.momentum else 0.9)


def _warm_halves(data: Any, found: Any, keys: Any, values: Any, out: Any) -> None:
    dim = values.shape[1]
    halves.scatter_halves(data, found, values)
    halves.gather_halves(data, found, out)
    halves.gather_halves_or_zero(data, found, out)
    halves.take_rows(data, found, dim, out)
    halves.put_rows(data, found, keys, dim, out, np.uint64(0), np.uint64(0))


def _warm_sums(places: Any, grads: Any) -> None:
    out = np.zeros((places.size, grads.shape[1]), np.float32)
    sums.add_scaled_rows(out, places, grads, np.float32(1))
    sums.keep_longest(out, np.zeros(places.size), places, grads)
