"""What a network's output means: its loss to train on, and its score to report."""

from __future__ import annotations

import torch
from torch.nn import functional

from apps.ctr.errors import ModelError

OUTPUTS = ("logit", "probability", "number")


def check_output(output: str, loss: str) -> None:
    """Refuse a network whose output the loss cannot be computed from.

    Raises:
        ModelError: an unknown kind of output, or cross-entropy of something not a probability.
    """
    if output not in OUTPUTS:
        raise ModelError(f"a network's output is one of {', '.join(OUTPUTS)}, not {output!r}")
    if output == "number" and loss == "cross_entropy":
        raise ModelError(
            "[loss] cross_entropy needs probabilities: end [net] layers in sigmoid:-1, "
            "or take loss = mse"
        )


def total_loss(out: torch.Tensor, labels: torch.Tensor, *, output: str, loss: str) -> torch.Tensor:
    """Sum of the losses of all rows, a scalar.

    Args:
        out: float32 (n,), what the network returned.
        labels: float32 (n,).
        output: "logit", "probability" or "number".
        loss: "cross_entropy" or "mse".
    """
    if loss == "mse":
        return ((probabilities(out, output) - labels) ** 2).sum()
    if output == "logit":
        return functional.binary_cross_entropy_with_logits(out, labels, reduction="sum")
    return functional.binary_cross_entropy(out, labels, reduction="sum")


def probabilities(out: torch.Tensor, output: str) -> torch.Tensor:
    """The network's scores, float32 (n,): probabilities unless its output is a plain number."""
    return torch.sigmoid(out) if output == "logit" else out
