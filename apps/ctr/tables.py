"""Optimisers and initialisers of the tables, from the model ini."""

from __future__ import annotations

from apps.ctr.modelconf import ModelConfig
from kv import initializers, optimizers
from kv.errors import SettingError
from kv.initializers import Initializer
from kv.optimizers import Optimizer
from van.errors import ConfigError

SETTINGS = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adagrad": ("eps", "initial_accumulator"),
    "adam": ("beta1", "beta2", "eps"),
}
"""Which settings of `[optimizer]` each optimiser has beside the learning rate."""


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
    values = {
        "momentum": section.momentum,
        "beta1": section.beta1,
        "beta2": section.beta2,
        "eps": section.epsilon,
        "initial_accumulator": section.initial_accumulator,
    }
    chosen = {key: values[key] for key in SETTINGS[name]}
    given = {key: value for key, value in chosen.items() if value is not None}
    try:
        return optimizers.by_name(name, lr=rate, **given)
    except SettingError as error:
        raise ConfigError(str(error), section="optimizer") from error
