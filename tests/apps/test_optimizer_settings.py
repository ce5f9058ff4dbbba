"""Optimisers of a model ini as the tables get them."""

from __future__ import annotations

import dataclasses

import pytest

from apps.ctr.modelconf import OPTIMIZERS, ModelConfig, model_config
from apps.ctr.tables import dense_optimizer, embedding_optimizer
from kv.optimizers import FTRL, SGD, Adagrad, AdamW, Nesterov, Optimizer, RMSprop
from kv.schedules import CosineDecay, StepDecay, Warmup
from van.errors import ConfigError


def conf(**optimizer: str) -> ModelConfig:
    return model_config({"optimizer": optimizer})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_made_by_its_name_with_its_own_defaults(name: str) -> None:
    kind = Optimizer.members[name]

    assert dense_optimizer(conf(optimizer=name)) == kind(lr=0.01)


def test_settings_of_an_optimizer_are_read_and_those_of_others_ignored() -> None:
    settings = {"optimizer": "ftrl", "l1": "0.5", "l2": "2", "beta": "0", "momentum": "0.3"}

    found = dense_optimizer(conf(**settings, learning_rate="0.2", clip_value="3"))

    assert found == FTRL(0.2, 0.0, 0.5, 2.0, clip_value=3)


def test_common_settings_reach_both_kinds_of_tables() -> None:
    sections = {
        "optimizer": {"optimizer": "adamw", "weight_decay": "0.2", "clip_norm": "5"},
        "sparse_dict": {"optimizer": "adagrad", "learning_rate": "0.5", "storage": "float16"},
    }

    found = model_config(sections)

    assert dense_optimizer(found) == AdamW(0.01, weight_decay=0.2, clip_norm=5)
    assert embedding_optimizer(found) == Adagrad(0.5, weight_decay=0.2, clip_norm=5)
    assert found.sparse_dict.storage == "float16"


def test_the_momentum_of_rmsprop_is_off_unless_it_is_set() -> None:
    assert dense_optimizer(conf(optimizer="rmsprop")) == RMSprop(0.01)
    assert dense_optimizer(conf(optimizer="rmsprop", momentum="0.9")) == RMSprop(0.01, momentum=0.9)
    assert dense_optimizer(conf()) == Nesterov(0.01, 0.9)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("step:1000:0.5", StepDecay(1000, 0.5)),
        ("warmup:100:0,cosine:2000", Warmup(100, 0, then=CosineDecay(2000))),
    ],
)
def test_a_schedule_is_read_from_its_text(text: str, schedule: object) -> None:
    found = dense_optimizer(conf(optimizer="sgd", schedule=text))

    assert found == SGD(0.01, schedule=schedule)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"schedule": "cosin:10"}, "did you mean cosine"),
        ({"schedule": "step:0"}, "steps must be above 0"),
        ({"momentum": "1"}, "momentum must be in"),
        ({"optimizer": "rmsprop", "rho": "1.5"}, "rho must be in"),
    ],
)
def test_a_wrong_setting_names_its_section(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        dense_optimizer(conf(**settings))

    assert "[optimizer]" in str(caught.value)


def test_the_config_has_a_key_for_every_setting_of_every_optimizer() -> None:
    names = {f.name for kind in Optimizer.members.values() for f in dataclasses.fields(kind)}
    keys = {f.name for f in dataclasses.fields(ModelConfig().optimizer)}

    assert names - {"eps", "lr"} <= keys
