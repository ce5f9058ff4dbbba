"""Definitions of tables, and dense arrays cut into blocks."""

from __future__ import annotations

import dataclasses
import math

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.consistency.settings import Async
from kv.errors import SettingError
from kv.initializers import Normal, Uniform, Zeros
from kv.optimizers import FTRL, SGD, Adagrad, Adam
from kv.placement import SlotMap
from kv.schedules import CosineDecay, Warmup
from kv.spec import BLOCK, TableSpec, block_width, dense_keys

SPECS = [
    TableSpec.sparse("user", 8, optimizer=Adagrad(lr=0.05), initializer=Normal(), seed=3),
    TableSpec.sparse("item", 1, missing="error", mode="sync"),
    TableSpec.dense("w", (144, 64), optimizer=Adam()),
    TableSpec.dense("scalar", ()),
    TableSpec.sparse(
        "half",
        3,
        optimizer=FTRL(l1=1.0, clip_norm=2.0, schedule=Warmup(10, then=CosineDecay(50))),
        aggregator="weighted_mean",
        storage="float16",
    ),
]
SHAPES = [(), (1,), (16,), (17,), (64, 1), (BLOCK,), (BLOCK + 1,), (3, BLOCK), (7, 11, 1310)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_a_definition_survives_travelling(spec: TableSpec) -> None:
    arrived = TableSpec.from_dict(msgpack.unpackb(msgpack.packb(spec.to_dict())))

    assert arrived == spec
    assert arrived.difference(spec) == ""


def test_a_difference_names_both_sides() -> None:
    here = TableSpec.sparse("user", 8, optimizer=SGD(lr=0.1))
    there = dataclasses.replace(here, dim=16, optimizer=SGD(lr=0.2))

    text = here.difference(there)

    assert text == "dim 8 here, 16 there; optimizer SGD(lr=0.1) here, SGD(lr=0.2) there"


def test_the_jobs_mode_and_seed_fill_what_is_open() -> None:
    open_spec = TableSpec.sparse("a", 1)
    own = TableSpec.sparse("a", 1, mode="sync", seed=4)

    filled = open_spec.resolved("async", 7)

    assert (filled.mode, filled.seed) == (Async(), 7)
    assert own.resolved("async", 7) == own


def test_rows_start_apart_only_where_they_start_by_themselves() -> None:
    assert TableSpec.sparse("a", 4).initializer == Uniform(-0.05, 0.05)
    assert TableSpec.sparse("a", 4, missing="zeros").initializer == Zeros()
    assert TableSpec.dense("a", (4,)).initializer == Zeros()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TableSpec.sparse("", 8), "a name has 1 to 200 characters"),
        (lambda: TableSpec.sparse("a", 0), "table a: dim must be 1 to 1048576, not 0"),
        (lambda: TableSpec.sparse("a", 2.5), "dim must be an integer, not 2.5"),
        (lambda: TableSpec.sparse("a", True), "dim must be an integer, not True"),
        (lambda: TableSpec.sparse("a", 1, missing="ignore"), "missing must be init or zeros or er"),
        (lambda: TableSpec.sparse("a", 1, mode="bsp"), "unknown name 'bsp'"),
        (lambda: TableSpec.sparse("a", 1, aggregator="avg"), "aggregator must be sum or mean or"),
        (lambda: TableSpec.dense("a", (1,), storage="half"), "storage must be float32 or float16"),
        (lambda: TableSpec.sparse("a", 1, optimizer="sgd"), "optimizer must be one of kv.optimi"),
        (lambda: TableSpec.sparse("a", 1, initializer=SGD()), "initializer must be one of kv.ini"),
        (lambda: TableSpec.sparse("a", 1, seed="x"), "seed must be an integer, not 'x'"),
        (lambda: TableSpec("a", kind="wide"), "kind must be sparse or dense"),
        (lambda: TableSpec.dense("a", (3, 0)), "a shape has sides of 1 or more, not (3, 0)"),
        (lambda: TableSpec.dense("a", (2.5,)), "a shape has sides of 1 or more, not (2.5,)"),
        (lambda: TableSpec.dense("a", (2**20, 2**17)), "has over 2^36 numbers"),
        (lambda: TableSpec.dense("a", 5), "a shape has sides of 1 or more, not 5"),
        (lambda: TableSpec("a", "dense", 8, (3,)), "blocks of a dense (3,) have dim 16, not 8"),
        (lambda: TableSpec.from_dict({"name": "a"}), "a definition has the fields"),
        (lambda: TableSpec.from_dict(None), "a definition has the fields"),
        (lambda: TableSpec.from_dict({**SPECS[0].to_dict(), "optimizer": 3}), "a name is missing"),
        (lambda: TableSpec.from_dict({**SPECS[0].to_dict(), "shape": 3}), "a shape has sides"),
    ],
)
def test_a_wrong_definition_is_named(make, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        make()

    assert text in str(caught.value)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_survive_packing_and_the_padding_is_zero(shape: tuple[int, ...]) -> None:
    layout = dense_keys(TableSpec.dense("w", shape))
    size = math.prod(shape)
    array = np.arange(1, size + 1, dtype=np.float32).reshape(shape)

    blocks = layout.pack(array)

    assert blocks.shape == (layout.keys.size, layout.dim)
    assert blocks.flags.c_contiguous
    assert np.count_nonzero(blocks) == size
    unpacked = layout.unpack(blocks)
    assert unpacked.shape == shape
    np.testing.assert_array_equal(unpacked, array)
    assert not np.shares_memory(unpacked, array)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_block_keys_increase_and_belong_to_the_name_alone(shape: tuple[int, ...]) -> None:
    layout = dense_keys(TableSpec.dense("w", shape))
    again = dense_keys(TableSpec.dense("w", shape, optimizer=Adam(), seed=9))
    other = dense_keys(TableSpec.dense("v", shape))

    assert (np.diff(layout.keys.astype(object)) > 0).all()
    assert sorted(layout.blocks.tolist()) == list(range(layout.keys.size))
    np.testing.assert_array_equal(again.keys, layout.keys)
    assert not np.isin(other.keys, layout.keys).any()


@given(st.lists(st.integers(1, 300), max_size=3))
def test_blocks_waste_less_than_one_of_them(shape: list[int]) -> None:
    size, width = math.prod(shape), block_width(tuple(shape))

    count = -(-size // width)

    assert width % 16 == 0
    assert width <= BLOCK
    assert count * width - size < (16 if size <= BLOCK else BLOCK)


def test_many_small_tables_spread_over_servers() -> None:
    keys = [dense_keys(TableSpec.dense(f"bias{i}", (8,))).keys[0] for i in range(400)]

    owners = SlotMap.even(4).owner_of(np.array(keys, np.uint64))

    assert np.bincount(owners, minlength=4).min() > 60
