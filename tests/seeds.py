"""Seeds of which every run tries a few: the others are there when somebody asks for them."""

from __future__ import annotations

import pytest


def seeds(count: int, fast: int) -> list[object]:
    """`count` orders of events, of which the first `fast` are tried in every run."""
    return [s if s < fast else pytest.param(s, marks=pytest.mark.slow) for s in range(count)]
