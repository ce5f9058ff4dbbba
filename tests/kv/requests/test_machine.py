"""No order of events makes a push count twice or not at all."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kv.requests.machine import Requests

PROFILE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


def test_every_push_counts_once_whatever_happens():
    run_state_machine_as_test(
        Requests, settings=settings(PROFILE, max_examples=80, stateful_step_count=12)
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_push_counts_once_over_many_more_orders():
    run_state_machine_as_test(
        Requests, settings=settings(PROFILE, max_examples=3000, stateful_step_count=40)
    )
