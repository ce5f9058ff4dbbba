"""The environment variables: the one module that reads them.

The `DMLC_*` and `PS_*` names have ps-lite's meaning. What is unset is as the ini file says,
which `PSLITE_CONF` names and `PSLITE_SET` overrides.

    DMLC_ROLE                       scheduler, server or worker
    DMLC_NUM_SERVER, _WORKER, _DISPATCHER     how many of each
    DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT       where the scheduler listens
    DMLC_NODE_HOST                  where this node listens; wins over
    DMLC_INTERFACE                  the network interface whose address it takes
    PS_RESEND                       0 or 1: [van] resend
    PS_RESEND_TIMEOUT               milliseconds: [van] resend_timeout
    PS_DROP_MSG                     percent of messages that are lost on purpose: [chaos] plan
    PS_HEARTBEAT_INTERVAL, PS_HEARTBEAT_TIMEOUT     seconds, whole or with a fraction; 0: off
    PSLITE_VERBOSE, PS_VERBOSE      0, 1: connections, 2: every message; the first wins
    PSLITE_CONF                     an ini file
    PSLITE_SET                      lines section.key=value; an indented line continues a value
    PSLITE_RANK                     the rank this node asks for
    PSLITE_RUN                      the job's run folder, for what nodes write there (the ledger)
    PSLITE_BEGINS                   1: a job begins with this scheduler; what etcd has of one before
                                    is forgotten
    PSLITE_LIFE                     a number of this process alone, by which its launcher tells the
                                    scheduler of its end
    PSLITE_LAUNCHER                 stdin: where a scheduler hears from its launcher
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pslite
from postoffice.config import ClusterConfig, join_address
from postoffice.node import Role
from pslite.addresses import address_of_interface, address_towards, is_loopback
from pslite.chaos.config import ChaosConfig, counts_of
from pslite.config import JobConfig, read_job
from pslite.ini import split_assignments
from pslite.values import nearest
from van.config import VanConfig
from van.errors import ConfigError

OURS = (
    "DMLC_ROLE",
    "DMLC_NUM_SERVER",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_DISPATCHER",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NODE_HOST",
    "DMLC_INTERFACE",
    "PS_HEARTBEAT_INTERVAL",
    "PS_HEARTBEAT_TIMEOUT",
    "PSLITE_VERBOSE",
    "PS_RESEND",
    "PS_RESEND_TIMEOUT",
    "PS_DROP_MSG",
    "PS_VERBOSE",
    "PSLITE_CONF",
    "PSLITE_SET",
    "PSLITE_RANK",
    "PSLITE_RUN",
    "PSLITE_BEGINS",
    "PSLITE_LIFE",
    "PSLITE_LAUNCHER",
)

_MOST_LIFE = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What one process needs to know to take its place in a cluster."""

    role: Role
    rank: int | None = None  # the rank it asks for; None: any
    job: JobConfig
    verbose: int = 0
    run_dir: Path | None = None  # the job's folder; None: nodes write no files
    begins: bool = False  # of a scheduler: a job begins with it, whatever etcd has of one before
    life: int | None = None  # what its launcher knows this process by; None: it has no launcher
    hears_launcher: bool = False  # a scheduler whose standard input is a pipe from its launcher

    @property
    def scheduler(self) -> str:
        """The scheduler's address, `tcp://HOST:PORT`."""
        return f"{self.job.cluster.transport}://{self.job.cluster.scheduler}"

    def __str__(self) -> str:
        has_rank = self.rank is not None and self.role is not Role.SCHEDULER
        return f"{self.role} {self.rank}" if has_rank else str(self.role)


def current() -> Mapping[str, str]:
    """The environment of this process, a copy."""
    return dict(os.environ)


def is_in_cluster(env: Mapping[str, str]) -> bool:
    """Whether the environment gives this process a role."""
    return bool(env.get("DMLC_ROLE"))


