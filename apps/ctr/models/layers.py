"""A stack of layers from the model ini, and what its output means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from apps.ctr.errors import ModelError
from apps.ctr.modelconf import Layer

ACTIVATIONS = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}


def stack(width: int, layers: Sequence[Layer]) -> tuple[nn.Sequential, int]:
    """The layers as a torch module, and the width of its output.

    Args:
        width: inputs of the first layer.
    Raises:
        ModelError: the weights of a layer do not fit into memory.
    """
    modules: list[nn.Module] = []
    for layer in layers:
        if layer.kind == "fc":
            modules.append(_linear(width, layer))
            width = layer.width
        elif layer.kind == "softmax":
            modules.append(nn.Softmax(dim=1))
        else:
            modules.append(ACTIVATIONS[layer.kind]())
    return nn.Sequential(*modules), width


def _linear(width: int, layer: Layer) -> nn.Linear:
    try:
        return nn.Linear(width, layer.width)
    except (RuntimeError, MemoryError) as error:  # RuntimeError is how torch lacks memory
        problem = f"[net] layers: {layer} with {width} inputs does not fit into memory"
        raise ModelError(problem) from error


class ClickHead(nn.Module):
    """Layers that end in one number a row.

    A last `sigmoid`, or a last `softmax` over two values (no click, click), is left to the loss,
    which is exact for large numbers where the probability itself has rounded to 0 or 1.

    Attributes:
        output: "logit", or "number" where no such layer ends the stack.
    """

    def __init__(self, width: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        last = layers[-1].kind if layers else ""
        inner = layers[:-1] if last in ("sigmoid", "softmax") else layers
        self.layers, outputs = stack(width, inner)
        wanted = 2 if last == "softmax" else 1
        if outputs != wanted:
            raise ModelError(
                f"[net] layers: {last or 'the network'} gets {outputs} values, but a click "
                f"probability needs {wanted}: end in fc:1,sigmoid:-1 or in fc:2,softmax:-1"
            )
        self._is_softmax = last == "softmax"
        self.output = "logit" if last in ("sigmoid", "softmax") else "number"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        if self._is_softmax:
            return out[:, 1] - out[:, 0]  # softmax over two is the sigmoid of their difference
        return out[:, 0]
