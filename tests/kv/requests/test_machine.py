"""No order of events makes a push count twice or not at all."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kv.requests.machine import Requests
from tests.kv.requests.model import Cluster
from tests.kv.requests.storm import storm
from tests.seeds import seeds

PROFILE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


def weather(seed: int, events: int) -> None:
    cluster = Cluster()
    try:
        storm(cluster, Random(seed), events)
        cluster.end()
    except AssertionError as error:
        error.add_note(f"seed {seed}, {events} events")
        raise


def test_every_push_counts_once_whatever_happens():
    run_state_machine_as_test(
        Requests, settings=settings(PROFILE, max_examples=80, stateful_step_count=12)
    )


def test_every_push_counts_once_after_a_storm():
    for seed in range(100):
        weather(seed, events=60)


@pytest.mark.soak
def test_every_push_counts_once_over_many_more_orders():
    run_state_machine_as_test(
        Requests, settings=settings(PROFILE, max_examples=1000, stateful_step_count=30)
    )


@pytest.mark.parametrize("block", seeds(5, fast=0, slow=1))
def test_every_push_counts_once_after_many_long_storms(block):
    for seed in range(100 + 400 * block, 500 + 400 * block):
        weather(seed, events=120)