def from_environ(
    env: Mapping[str, str],
    *,
    towards: Callable[[str], str] = address_towards,
    of_interface: Callable[[str], str] = address_of_interface,
) -> NodeSettings:
    """The settings of this process.

    Args:
        env: the variables, usually `current()`.
        towards: finds this machine's address on the way to a host.
        of_interface: finds the address of a network interface.
    Raises:
        ConfigError: no role, or a variable or the ini file is wrong.
    """
    role = _role(env)
    job = job_from_environ(env)
    cluster = job.cluster
    counts = {
        "servers": _whole(env, "DMLC_NUM_SERVER"),
        "workers": _whole(env, "DMLC_NUM_WORKER"),
        "dispatchers": _whole(env, "DMLC_NUM_DISPATCHER"),
    }
    uri, port = env.get("DMLC_PS_ROOT_URI"), _whole(env, "DMLC_PS_ROOT_PORT", 65535)
    address = join_address(
        uri or cluster.scheduler_host, cluster.scheduler_port if port is None else port
    )
    given = {key: count for key, count in counts.items() if count is not None}
    cluster = _replace(cluster, {**given, **_heartbeats(env), "scheduler": address})
    if role is not Role.SCHEDULER and cluster.scheduler_port == 0:
        raise ConfigError(
            "where is the scheduler? Set DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, or [cluster] "
            "scheduler = HOST:PORT in the file PSLITE_CONF names",
            key="DMLC_PS_ROOT_PORT",
        )
    cluster = _replace(cluster, {"host": _host(env, cluster, towards, of_interface)})
    job.chaos.check(cluster)
    van = _van(env, job.van)
    job.simulate.check_job(counts_of(cluster), van.resend == "on")
    return NodeSettings(
        role=role,
        rank=_rank(env, role, cluster),
        job=replace(job, cluster=cluster, van=van, chaos=_chaos(env, job.chaos)),
        verbose=verbosity(env),
        run_dir=Path(env["PSLITE_RUN"]) if env.get("PSLITE_RUN") else None,
        begins=env.get("PSLITE_BEGINS") == "1",
        life=_whole(env, "PSLITE_LIFE", _MOST_LIFE),
        hears_launcher=env.get("PSLITE_LAUNCHER") == "stdin",
    )


def job_from_environ(env: Mapping[str, str]) -> JobConfig:
    """The job of `PSLITE_CONF` and `PSLITE_SET`, without the `DMLC_*` variables.

    Raises:
        ConfigError: the file or an override is wrong.
    """
    overrides = split_assignments(env.get("PSLITE_SET", ""))
    return read_job(env.get("PSLITE_CONF") or None, overrides, origin="PSLITE_SET")


def verbosity(env: Mapping[str, str]) -> int:
    """0, 1 or 2 from `PSLITE_VERBOSE`, else `PS_VERBOSE`, else 0."""
    name = "PSLITE_VERBOSE" if env.get("PSLITE_VERBOSE") else "PS_VERBOSE"
    return _whole(env, name) or 0


def to_environ(settings: NodeSettings) -> dict[str, str]:
    """The variables from which `from_environ` gives equal settings.

    Raises:
        ConfigError: a setting that no text can hold.
    """
    cluster = settings.job.cluster
    env = {
        "DMLC_ROLE": settings.role.value,
        "DMLC_NUM_SERVER": str(cluster.servers),
        "DMLC_NUM_WORKER": str(cluster.workers),
        "DMLC_NUM_DISPATCHER": str(cluster.dispatchers),
        "DMLC_PS_ROOT_URI": cluster.scheduler_host,
        "DMLC_PS_ROOT_PORT": str(cluster.scheduler_port),
        "DMLC_NODE_HOST": cluster.host,
        "PSLITE_VERBOSE": str(settings.verbose),
        "PSLITE_SET": settings.job.to_assignments(),
    }
    if settings.rank is not None:
        env["PSLITE_RANK"] = str(settings.rank)
    if settings.run_dir is not None:
        env["PSLITE_RUN"] = str(settings.run_dir)
    if settings.begins:
        env["PSLITE_BEGINS"] = "1"
    if settings.life is not None:
        env["PSLITE_LIFE"] = str(settings.life)
    if settings.hears_launcher:
        env["PSLITE_LAUNCHER"] = "stdin"
    return env


def child_environ(env: Mapping[str, str], settings: NodeSettings) -> dict[str, str]:
    """`env` for a child process: every variable of ours replaced by those of `settings`."""
    kept = {name: value for name, value in env.items() if name not in OURS}
    return {**kept, **to_environ(settings)}


def with_pslite(env: Mapping[str, str]) -> dict[str, str]:
    """`env` in which a Python finds this pslite, also when it runs from a source folder."""
    home = Path(pslite.__file__).resolve().parent.parent
    if home in {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}:
        return dict(env)  # installed, and that folder must not come before Python's own
    path = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**env, "PYTHONPATH": os.pathsep.join([*path, str(home)])}


