"""Optimisers and initialisers by name, over the wire, and wrongly set."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest

from kv import initializers, optimizers
from kv.errors import SettingError
from kv.initializers import Constant, He, Initializer, Normal, Uniform, Xavier, Zeros, table_seed
from kv.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    Optimizer,
    RMSprop,
    RowwiseAdagrad,
)
from kv.schedules import (
    ConstantRate,
    CosineDecay,
    ExponentialDecay,
    InverseSqrt,
    LinearDecay,
    Schedule,
    StepDecay,
    Warmup,
)
from kv.settings import Named

ALL = [
    SGD(lr=0.5),
    Momentum(lr=0.1, momentum=0.5),
    Nesterov(),
    Adagrad(lr=0.05, initial_accumulator=0.1),
    Adagrad(clip_global_norm=5.0, weight_bounds=(-1, 0.5)),
    SGD(weight_bounds=(0, None)),
    Adam(beta1=0.5),
    AdamW(weight_decay=0.2),
    RowwiseAdagrad(eps=1e-8),
    RMSprop(momentum=0.9),
    Adadelta(rho=0.5),
    FTRL(l1=1.0, l2=0.1, clip_value=5.0),
    SGD(clip_norm=1, schedule=Warmup(10, then=CosineDecay(100, end=0.1))),
    ConstantRate(0.5),
    StepDecay(30),
    ExponentialDecay(100, 0.9),
    LinearDecay(10),
    InverseSqrt(4000),
    Zeros(),
    Constant(2.0),
    Uniform(-1, 1),
    Normal(0.1, 3.0),
    Xavier(10, 20),
    He(30),
]


@pytest.mark.parametrize("setting", ALL, ids=str)
def test_settings_survive_travelling(setting: Named) -> None:
    (family,) = (f for f in (Optimizer, Initializer, Schedule) if isinstance(setting, f))

    arrived = family.from_dict(msgpack.unpackb(msgpack.packb(setting.to_dict())))

    assert arrived == setting
    assert type(arrived) is type(setting)


def test_a_setting_travels_under_its_name() -> None:
    assert Adagrad(lr=0.05).to_dict() == {
        "name": "adagrad",
        "lr": 0.05,
        "weight_decay": 0.0,
        "clip_value": 0.0,
        "clip_norm": 0.0,
        "clip_global_norm": 0.0,
        "weight_bounds": None,
        "schedule": None,
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


def test_none_and_zero_both_mean_off() -> None:
    assert SGD(weight_decay=None, clip_value=None, clip_norm=None) == SGD()


def test_an_optimizer_shows_as_the_call_that_makes_it() -> None:
    warm = SGD(0.1, clip_norm=2, schedule=Warmup(5))

    assert repr(SGD(0.1)) == "SGD(lr=0.1)"
    assert repr(warm) == (
        "SGD(lr=0.1, clip_norm=2.0, schedule=Warmup(steps=5.0, start=0.1, then=None))"
    )
    assert eval(repr(warm)) == warm


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optimizers.by_name("adagard"), "did you mean adagrad"),
        (lambda: optimizers.by_name("xyzzy"), "known are sgd, momentum, nesterov, adagrad, row"),
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
        (lambda: SGD(clip_global_norm=-1), "clip_global_norm must be 0 or more"),
        (lambda: SGD(weight_bounds=(1, -1)), "weight_bounds must be (low, high) with low below"),
        (lambda: SGD(weight_bounds=(0, 1, 2)), "weight_bounds must be two numbers"),
        (lambda: SGD(weight_bounds="01"), "weight_bounds must be two numbers"),
        (lambda: SGD(weight_bounds=(0, "x")), "weight_bounds must be a finite number, not 'x'"),
        (lambda: Adagrad(initial_accumulator=-1), "initial_accumulator must be 0 or more"),
        (lambda: SGD(weight_decay=-1), "sgd: weight_decay must be 0 or more"),
        (lambda: Adam(clip_value=-1), "adam: clip_value must be 0 or more"),
        (lambda: FTRL(clip_norm="x"), "ftrl: clip_norm must be a finite number"),
        (lambda: SGD(schedule=0.5), "sgd: schedule must be one of kv.schedules, not 0.5"),
        (lambda: SGD(schedule={"name": "cosin"}), "schedule: unknown name 'cosin'; did you mean"),
        (lambda: SGD(schedule={"name": "cosine"}), "schedule cosine: steps must be given"),
        (lambda: RMSprop(rho=1), "rmsprop: rho must be in"),
        (lambda: Adadelta(eps=0), "adadelta: eps must be"),
        (lambda: FTRL(l1=-1), "ftrl: l1 must be 0 or more"),
        (lambda: FTRL(beta=-1), "ftrl: beta must be 0 or more"),
        (lambda: StepDecay(0), "schedule step: steps must be above 0"),
        (lambda: ExponentialDecay(1, 0), "exponential: rate must be in (0, 1]"),
        (lambda: Warmup(5, then=SGD()), "warmup: then must be one of kv.schedules"),
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
    [
        (SGD(), 0),
        (Momentum(), 8),
        (Nesterov(), 8),
        (Adagrad(), 8),
        (RowwiseAdagrad(), 1),
        (Adam(), 17),
        (AdamW(), 17),
        (RMSprop(), 8),
        (RMSprop(momentum=0.1), 16),
        (Adadelta(), 16),
        (FTRL(), 16),
    ],
)
def test_state_has_its_size(optimizer: Optimizer, floats: int) -> None:
    assert optimizer.state_floats(8) == floats


def test_seeds_of_tables_never_change() -> None:
    assert table_seed(0, "user") == 6994368000236270946
    assert table_seed(0, "user") != table_seed(1, "user") != table_seed(1, "item")
