"""The model ini: embeddings, layers, loss, optimiser, training, as typed settings.

The keys without which no such file exists are those of the format (`emb_dim`, `layers`, `model`,
`loss`, `optimizer`, `learning_rate`, `epoch`, `batch_size`, `interval`); the others are optional
and stand below with their defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.ctr.inifile import (
    Sections,
    Warn,
    logger,
    parse_override,
    parse_size,
    read_section,
    read_sections,
    suggestion,
)
from kv.optimizers import Optimizer
from kv.pipelining import DEEPEST
from kv.spec import STORAGES
from van.errors import ConfigError

LAYER_KINDS = ("fc", "tanh", "sigmoid", "relu", "softmax")
WIDEST = 1 << 20  # outputs of one layer: more is a slip, and no machine holds its weights
LOSSES = ("cross_entropy", "mse")
ON_NON_FINITE = ("stop", "skip")
OPTIMIZERS = tuple(Optimizer.members)


@dataclass(frozen=True)
class Layer:
    """One layer: `fc` has `width` outputs, the others keep the width they are given."""

    kind: str
    width: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.width}"


def parse_layers(text: str) -> tuple[Layer, ...]:
    """Layers from `fc:64,relu:-1,fc:1,sigmoid:-1`; the number of all but `fc` is not used.

    >>> [str(layer) for layer in parse_layers("fc:8,tanh")]
    ['fc:8', 'tanh:-1']

    Raises:
        ValueError: an unknown layer, or an `fc` without a width or with one beyond all measure.
    """
    return tuple(_layer(part.strip()) for part in text.split(",") if part.strip())


def _layer(text: str) -> Layer:
    kind, _, number = (part.strip() for part in text.partition(":"))
    if kind not in LAYER_KINDS:
        raise ValueError(f"layer {kind!r} is unknown{suggestion(kind, LAYER_KINDS)}")
    if kind != "fc":
        return Layer(kind, -1)
    try:
        width = int(number)
    except ValueError:
        width = 0
    if width > WIDEST:
        raise ValueError(f"{text!r} is too wide; a layer has at most {WIDEST} outputs")
    if width < 1:
        raise ValueError(f"{text!r} needs the number of its outputs, such as fc:64")
    return Layer(kind, width)


@dataclass(frozen=True, kw_only=True)
class SparseDictConfig:
    """`[sparse_dict]`: the embedding table."""

    emb_dim: int = field(default=8, metadata={"at_least": 1})  # floats per feature value
    optimizer: str | None = field(default=None, metadata={"one_of": OPTIMIZERS})
    """The embeddings' own optimiser; unset is that of `[optimizer]` with all its settings."""
    learning_rate: float | None = field(default=None, metadata={"above": 0.0})  # unset: as above
    initializer: str = "uniform:0.05"  # zeros | uniform:BOUND | normal:DEVIATION
    storage: str = field(default="float32", metadata={"one_of": STORAGES})  # on the servers


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """`[net]`: which network, and its layers."""

    model: str = "fnn"  # fnn | dssm | package.module:Class of a torch module of one's own
    layers: tuple[Layer, ...] = field(
        default=parse_layers("fc:64,tanh:-1,fc:1,sigmoid:-1"), metadata={"parse": parse_layers}
    )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """`[loss]`"""

    loss: str = field(default="cross_entropy", metadata={"one_of": LOSSES})


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """`[optimizer]`: how servers apply gradients; settings another optimiser uses are ignored."""

    optimizer: str = field(default="nesterov", metadata={"one_of": OPTIMIZERS})
    learning_rate: float = field(default=0.01, metadata={"above": 0.0})
    # Below: unset is the optimiser's own default, see docs/optimizers.md.
    momentum: float | None = field(default=None, metadata={"at_least": 0.0})  # also of rmsprop
    beta1: float | None = field(default=None, metadata={"at_least": 0.0})  # adam, adamw
    beta2: float | None = field(default=None, metadata={"at_least": 0.0})  # adam, adamw
    rho: float | None = field(default=None, metadata={"at_least": 0.0})  # rmsprop, adadelta
    epsilon: float | None = field(default=None, metadata={"above": 0.0})  # all that divide
    initial_accumulator: float | None = field(default=None, metadata={"at_least": 0.0})  # adagrads
    beta: float | None = field(default=None, metadata={"at_least": 0.0})  # ftrl
    l1: float | None = field(default=None, metadata={"at_least": 0.0})  # ftrl
    l2: float | None = field(default=None, metadata={"at_least": 0.0})  # ftrl
    weight_decay: float | None = field(default=None, metadata={"at_least": 0.0})
    clip_value: float | None = field(default=None, metadata={"at_least": 0.0})
    clip_norm: float | None = field(default=None, metadata={"at_least": 0.0})
    clip_global_norm: float | None = field(default=None, metadata={"at_least": 0.0})
    weight_bounds: str | None = None  # LOW:HIGH such as -1:1, or 0: for an open end
    schedule: str | None = None  # NAME:NUMBER:… such as warmup:1000,cosine:20000


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """`[train]`"""

    epoch: int = field(default=1, metadata={"at_least": 1})  # passes over the data
    batch_size: int = field(default=1024, metadata={"at_least": 1})  # rows
    shuffle: bool = False  # another order of rows in each epoch, from `seed`
    seed: int = field(default=1, metadata={"at_least": 0})
    """Of the shuffle, and of what a network of one's own draws; tables start from [run] seed."""
    threads: int = field(default=1, metadata={"at_least": 1})  # of torch, per worker
    pipeline_depth: int = field(default=0, metadata={"at_least": 0, "at_most": DEEPEST})
    """Steps asked for ahead, and steps whose pushes are not waited for; see docs/consistency.md."""
    clip_value: float = field(default=0.0, metadata={"at_least": 0.0})  # 0: off, as the next two
    clip_norm: float = field(default=0.0, metadata={"at_least": 0.0})  # of a row, or of an array
    clip_global_norm: float = field(default=0.0, metadata={"at_least": 0.0})  # of a worker's step
    on_non_finite: str = field(default="stop", metadata={"one_of": ON_NON_FINITE})
    """Whether a sample whose gradient is NaN or infinity ends the training or is left out."""
    prefetch: bool = False  # ask for a batch's values during the step before; async jobs only
    cache: int = field(default=1 << 30, metadata={"parse": parse_size})
    """Bytes of rows kept in memory between epochs; the rest is read again from the file."""


