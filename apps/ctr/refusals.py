"""What becomes of a step whose gradients are no numbers: an error that names the sample, or a step
without it.

What servers get must be finite: one NaN in the weights of a layer makes all that is computed from
it NaN. The worker that would have sent one refuses before anything is sent (`kv.pushing`); here it
is found out which samples it came from.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from apps.ctr.errors import BadOutputError
from apps.ctr.models import Network
from apps.ctr.origin import Origin, Suspects, bad_feature
from apps.ctr.schema import Schema
from kv.errors import NonFiniteError

logger = logging.getLogger(__name__)

MOST_WARNINGS = 10
DIVERGED = (
    "the weights that were pulled are no numbers: the training has diverged; take a smaller "
    "learning_rate, or clip_norm, clip_global_norm or weight_bounds"
)
NOT_A_SAMPLE = (
    "of every row of the batch, so it is hardly the samples': the training diverges; take a "
    "smaller learning_rate, or clip_norm, clip_global_norm or weight_bounds"
)


class Refusals:
    """Decides for one worker, and counts.

    Args:
        network: of the worker.
        schema: names the features.
        skips: whether samples that gradients of NaN or infinity come from are left out; else they
            end the training.

    Attributes:
        skipped: samples that were left out.
    """

    def __init__(self, network: Network, schema: Schema, skips: bool) -> None:
        self._network, self._schema, self._skips = network, schema, skips
        self.skipped = 0
        self._warnings = 0

    def without(
        self,
        error: NonFiniteError | BadOutputError,
        suspects: Suspects,
        origin: Origin | None,
        places: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Which of the rows to take the step with, int64; the others are left out.

        Args:
            suspects: what the step that was refused was made of.
            origin: of the rows of the share; None: not known.
            places: where in the share the suspected rows are.
        Raises:
            NonFiniteError, BadOutputError: `error` with the samples named, where these are not to
                be skipped or it is not their fault.
        """
        culprits = suspects.culprits()
        said = [self._samples(suspects, culprits, origin, places)]
        is_all = len(culprits) == len(suspects.rows) > 1
        if self._has_diverged(suspects):
            said.append(DIVERGED)
        elif is_all:
            said.append(NOT_A_SAMPLE)
        told = _told(error, "; ".join(filter(None, said)))
        if not self._skips or len(said) > 1:
            raise told from None
        self.skipped += len(culprits)
        self._warn(told, len(culprits))
        return np.delete(np.arange(len(suspects.rows)), culprits)

    def _samples(
        self,
        suspects: Suspects,
        culprits: NDArray[np.int64],
        origin: Origin | None,
        places: NDArray[np.int64],
    ) -> str:
        if origin is None:
            return ""
        text = origin.describe(places[culprits])
        for name, block in suspects.rows.blocks.items():
            names = self._schema.dense_names(self._network.blocks[name])
            if wrong := bad_feature(block, int(culprits[0]), names):
                return f"{text}, whose feature {wrong}"
        return text

    def _has_diverged(self, suspects: Suspects) -> bool:
        """Whether what was pulled is no number already."""
        weights = [p.detach().numpy() for p in self._network.parameters()]
        for name, block in suspects.rows.blocks.items():
            given = suspects.inputs[name]
            weights.append(given[:, : given.shape[1] - block.dense.shape[1]])
        return not all(np.isfinite(array).all() for array in weights)

    def _warn(self, error: Exception, count: int) -> None:
        if self._warnings < MOST_WARNINGS:
            self._warnings += 1
            last = "; further ones are only counted" if self._warnings == MOST_WARNINGS else ""
            what = "a sample" if count == 1 else f"{count} samples"
            logger.warning("%s left out: %s%s", what, error, last)


def _told(error: NonFiniteError | BadOutputError, said: str) -> NonFiniteError | BadOutputError:
    if isinstance(error, NonFiniteError):
        return error.knowing(sample=said, outcome="")
    return BadOutputError(f"{error} ({said})" if said else str(error))
