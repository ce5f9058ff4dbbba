"""The ini section `[simulate]`, and what its list of modes means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from kv.consistency.settings import SSP, Consistency, SemiSync
from kv.errors import SettingError
from postoffice.node import Role
from pslite.simulate.links import BANDWIDTH, KEYS, LATENCY, LOSS, Links
from pslite.values import ByPlace
from van.errors import ConfigError
from van.quantities import Bandwidth, Seconds, Share

MOST_WORKERS = 4096
MOST_SERVERS = 64
_MODES = ("async", "ssp:0", "ssp:1", "ssp:4", "ssp:16", "ssp:64", "sync")
_ROUNDS = ("semi_sync:0.75", "backup:1")
_USUAL = {BANDWIDTH: 10e9, LATENCY: 0.0002, LOSS: 0.0}  # what `pslite simulate` takes by itself
_LIMITS: dict[str, tuple[float, float]] = {
    "servers": (1, MOST_SERVERS),
    "steps": (1, 1_000_000),
    "straggler_factor": (1, 1_000_000),
    "straggler_share": (0, 1),
    "jitter": (0, 10),
    "keys": (1, 1 << 20),
    "dim": (1, 4096),
    "seed": (0, 2**63 - 1),
    "repeats": (1, 1000),
    "real_up_to": (0, MOST_WORKERS),
}


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """What `pslite simulate` simulates, and the network of a job; the ini section `[simulate]`.

    A job's nodes heed `bandwidth`, `latency` and `loss`, where these are said, and nothing else
    of it.
    """

    workers: tuple[int, ...] = (2, 4, 16, 64, 256)  # one simulation of each mode for each number
    servers: int = 2  # each has its part of the table
    modes: tuple[str, ...] = _MODES + _ROUNDS  # names; :n of ssp staleness, of semi_sync the quorum
    steps: int = 100  # of each worker: a pull, the computation, a push
    compute: Seconds = 0.1  # a usual step's computation, on average
    jitter: Share = 0.1  # its standard deviation, as a share of it; log-normal
    straggler_share: Share = 0.05  # of all steps take longer
    straggler_factor: float = 10.0  # times as long
    bandwidth: Bandwidth | None = None  # of each node's line; 0: no limit; empty: 10Gbit, jobs: 0
    latency: Seconds | None = None  # from any node to any other; empty: 0.2ms, in jobs none
    loss: Share | None = None  # of the messages, which are sent again; empty: none
    by_place: Annotated[Mapping[str, float], ByPlace(KEYS)] = field(  # these by KEY@WHERE
        default_factory=dict
    )
    keys: int = 1000  # that a worker pulls and pushes in each step
    dim: int = 8  # floats a key
    seed: int = 1  # of computing times, keys and losses
    repeats: int = 1  # with the seeds that follow
    real_up_to: int = 8  # workers: so many are real nodes; of more the modes alone are simulated

    def __post_init__(self) -> None:
        for key, (least, most) in _LIMITS.items():
            value = getattr(self, key)
            if not least <= value <= most:
                raise _wrong(key, f"expected {least:g} to {most:g}, got {value:g}")
        if not self.workers or not all(1 <= count <= MOST_WORKERS for count in self.workers):
            raise _wrong("workers", f"expected numbers from 1 to {MOST_WORKERS}, such as 2, 4, 16")
        if not 0 < self.compute <= 86400:
            raise _wrong("compute", f"expected more than 0, at most a day, got {self.compute:g}s")
        Links(self.said)
        if not self.modes:
            raise _wrong("modes", "expected modes such as async, ssp:4, sync")
        for mode in self.modes:
            mode_of(mode)

    @property
    def said(self) -> dict[str, float]:
        """What is said of the network, by `KEY` or `KEY@WHERE`."""
        own = {key: getattr(self, key) for key in KEYS}
        return {key: value for key, value in own.items() if value is not None} | {**self.by_place}

    @property
    def network(self) -> Links:
        """The network of `pslite simulate`."""
        return Links(_USUAL | self.said)

    @property
    def resolved(self) -> SimulateConfig:
        """With all that `pslite simulate` takes of the network by itself."""
        bandwidth, latency, loss = (self.network.said[key] for key in KEYS)
        return replace(self, bandwidth=bandwidth, latency=latency, loss=loss)

    @property
    def imposed(self) -> Links | None:
        """The network that a job's nodes are to be in; None: it is as it is."""
        links = Links(self.said)
        return None if links.is_none else links

    def check_job(self, counts: Mapping[Role, int], resends: bool) -> None:
        """See that a job can be in this network.

        Args:
            counts: nodes of each role.
            resends: whether they send again what is lost.
        Raises:
            ConfigError: it names a node that the job does not have, or loses what nobody sends
                again.
        """
        links = self.imposed
        if links is None:
            return
        links.check(counts)
        if links.loses and not resends:
            raise _wrong(links.loses, "with [van] resend = off nobody sends again what is lost")

    def check(self) -> None:
        """See that it can be simulated.

        Raises:
            ConfigError: messages are lost that nobody sends again.
        """
        key, most = self.network.loses, max(self.workers)
        if key and most > self.real_up_to:
            problem = (
                f"only real nodes send again what is lost: real_up_to = {most} makes all workers "
                f"real, which takes longer"
            )
            raise _wrong(key, problem)


def _wrong(key: str, problem: str) -> ConfigError:
    return ConfigError(problem, section="simulate", key=key)


def mode_of(text: str) -> Consistency:
    """The mode that one entry of `modes` names: NAME, or NAME:NUMBER.

    The number is the staleness of `ssp`, the quorum of `semi_sync`, or how many workers a round of
    `backup` does without.

    >>> mode_of("ssp:4"), mode_of("backup:1").backup_workers
    (SSP(staleness=4.0), 1.0)

    Raises:
        ConfigError: no mode has that name, or it takes no such number.
    """
    name, _, number = (part.strip() for part in text.partition(":"))
    try:
        settings: dict[str, Any] = {}
        if name != "backup":
            Consistency.by_name(name)  # the name's error comes before that of its number
        if number:
            key = {SSP.name: "staleness", SemiSync.name: "quorum", "backup": "backup_workers"}
            if name not in key:
                raise _wrong("modes", f"{text!r}: {name} takes no number")
            settings[key[name]] = float(number)
        if name == "backup":
            return SemiSync(**(settings or {"backup_workers": 1}))
        return Consistency.by_name(name, **settings)
    except SettingError as error:
        raise _wrong("modes", f"{text!r}: {error}") from None
    except ValueError:
        raise _wrong("modes", f"{text!r}: expected NAME or NAME:NUMBER, such as ssp:4") from None
