"""`fnn`: embeddings and dense features side by side, then the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from apps.ctr.modelconf import Layer
from apps.ctr.models.layers import ClickHead
from apps.ctr.models.network import BlockShape, Network, linear_initializers
from kv.initializers import Initializer


class FNN(Network):
    """A feed-forward network over all features.

    Source: Zhang, Du and Wang, Deep Learning over Multi-field Categorical Data, ECIR 2016
    (without its pre-training by a factorisation machine).
    """

    def __init__(self, shapes: Mapping[str, BlockShape], layers: Sequence[Layer]) -> None:
        super().__init__(shapes, layers)
        self.head = ClickHead(shapes["x"].width, layers)
        self.output = self.head.output

    def initializers(self) -> Mapping[str, Initializer]:
        return linear_initializers(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # torch: any
        out: torch.Tensor = self.head(x)
        return out
