"""Optimisers and initialisers of the tables, from the model ini."""

from __future__ import annotations

import dataclasses

from apps.ctr.modelconf import ModelConfig
from kv import initializers, schedules
from kv.errors import SettingError
from kv.initializers import Initializer
from kv.optimizers import Optimizer
from van.errors import ConfigError

RENAMED = {"eps": "epsilon", "lr": "learning_rate"}
"""Settings of optimisers that `[optimizer]` calls otherwise."""


def dense_optimizer(conf: ModelConfig) -> Optimizer:
    """The optimiser of `[optimizer]`."""
    return _optimizer(conf, conf.optimizer.optimizer, conf.optimizer.learning_rate)


def embedding_optimizer(conf: ModelConfig) -> Optimizer:
    """The same, with what `[sparse_dict]` says otherwise."""
    name = conf.sparse_dict.optimizer or conf.optimizer.optimizer
    return _optimizer(conf, name, conf.sparse_dict.learning_rate or conf.optimizer.learning_rate)


def embedding_initializer(conf: ModelConfig) -> Initializer:
    """`zeros`, `uniform:BOUND` or `normal:DEVIATION` of `[sparse_dict] initializer`.

    Raises:
        ConfigError: another name, or a number that is missing or none.
    """
    text = conf.sparse_dict.initializer
    name, _, number = (part.strip() for part in text.partition(":"))
    try:
        if name == "uniform":
            return initializers.by_name(name, low=-float(number), high=float(number))
        if name == "normal":
            return initializers.by_name(name, std=float(number))
        if name == "zeros" and not number:
            return initializers.by_name(name)
    except (ValueError, SettingError):
        pass
    problem = f"{text!r} is none of zeros, uniform:BOUND such as uniform:0.05, normal:DEVIATION"
    raise ConfigError(problem, section="sparse_dict", key="initializer")


def _optimizer(conf: ModelConfig, name: str, rate: float) -> Optimizer:
    section = conf.optimizer
    named = {f.name for f in dataclasses.fields(Optimizer.members[name])}
    values = {key: getattr(section, RENAMED.get(key, key)) for key in named}
    given = {key: value for key, value in values.items() if value is not None}
    try:
        if section.schedule is not None:
            given["schedule"] = schedules.parse(section.schedule)
        if section.weight_bounds is not None:
            given["weight_bounds"] = parse_bounds(section.weight_bounds)
        return Optimizer.by_name(name, **{**given, "lr": rate})
    except SettingError as error:
        raise ConfigError(str(error), section="optimizer") from error


def parse_bounds(text: str) -> tuple[float | None, float | None]:
    """`LOW:HIGH`, either of which may be missing.

    >>> parse_bounds("-1:1"), parse_bounds("0:")
    ((-1.0, 1.0), (0.0, None))

    Raises:
        ConfigError: it is not of this form.
    """
    low, colon, high = (part.strip() for part in text.partition(":"))
    try:
        if colon and (low or high):
            return float(low) if low else None, float(high) if high else None
    except ValueError:
        pass
    problem = f"{text!r} is not LOW:HIGH, such as -1:1, 0: or :0.5"
    raise ConfigError(problem, section="optimizer", key="weight_bounds")
