"""The network that a program asks for in code, as the section `[simulate]` has it."""

from __future__ import annotations

from collections.abc import Mapping

from pslite.config import read_section
from pslite.ini import Entry
from pslite.simulate.config import SimulateConfig
from pslite.simulate.links import KEYS, Links
from pslite.values import AT, nearest
from van.errors import ConfigError


def links_of(given: Mapping[str, str | float]) -> Links | None:
    """Links by `KEY` and `KEY@WHERE`, with texts such as `10Gbit` or numbers in the base unit.

    >>> links_of({"latency": "2ms"}).link("worker 0", "server 0").latency
    0.002

    Returns:
        None where the network stays as it is.
    Raises:
        ConfigError: a key of another kind, or a wrong value.
    """
    for key in given:
        if key.partition(AT)[0] not in KEYS:
            problem = f"a network has {', '.join(KEYS)}{nearest(key, KEYS)}"
            raise ConfigError(problem, section="simulate", key=key)
    entries = {key: Entry(str(value), "network") for key, value in given.items()}
    return read_section("simulate", SimulateConfig, entries).imposed
