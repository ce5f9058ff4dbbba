"""Seeds and cases of which every run tries a few; the others wait until they are asked for."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def seeds(count: int, fast: int, slow: int | None = None) -> list[object]:
    """`count` orders of events: the first `fast` are tried in every run, to `slow` with -m slow.

    What is left is tried with -m soak; nothing is if `slow` is not given.
    """
    most = count if slow is None else slow
    return [
        seed if seed < fast else pytest.param(seed, marks=mark_of(seed < most))
        for seed in range(count)
    ]


def mark_of(is_slow: bool) -> pytest.MarkDecorator:
    """Of a case that is not for every run: slow, or soak."""
    return pytest.mark.slow if is_slow else pytest.mark.soak


def slowly(cases: Iterable[object]) -> list[object]:
    """These cases with -m slow only."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
