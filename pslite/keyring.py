"""Keys of a whole cluster in one folder: `pslite keygen` makes them, each node finds its own.

A folder for 2 servers and 3 workers holds the keys `scheduler`, `server-0`, `server-1`,
`worker-0` to `worker-2` and `observer` (for `pslite status`), and a list of the allowed keys for
each role. A machine needs of it the lists, `scheduler.public` and the secret keys of its own nodes.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from postoffice.config import ClusterConfig
from pslite.config import JobConfig
from van.config import SecurityConfig
from van.errors import ConfigError
from van.keys import (
    PUBLIC,
    SECRET,
    AllowLists,
    allow,
    new_pair,
    read_public,
    read_secret,
    write_pair,
)

if TYPE_CHECKING:
    from van.curve import Curve

SCHEDULER, OBSERVER = "scheduler", "observer"


@dataclass(frozen=True)
class Made:
    """What `make_keys` did."""

    made: tuple[str, ...]  # names of new keys
    kept: tuple[str, ...]  # of those that were there


def make_keys(folder: Path, servers: Sequence[str], workers: Sequence[str]) -> Made:
    """Make the keys of a cluster that are not in `folder` yet, and allow them their roles.

    Args:
        folder: made if need be, for its owner only.
        servers, workers: names of keys.
    Raises:
        ConfigError: it cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be made: {error.strerror}", file=str(folder)) from None
    names = [(SCHEDULER, SCHEDULER), (OBSERVER, OBSERVER)]
    names += [("server", name) for name in servers] + [("worker", name) for name in workers]
    made, kept = [], []
    for role, name in names:
        if (folder / f"{name}{SECRET}").exists():
            kept.append(name)
            continue
        pair = new_pair()
        # The secret key comes last: where it is, all is. A list is not mended for a key that is
        # there: who took it out wanted that.
        allow(folder, role, pair.public, name)
        write_pair(folder, name, pair)
        made.append(name)
    return Made(tuple(made), tuple(kept))


def names_of(role: str, count: int) -> list[str]:
    """The keys of `count` nodes of a role.

    >>> names_of("worker", 2)
    ['worker-0', 'worker-1']
    """
    return [f"{role}-{rank}" for rank in range(count)]


def curve_of(security: SecurityConfig, role: str, rank: int | None) -> Curve | None:
    """The keys of the node that takes `role`, or None where CURVE is off.

    Raises:
        ConfigError: the folder lacks a key, or one is damaged or open to others.
    """
    if not security.curve:
        return None
    from van.curve import Curve  # ZeroMQ, which a launcher without keys does without

    folder = _folder(security)
    return Curve(
        read_secret(_secret_of(folder, security.key, role, rank)),
        AllowLists(folder),
        read_public(folder / f"{SCHEDULER}{PUBLIC}"),
        trusts_lane=security.lane == "trusted",
    )


def _folder(security: SecurityConfig) -> Path:
    if not security.keys:
        raise ConfigError(
            "curve needs a folder of keys; make one with pslite keygen --cluster FOLDER",
            section="security",
            key="keys",
        )
    folder = Path(security.keys).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"no folder of keys; pslite keygen --cluster {folder} makes one", file=str(folder)
        )
    return folder


def _secret_of(folder: Path, key: str, role: str, rank: int | None) -> Path:
    """The file of a node's secret key: as said, or of its role and rank, or of its role."""
    if key:
        return folder / f"{key}{SECRET}"
    names = [role] if rank is None or role in (SCHEDULER, OBSERVER) else [f"{role}-{rank}", role]
    for name in names:
        file = folder / f"{name}{SECRET}"
        if file.exists():
            return file
    if rank is None:  # a machine with one node of the role has one key for it
        found = sorted(folder.glob(f"{role}-*{SECRET}"))
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"{len(found)} keys for a {role}; name one with [security] key, or the node's "
                f"rank with PSLITE_RANK",
                file=str(folder),
            )
    raise ConfigError(
        f"no key for {names[0]}; pslite keygen --cluster {folder} makes it (see its --servers "
        f"and --workers)",
        file=str(folder),
    )


def check_keys(security: SecurityConfig, cluster: ClusterConfig) -> None:
    """See before any node starts that each will find its key.

    Raises:
        ConfigError: some are missing, damaged or open to others.
    """
    folder = _folder(security)
    nodes = [(SCHEDULER, 0), *(("server", rank) for rank in range(cluster.servers))]
    nodes += [("worker", rank) for rank in range(cluster.workers)]
    missing = [
        role if role == SCHEDULER else f"{role}-{rank}"
        for role, rank in nodes
        if not any((folder / f"{name}{SECRET}").exists() for name in (f"{role}-{rank}", role))
    ]
    if missing and not security.key:
        raise ConfigError(
            f"no keys for {', '.join(missing)}; they are made by pslite keygen --cluster {folder} "
            f"--servers {cluster.servers} --workers {cluster.workers}",
            section="security",
            key="keys",
        )
    for role, rank in nodes:
        curve_of(security, role, rank)


@contextlib.contextmanager
def keys_of_job(job: JobConfig, run: Path | None) -> Iterator[JobConfig]:
    """`job` with the folder of its keys, for the processes of this machine.

    Where CURVE is on and no folder is named, each of its nodes gets a key that is made for this
    job and deleted after it.

    Args:
        job: the settings.
        run: its run folder; None: the keys lie in a temporary one.
    Raises:
        ConfigError: there is no such folder, or keys cannot be written.
    """
    security = job.security
    if not security.curve:
        yield job
        return
    if security.keys:
        folder = _folder(security).resolve()  # programs may change their directory
        security = replace(security, keys=str(folder))
        check_keys(security, job.cluster)
        yield replace(job, security=security)
        return
    if run is None:
        folder = Path(tempfile.mkdtemp(prefix="pslite-keys-"))
    else:
        folder = run.resolve() / "keys"
        shutil.rmtree(folder, ignore_errors=True)  # of a launcher that was killed
    try:
        cluster = job.cluster
        make_keys(folder, names_of("server", cluster.servers), names_of("worker", cluster.workers))
        yield replace(job, security=replace(security, keys=str(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
