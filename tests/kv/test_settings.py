"""Optimisers and initialisers by name, over the wire, and wrongly set."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest

from kv import initializers, optimizers
from kv.errors import SettingError
from kv.initializers import Constant, He, Initializer, Normal, Uniform, Xavier, Zeros, table_seed
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer

ALL = [
    SGD(lr=0.5),
    Momentum(lr=0.1, momentum=0.5),
    Nesterov(),
    Adagrad(lr=0.05, initial_accumulator=0.1),
    Adam(beta1=0.5),
    Zeros(),
    Constant(2.0),
    Uniform(-1, 1),
    Normal(0.1, 3.0),
    Xavier(10, 20),
    He(30),
]


@pytest.mark.parametrize("setting", ALL, ids=lambda s: s.name)
def test_settings_survive_travelling(setting: Optimizer | Initializer) -> None:
    family = Optimizer if isinstance(setting, Optimizer) else Initializer

    arrived = family.from_dict(msgpack.unpackb(msgpack.packb(setting.to_dict())))

    assert arrived == setting
    assert type(arrived) is type(setting)


def test_a_setting_travels_under_its_name() -> None:
    assert Adagrad(lr=0.05).to_dict() == {
        "name": "adagrad",
        "lr": 0.05,
        "eps": 1e-10,
        "initial_accumulator": 0.0,
    }


def test_names_are_found_in_any_case_and_numbers_read_from_text() -> None:
    assert optimizers.by_name("Adagrad", lr="0.05") == Adagrad(lr=0.05)
    assert optimizers.by_name("nesterov", momentum=0.5) == Nesterov(momentum=0.5)
    assert initializers.by_name("HE", fan_in=3) == He(3.0)


def test_equal_numbers_mean_equal_settings_but_names_count() -> None:
    assert SGD(lr=1) == SGD(lr=1.0)
    assert Momentum(0.1, 0.9) != Nesterov(0.1, 0.9)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optimizers.by_name("adagard"), "did you mean adagrad"),
        (lambda: optimizers.by_name("xyzzy"), "known are sgd, momentum, nesterov, adagrad, adam"),
        (lambda: optimizers.by_name("adagrad", lrr=0.1), "adagrad: unknown setting 'lrr'; did you"),
        (lambda: initializers.by_name("zeros", low=1), "zeros: unknown setting 'low'; it has none"),
        (lambda: initializers.by_name("xavier", fan_in=1), "xavier: fan_out must be given"),
        (lambda: Optimizer.from_dict({"lr": 0.1}), "a name is missing"),
        (lambda: Optimizer.from_dict(None), "a name is missing"),
        (lambda: SGD(lr=-1), "sgd: lr must be 0 or more, not -1.0"),
        (lambda: SGD(lr=float("nan")), "lr must be a finite number, not nan"),
        (lambda: SGD(lr=1e39), "lr must be a finite number"),
        (lambda: SGD(lr=True), "lr must be a finite number, not True"),
        (lambda: SGD(lr="fast"), "lr must be a finite number, not 'fast'"),
        (lambda: Momentum(momentum=1.0), "momentum must be in"),
        (lambda: Adagrad(eps=0), "eps must be 2e-38 or more"),
        (lambda: Adagrad(initial_accumulator=-1), "initial_accumulator must be 0 or more"),
        (lambda: Adam(beta1=1), "adam: beta1 must be in"),
        (lambda: Adam(beta2=-0.1), "beta2 must be in"),
        (lambda: Adam(eps=0.0), "eps must be"),
        (lambda: Uniform(2, 1), "uniform: low must be at most high = 1.0, not 2.0"),
        (lambda: Normal(std=-1), "std must be 0 or more"),
        (lambda: Xavier(0, 1), "fan_in must be above 0"),
        (lambda: He(0), "fan_in must be above 0"),
    ],
)
def test_a_wrong_setting_is_named(make, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        make()

    assert text in str(caught.value)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SGD().lr = 1.0


@pytest.mark.parametrize(
    ("optimizer", "floats"),
    [(SGD(), 0), (Momentum(), 8), (Nesterov(), 8), (Adagrad(), 8), (Adam(), 17)],
)
def test_state_has_its_size(optimizer: Optimizer, floats: int) -> None:
    assert optimizer.state_floats(8) == floats


def test_seeds_of_tables_never_change() -> None:
    assert table_seed(0, "user") == 6994368000236270946
    assert table_seed(0, "user") != table_seed(1, "user") != table_seed(1, "item")
