"""Folders of keys, and clusters that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pslite.keyring import make_keys, names_of
from tests.security.cluster import Threads, curve
from van.config import VanConfig
from van.courier import ZmqVan


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of a cluster of 2 servers and 3 workers."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, names_of("server", 2), names_of("worker", 3))
    return folder


@pytest.fixture(scope="session")
def foreign_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of another cluster."""
    folder = tmp_path_factory.mktemp("foreign") / "keys"
    make_keys(folder, names_of("server", 2), names_of("worker", 3))
    return folder


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Threads]]:
    """start_cluster(keys, ...): a running cluster, ended after the test."""
    running: list[Threads] = []

    def start(*arguments: object, **settings: object) -> Threads:
        made = Threads(*arguments, **settings)  # type: ignore[arg-type]
        running.append(made)
        return made

    yield start
    for cluster in running:
        cluster.close()


@pytest.fixture
def make_keyed(keys: Path) -> Iterator[Callable[..., ZmqVan]]:
    """make_keyed(role, config): a bound van with that role's first key."""
    vans: list[ZmqVan] = []

    def make(role: str, config: VanConfig | None = None) -> ZmqVan:
        made = ZmqVan(config, background=False, curve=curve(keys, role))
        made.bind("tcp://127.0.0.1:0")
        vans.append(made)
        return made

    yield make
    for van in vans:
        van.close(0)
