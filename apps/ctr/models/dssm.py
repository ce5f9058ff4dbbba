"""`dssm`: a tower over user features, one over ad features, then dot product and sigmoid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from apps.ctr.batch import Blocks
from apps.ctr.errors import ModelError
from apps.ctr.modelconf import Layer
from apps.ctr.models.layers import stack
from apps.ctr.models.network import BlockShape, Network, linear_initializers
from kv.initializers import Initializer


class DSSM(Network):
    """Two towers with the same layers and weights of their own; user-ad features are not used.

    Source: Huang et al., Learning Deep Structured Semantic Models, CIKM 2013, with the dot
    product in place of the cosine of its equation (4).
    """

    blocks: ClassVar[Blocks] = {"user": ("user",), "ad": ("ad",)}
    output = "logit"

    def __init__(self, shapes: Mapping[str, BlockShape], layers: Sequence[Layer]) -> None:
        super().__init__(shapes, layers)
        for name, shape in shapes.items():
            if not shape.width:
                raise ModelError(f"dssm needs {name} features, and the data has none")
        self.user, _ = stack(shapes["user"].width, layers)
        self.ad, _ = stack(shapes["ad"].width, layers)

    def initializers(self) -> Mapping[str, Initializer]:
        return linear_initializers(self)

    def forward(  # type: ignore[override]  # torch takes anything
        self, user: torch.Tensor, ad: torch.Tensor
    ) -> torch.Tensor:
        product: torch.Tensor = self.user(user) * self.ad(ad)
        return product.sum(dim=1)
