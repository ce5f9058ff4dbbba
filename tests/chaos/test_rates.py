"""How long a step rate suffered."""

from __future__ import annotations

import pytest

from pslite.chaos.rates import WINDOW, Sample, dents, progress_of


def heartbeats(rate: float, stretches: list[tuple[float, float]], until: float) -> list[Sample]:
    """What a worker that does `rate` steps a second says, standing still in some stretches."""
    samples: list[Sample] = []
    done = 0.0
    for second in range(int(until) + 1):
        samples.append((float(second), {"worker 0": [int(done), 4 * int(done)]}))
        done += rate * (1 - sum(start <= second < stop for start, stop in stretches))
    return samples


def test_work_is_added_up_over_workers_and_their_lives() -> None:
    progress = progress_of(
        [
            (1.0, {"worker 0": [10, 0]}),
            (2.0, {"worker 0": [20, 0], "worker 1": [5, 0]}),
            (3.0, {"worker 0": [3, 0], "worker 1": [6, 0]}),  # a new life of worker 0
        ]
    )

    assert progress.done == (10, 25, 29)
    assert progress.unit == "steps"
    assert progress.rate(1.0, 3.0) == pytest.approx(9.5)
    assert progress.at(1.5) == pytest.approx(17.5)


def test_a_program_without_steps_is_measured_by_its_requests() -> None:
    progress = progress_of([(1.0, {"worker 0": [0, 10]}), (2.0, {"worker 0": [0, 30]})])

    assert (progress.unit, progress.done) == ("requests", (10, 30))


def test_a_standstill_is_found_with_its_length() -> None:
    progress = progress_of(heartbeats(100, [(20, 25)], 60))

    (dent,) = dents(progress, [20.0], 60.0)

    assert dent.before == pytest.approx(100, rel=0.1)
    assert dent.lowest == 0
    assert dent.suffered == pytest.approx(5, abs=WINDOW)
    assert dent.after == pytest.approx(100, rel=0.1)


def test_what_does_not_slow_down_has_not_suffered() -> None:
    (dent,) = dents(progress_of(heartbeats(100, [], 60)), [20.0], 60.0)

    assert dent.suffered == 0


def test_a_rate_that_stays_low_has_not_recovered() -> None:
    (dent,) = dents(progress_of(heartbeats(100, [(20, 99)], 60)), [20.0], 60.0)

    assert dent.suffered is None
    assert dent.lowest == 0
    assert dent.after == pytest.approx(0, abs=1)


def test_one_good_moment_is_no_recovery() -> None:
    progress = progress_of(heartbeats(100, [(20, 30), (33, 99)], 90))

    assert dents(progress, [20.0], 90.0)[0].suffered is None


def test_of_two_faults_each_has_its_own_dent() -> None:
    progress = progress_of(heartbeats(100, [(20, 23), (40, 48)], 80))

    first, second = dents(progress, [20.0, 40.0], 80.0)

    assert first.suffered == pytest.approx(3, abs=WINDOW)
    assert second.suffered == pytest.approx(8, abs=WINDOW)


def test_too_few_words_tell_nothing() -> None:
    assert dents(progress_of([]), [1.0], 0.0)[0].before is None
    assert dents(progress_of(heartbeats(100, [], 3)), [2.5], 3.0)[0].suffered is None
