"""Schedules against those of torch, chained, and at their ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kv.errors import SettingError
from kv.schedules import (
    ConstantRate,
    CosineDecay,
    ExponentialDecay,
    InverseSqrt,
    LinearDecay,
    Schedule,
    StepDecay,
    Warmup,
    parse,
)


def torch_factors(make: Callable, count: int) -> list[float]:
    """The factors of a torch scheduler for the first updates."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer, torch.optim.lr_scheduler)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's own SequentialLR gives it
@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Warmup(10, 0.2), lambda o, s: s.LinearLR(o, 0.2, total_iters=10)),
        (LinearDecay(12, 0.25), lambda o, s: s.LinearLR(o, 1.0, 0.25, total_iters=12)),
        (StepDecay(4, 0.5), lambda o, s: s.StepLR(o, 4, 0.5)),
        (ExponentialDecay(1, 0.9), lambda o, s: s.ExponentialLR(o, 0.9)),
        (CosineDecay(30, 0.1), lambda o, s: s.CosineAnnealingLR(o, 30, eta_min=0.1)),
        (
            Warmup(5, 0.1, then=StepDecay(3, 0.5)),
            lambda o, s: s.SequentialLR(
                o, [s.LinearLR(o, 0.1, total_iters=5), s.StepLR(o, 3, 0.5)], [5]
            ),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Schedule) else "torch",
)
def test_factors_equal_torch(schedule: Schedule, make: Callable) -> None:
    expected = torch_factors(make, 30)

    factors = [schedule.factor(clock) for clock in range(30)]

    assert factors == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "clock", "factor"),
    [
        (ConstantRate(0.5), 10**12, 0.5),
        (Warmup(4, 0.0), 0, 0.0),
        (Warmup(4, 0.0), 4, 1.0),
        (Warmup(4, then=Warmup(4, 0.5)), 6, 0.75),
        (Warmup(2.5, 0.0, then=LinearDecay(10)), 3, 1.0),
        (StepDecay(1, 0.1), 10**12, 0.0),
        (ExponentialDecay(100, 0.5), 100, 0.5),
        (CosineDecay(7, 0.3), 7, 0.3),
        (CosineDecay(7, 0.3), 10**12, 0.3),
        (LinearDecay(4), 3, 0.25),
        (LinearDecay(4), 5, 0.0),
        (LinearDecay(4, end=3.0), 2, 2.0),
        (InverseSqrt(100), 0, 1.0),
        (InverseSqrt(100), 300, 0.5),
    ],
    ids=str,
)
def test_factors_at_known_places(schedule: Schedule, clock: int, factor: float) -> None:
    assert schedule.factor(clock) == pytest.approx(factor)


def test_warmup_and_inverse_root_are_the_transformers() -> None:
    schedule = Warmup(40, 0.0, then=InverseSqrt(40))

    factors = [schedule.factor(clock) for clock in range(1, 400)]

    expected = [40**0.5 * min(t**-0.5, t * 40**-1.5) for t in range(1, 400)]
    assert factors == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", ConstantRate()),
        ("Step : 10", StepDecay(10)),
        ("warmup:4", Warmup(4)),
        (
            "warmup:4:0.5, warmup:2, linear:9:0.1",
            Warmup(4, 0.5, Warmup(2, then=LinearDecay(9, 0.1))),
        ),
    ],
)
def test_schedules_are_read_from_text(text: str, schedule: Schedule) -> None:
    assert parse(text) == schedule


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unknown name ''"),
        ("wramup:4", "did you mean warmup"),
        ("warmup", "warmup: steps must be given"),
        ("step:x", "steps must be a finite number, not 'x'"),
        ("step:1:0.5:3", "has more than"),
        ("step:1,cosine:5", "only a warmup comes before another schedule, not 'step'"),
        ("stp:1,cosine:5", "did you mean step"),
    ],
)
def test_text_that_is_no_schedule_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        parse(text)