def _role(env: Mapping[str, str]) -> Role:
    name = env.get("DMLC_ROLE", "")
    roles = [role.value for role in Role]
    if not name:
        raise ConfigError(
            "DMLC_ROLE is not set, so this process is in no cluster; start it by "
            "`pslite local conf/local.ini -- python PROGRAM`, or use pslite.connect(local=True)"
        )
    if name not in roles:
        problem = f"expected {', '.join(roles)}, got {name!r}{nearest(name, roles)}"
        raise ConfigError(problem, key="DMLC_ROLE")
    return Role(name)


def _whole(env: Mapping[str, str], name: str, most: int | None = None) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or (most is not None and int(text) > most):
        expected = "a whole number" if most is None else f"0 to {most}"
        raise ConfigError(f"expected {expected}, got {text!r}", key=name)
    return int(text)


def _heartbeats(env: Mapping[str, str]) -> dict[str, object]:
    """ps-lite's two variables, in seconds; there an interval of 0 switches heartbeats off."""
    interval = _seconds(env, "PS_HEARTBEAT_INTERVAL")
    timeout = _seconds(env, "PS_HEARTBEAT_TIMEOUT")
    found: dict[str, object] = {}
    if interval:
        found["heartbeat_interval"] = interval
    if timeout is not None or interval == 0:
        found["heartbeat_timeout"] = 0.0 if interval == 0 else timeout
    return found


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        raise ConfigError(f"expected a number of seconds, got {text!r}", key=name)
    return float(text)


def _rank(env: Mapping[str, str], role: Role, cluster: ClusterConfig) -> int | None:
    rank = _whole(env, "PSLITE_RANK")
    ranks = {
        Role.SCHEDULER: 1,
        Role.SERVER: cluster.servers,
        Role.WORKER: cluster.workers,
        Role.DISPATCHER: cluster.dispatchers,
    }[role]
    if rank is not None and rank >= ranks:
        problem = f"{role} {rank} does not exist; the job has {ranks}, counted from 0"
        raise ConfigError(problem, key="PSLITE_RANK")
    return rank


def _van(env: Mapping[str, str], van: VanConfig) -> VanConfig:
    """The settings of the van with ps-lite's variables about resending."""
    resend, timeout = _whole(env, "PS_RESEND", 1), _whole(env, "PS_RESEND_TIMEOUT")
    if timeout == 0:
        raise ConfigError("expected 1 millisecond or more, got 0", key="PS_RESEND_TIMEOUT")
    return replace(
        van,
        resend=van.resend if resend is None else ("off", "on")[resend],
        resend_timeout=van.resend_timeout if timeout is None else timeout / 1000,
    )


def _chaos(env: Mapping[str, str], chaos: ChaosConfig) -> ChaosConfig:
    """The faults on purpose with ps-lite's variable about them."""
    percent = _whole(env, "PS_DROP_MSG", 100)
    if not percent:
        return chaos
    plan = [chaos.plan] if chaos.plan.strip() else []
    return replace(chaos, plan=", ".join([*plan, f"drop {percent}%"]))


def _host(
    env: Mapping[str, str],
    cluster: ClusterConfig,
    towards: Callable[[str], str],
    of_interface: Callable[[str], str],
) -> str:
    if env.get("DMLC_NODE_HOST"):
        return env["DMLC_NODE_HOST"]
    if env.get("DMLC_INTERFACE"):
        return of_interface(env["DMLC_INTERFACE"])
    if is_loopback(cluster.host) and not is_loopback(cluster.scheduler_host):
        # A cluster over several machines: nobody else could reach this node on a loopback address.
        return towards(cluster.scheduler_host)
    return cluster.host


def _replace(cluster: ClusterConfig, changes: dict[str, object]) -> ClusterConfig:
    variables = {
        "servers": "DMLC_NUM_SERVER",
        "workers": "DMLC_NUM_WORKER",
        "dispatchers": "DMLC_NUM_DISPATCHER",
        "scheduler": "DMLC_PS_ROOT_URI",
        "host": "DMLC_NODE_HOST",
        "heartbeat_interval": "PS_HEARTBEAT_INTERVAL",
        "heartbeat_timeout": "PS_HEARTBEAT_TIMEOUT",
    }
    try:
        return replace(cluster, **changes)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(error.problem, key=variables.get(error.key or "")) from None
