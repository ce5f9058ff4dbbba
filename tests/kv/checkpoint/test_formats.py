"""Files, manifests, states and plans: what is written is what is read, and nothing else is."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.loading import is_renewed
from kv.checkpoint.manifest import (
    FileEntry,
    Manifest,
    ServerShard,
    TablePart,
    ranges_of_slots,
    slots_of_ranges,
)
from kv.checkpoint.plan import FIRST, Plan
from kv.checkpoint.rowfile import RowWriter, read_blocks
from kv.checkpoint.state import pack_state, unpack_state
from kv.errors import KVError
from kv.placement import NUM_SLOTS
from kv.spec import TableSpec
from kv.store.rows import RowBatch
from van.errors import ConfigError


def batch_of(rng: np.random.Generator, count: int, width: int) -> RowBatch:
    return RowBatch(
        np.unique(rng.integers(0, 2**64, count, dtype=np.uint64))[:count],
        rng.integers(0, 256, (count, width), dtype=np.uint8),
        rng.integers(1, 2**62, count),
        rng.integers(0, 2**32, count, dtype=np.uint32),
        rng.integers(0, 2**32, count, dtype=np.uint32),
    )


def written(seed: int, sizes: list[int]) -> tuple[bytes, list[Any]]:
    rng, file = np.random.default_rng(seed), io.BytesIO()
    writer, blocks = RowWriter(file), []
    for number, size in enumerate(sizes):
        batch = batch_of(rng, size, 4 * (seed % 7 + 1))
        block: Any = batch if number % 2 == 0 else batch.keys
        writer.put(batch) if number % 2 == 0 else writer.remove(batch.keys)
        if size:
            blocks.append(block)
    return file.getvalue(), blocks


@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(0, 9), max_size=5))
def test_blocks_come_back_as_they_were(seed: int, sizes: list[int]) -> None:
    data, blocks = written(seed, sizes)

    found = list(read_blocks(io.BytesIO(data), len(data)))

    assert len(found) == len(blocks)
    for block, same in zip(found, blocks, strict=True):
        mine = block.columns() if isinstance(block, RowBatch) else [block]
        yours = same.columns() if isinstance(same, RowBatch) else [same]
        for column, other in zip(mine, yours, strict=True):
            np.testing.assert_array_equal(column, other)


@given(seed=st.integers(0, 99), place=st.floats(0, 1), bit=st.integers(0, 7), cut=st.booleans())
def test_a_file_that_was_altered_or_cut_is_refused(
    seed: int, place: float, bit: int, cut: bool
) -> None:
    data, _ = written(seed, [5, 3])
    where = min(int(place * len(data)), len(data) - 1)
    harmed = bytearray(data)
    harmed[where] ^= 1 << bit
    wrong = data[:where] if cut else bytes(harmed)

    refused, found = refusal_of(wrong, len(data))

    if not refused:  # only what nobody reads was altered: a head's padding, the width of removals
        assert not cut
        assert [b.nbytes for b in found] == [b.nbytes for b in written(seed, [5, 3])[1]]


def refusal_of(data: bytes, nbytes: int) -> tuple[str, list[Any]]:
    """Why a file is refused, or what is in it."""
    try:
        return "", list(read_blocks(io.BytesIO(data), nbytes))
    except ValueError as error:
        return str(error), []


def manifest_of(**changed: Any) -> Manifest:
    spec = TableSpec.sparse("ids", 4).resolved("async", 1)
    half = NUM_SLOTS // 2
    shards = [
        ServerShard(
            rank,
            [[first, last]],
            [3],
            {"ids": TablePart(7, 0.1, [5], 9)},
            [FileEntry(f"s{rank}", 10, "00", "ids", 0, 9, 0)],
            True,
        )
        for rank, first, last in ((0, 0, half - 1), (1, half, NUM_SLOTS - 1))
    ]
    values: dict[str, Any] = {
        "name": "ckpt-000001",
        "number": 1,
        "kind": "full",
        "base": None,
        "mode": "step",
        "created": "2025-01-01T00:00:00+00:00",
        "steps": [3],
        "specs": [spec.to_dict()],
        "servers": shards,
    }
    return Manifest(**{**values, **changed})


def test_a_manifest_comes_back_as_it_was() -> None:
    manifest = manifest_of(note={"rows": 7})

    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"servers": manifest_of().servers[:1]}, "slot 512 is in 0 of its servers' shares"),
        ({"servers": manifest_of().servers * 2}, "slot 0 is in 2"),
        ({"specs": []}, "server 0 has an extra table ids"),
        (
            {"specs": [*manifest_of().specs, TableSpec.sparse("more", 2).to_dict()]},
            "server 0 lacks table more",
        ),
    ],
)
def test_a_manifest_that_lacks_a_part_says_which(changed: dict[str, Any], problem: str) -> None:
    manifest = manifest_of(**changed)

    with pytest.raises(ValueError, match=problem):
        Manifest.from_bytes(manifest.to_bytes())


@given(st.lists(st.integers(0, NUM_SLOTS - 1), max_size=40))
def test_slots_are_written_as_ranges(numbers: list[int]) -> None:
    slots = np.zeros(NUM_SLOTS, np.bool_)
    slots[numbers] = True

    np.testing.assert_array_equal(slots_of_ranges(ranges_of_slots(slots)), slots)


def test_a_state_comes_back_with_its_arrays() -> None:
    state = {
        "position": [1, 2],
        "rng": np.arange(5, dtype=np.uint8),
        "deep": [{"x": np.ones((2, 3), np.float32)}, None, b"bytes", 1.5, True],
        "one": np.int64(7),
    }

    found = unpack_state(pack_state(state))

    np.testing.assert_array_equal(found["rng"], state["rng"])
    np.testing.assert_array_equal(found["deep"][0]["x"], np.ones((2, 3)))
    assert (found["position"], found["one"], found["deep"][1:]) == (
        [1, 2],
        7,
        [None, b"bytes", 1.5, True],
    )
    with pytest.raises(KVError, match="cannot hold this state"):
        pack_state({"function": print})


@given(every=st.integers(1, 50), start=st.integers(0, 200))
def test_a_plan_by_steps_saves_at_multiples(every: int, start: int) -> None:
    plan = Plan(every, 0.0, start, 0.0)

    saved = [
        step
        for step in range(start + 1, start + 4 * every + 1)
        if step >= plan.meeting and plan.decide(step, 0.0)
    ]

    assert saved == [s for s in range(start + 1, start + 4 * every + 1) if s % every == 0]


@given(
    every=st.floats(0.5, 100),
    seconds=st.lists(st.floats(1e-3, 2), min_size=200, max_size=200),
)
def test_a_plan_by_time_saves_soon_after_it_is_due_and_meets_seldom(
    every: float, seconds: list[float]
) -> None:
    plan, now, saved, meetings = Plan(0, every, 0, 0.0), 0.0, 0.0, 0
    longest = max(seconds)
    for step, second in enumerate(seconds, 1):
        now += second
        if step < plan.meeting:
            continue
        meetings += 1
        if plan.decide(step, now):
            assert now >= saved + every
            saved = now
        elif plan.meeting - step == 1:
            assert now < saved + every
    assert meetings <= len(seconds)
    assert plan.meeting > len(seconds) or now - saved <= every + 5 * FIRST * longest * 200


def test_steady_steps_are_saved_on_time_with_few_meetings() -> None:
    plan, saved, meetings = Plan(0, 60.0, 0, 0.0), [], 0
    for step in range(1, 40_001):
        now = step * 0.01
        if step < plan.meeting:
            continue
        meetings += 1
        if plan.decide(step, now):
            saved.append(now)

    assert len(saved) == 6
    assert all(59.999 <= gap < 61 for gap in np.diff([0, *saved]))
    assert meetings < 50


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"keep": -1}, "keep"),
        ({"every": -1.0}, "every"),
        ({"every": float("nan")}, "every"),
        ({"full_every": 0}, "full_every"),
        ({"kind": "blurred"}, "kind"),
        ({"resume": ""}, "resume"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CheckpointConfig(**settings)
    assert raised.value.key == key


def test_a_folder_without_a_time_is_named() -> None:
    with pytest.raises(ConfigError, match="every or every_steps"):
        CheckpointConfig(dir="x").require_times()


def test_what_a_server_wrote_before_it_was_gone_does_not_count_any_more() -> None:
    first = manifest_of()
    shards = [replace(shard, is_full=False) for shard in first.servers]
    taken_over = replace(first.servers[0], slots=[[0, NUM_SLOTS - 1]])
    goes_on = manifest_of(name="ckpt-000002", kind="incremental", base=first.name, servers=shards)
    alone = manifest_of(
        name="ckpt-000003", kind="incremental", base=goes_on.name, servers=[taken_over]
    )

    assert [is_renewed(rank, first, [first, goes_on]) for rank in (0, 1)] == [False, False]
    assert [is_renewed(rank, first, [first, goes_on, alone]) for rank in (0, 1)] == [True, True]
    assert not is_renewed(0, alone, [first, goes_on, alone])
