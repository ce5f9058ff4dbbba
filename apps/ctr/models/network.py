"""What the trainer asks of a network, built-in or a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from apps.ctr.batch import GROUPS, Blocks
from apps.ctr.modelconf import Layer
from kv.initializers import Initializer, Xavier, Zeros


@dataclass(frozen=True)
class BlockShape:
    """The columns of one input: embeddings of `features`, `dim` floats each, then `dense`."""

    features: int
    dim: int
    dense: int

    @property
    def width(self) -> int:
        return self.features * self.dim + self.dense


class Network(nn.Module):
    """Base of the networks that `[net] model` names.

    A network gets one tensor a block, float32 (rows, width): for each sparse feature its embedding
    (the mean over the known values, zeros if there is none), then the dense features. Its
    parameters live in tables on the servers; buffers are neither shared nor saved.

    Attributes:
        blocks: the inputs by name, and the feature groups in each.
        output: what `forward` returns, float32 (rows,): "logit", "probability" or "number".
    """

    blocks: ClassVar[Blocks] = {"x": GROUPS}
    output: str = "probability"

    def __init__(self, shapes: Mapping[str, BlockShape], layers: Sequence[Layer]) -> None:
        super().__init__()

    def initializers(self) -> Mapping[str, Initializer]:
        """Name of a parameter -> how its table starts.

        A parameter without one starts as this module made it in the first worker.
        """
        return {}

    def forward(self, **blocks: torch.Tensor) -> torch.Tensor:
        raise TypeError(f"{type(self).__name__} has no forward(self, {', '.join(self.blocks)})")


def linear_initializers(network: nn.Module) -> dict[str, Initializer]:
    """Xavier for the weights of all linear layers in `network`, zeros for their biases."""
    found: dict[str, Initializer] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            found[f"{name}.weight"] = Xavier(module.in_features, module.out_features)
            found[f"{name}.bias"] = Zeros()
    return found
