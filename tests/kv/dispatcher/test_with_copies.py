"""Dispatchers before servers with copies of each other's rows, of which one dies."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.kv.dispatcher.test_pushes import check_ones, push_ones
from tests.kv.dispatcher.tier import SEEDS, Tier


@pytest.mark.parametrize("mode", ["async", "ssp", "sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_push_is_lost_or_counted_twice_when_a_server_dies(seed: int, mode: str) -> None:
    tier = Tier(seed, workers=3, servers=2, replicas=1, mode=mode)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def kill() -> None:
        tier.wait_until_copied()
        tier.wait_for_events(random.Random(seed).randint(1, 60))
        tier.network.kill("server 1")
        tier.start_server(1)

    tier.meddle(kill)
    tier.train(lambda worker: seen.append(push_ones(worker, 12)))

    assert len(seen) == 3
    check_ones(seen, 36)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_push_is_lost_or_counted_twice_when_server_and_dispatcher_die(seed: int) -> None:
    tier = Tier(seed, workers=3, servers=2, replicas=1)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def kill() -> None:
        tier.wait_until_copied()
        tier.wait_for_events(random.Random(seed).randint(1, 60))
        tier.network.kill("server 1")
        tier.wait_for_events(random.Random(seed + 9).randint(1, 9))
        tier.kill_dispatcher(0)
        tier.start_server(1)

    tier.meddle(kill)
    tier.train(lambda worker: seen.append(push_ones(worker, 12)))

    assert len(seen) == 3
    check_ones(seen, 36)