@dataclass(frozen=True, kw_only=True)
class TestConfig:
    """`[test]`"""

    __test__ = False  # for pytest: this is no test
    batch_size: int = field(default=4096, metadata={"at_least": 1})  # rows


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """`[debug]`"""

    interval: int = field(default=100, metadata={"at_least": 0})  # batches a progress line; 0 never


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A whole model ini."""

    sparse_dict: SparseDictConfig = SparseDictConfig()
    net: NetConfig = NetConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    test: TestConfig = TestConfig()
    debug: DebugConfig = DebugConfig()

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Section -> key -> value, in types that JSON has."""
        plain = dataclasses.asdict(self)
        plain["net"]["layers"] = ",".join(map(str, self.net.layers))
        return plain


def plain_sections(values: Mapping[str, Mapping[str, Any]]) -> Sections:
    """What `ModelConfig.as_dict` gave, as the text of an ini file."""
    return {
        section: {key: str(value) for key, value in keys.items() if value is not None}
        for section, keys in values.items()
    }


SECTIONS: dict[str, type] = {
    "sparse_dict": SparseDictConfig,
    "net": NetConfig,
    "loss": LossConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "test": TestConfig,
    "debug": DebugConfig,
}


def load_model_config(
    path: str | Path, overrides: Sequence[str] = (), warn: Warn = logger.warning
) -> ModelConfig:
    """Read a model ini.

    Args:
        overrides: `section.key=value` each, as on the command line; later ones win.
        warn: gets a line for each section or key of the file that is unknown.
    Raises:
        ConfigError: naming file, section and key.
    """
    return model_config(read_sections(path), file=str(path), overrides=overrides, warn=warn)


def model_config(
    sections: Sections,
    *,
    file: str = "model ini",
    overrides: Sequence[str] = (),
    warn: Warn = logger.warning,
) -> ModelConfig:
    """Settings from sections already read; see `load_model_config`."""
    sections = {name: dict(values) for name, values in sections.items()}
    if sections and not sections.keys() & SECTIONS.keys():  # such as a feature ini in its place
        problem = f"no model ini: it has none of the sections {', '.join(SECTIONS)}"
        raise ConfigError(problem, file=file)
    origin: dict[str, dict[str, str]] = {}
    for text in overrides:
        section, key, value = parse_override(text)
        if section not in SECTIONS:
            problem = f"no section [{section}] in a model ini{suggestion(section, SECTIONS)}"
            raise ConfigError(problem, file="--set", section=section, key=key)
        sections.setdefault(section, {})[key] = value
        origin.setdefault(section, {})[key] = "--set"
    for name in sections:
        if name not in SECTIONS:
            hint = suggestion(name, SECTIONS)
            warn(f"{file}: section [{name}] is unknown and ignored{hint}")
    return ModelConfig(
        **{
            name: read_section(
                kind,
                sections.get(name, {}),
                file=file,
                section=name,
                origin=origin.get(name, {}),
                warn=warn,
            )
            for name, kind in SECTIONS.items()
        }
    )
