"""Runs that are to repeat: what a job must be like, and what its processes do for it.

`[run] deterministic` fixes chance and order, `record` and `replay` chance alone, since the order is
written down. What cannot be fixed is refused here, before anything starts; of tables
`kv.replay.rules` does so when they are defined. Nothing here needs NumPy until a worker fixes its
chance.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pslite.config import JobConfig
from van.errors import ConfigError

SUFFIX = ".record"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_HASH = "PYTHONHASHSEED"
_LARGEST_HASH_SEED = 2**32


def check_repeatable(job: JobConfig) -> None:
    """Refuse what a job of processes or threads that is to repeat cannot have.

    Raises:
        ConfigError: names section and key.
    """
    if job.run.is_fixed:
        for (section, key), problem in _problems(job):
            reason = f"a run with {_wish(job)} could not be repeated otherwise"
            raise ConfigError(f"{problem}; {reason}", section=section, key=key)


def _wish(job: JobConfig) -> str:
    """Which setting asks for it."""
    run = job.run
    return f"[run] {'replay' if run.replay else 'record' if run.record else 'deterministic'}"


def _problems(job: JobConfig) -> Iterator[tuple[tuple[str, str], str]]:
    cluster, sync, run = job.cluster, job.param_sync, job.run
    has_order = bool(run.record or run.replay)
    if job.chaos.plan.strip():
        yield ("chaos", "plan"), "nothing may go wrong on purpose: expected no plan"
    links = job.simulate.imposed
    if links is not None and links.loses:
        yield ("simulate", links.loses), "no message may be lost on purpose: expected 0"
    for key in ("on_worker_failure", "on_server_failure"):
        if getattr(cluster, key) != "stop":
            yield ("cluster", key), f"expected stop, got {getattr(cluster, key)}"
    if job.server.app:
        yield ("server", "app"), "expected none: the order of one's own server program is not known"
    if sync.mode == "semi_sync" and sync.window:
        yield ("param_sync", "window"), "rounds must not close by the clock: expected 0s"
    if job.checkpoint.dir and job.checkpoint.kind == "fuzzy":
        yield ("checkpoint", "kind"), "expected step, not fuzzy"
    if cluster.dispatchers and (has_order or sync.mode != "sync"):
        yield ("cluster", "dispatchers"), "expected 0: what dispatchers merge is up to timing"
    if job.balance.overflow and cluster.dispatchers:
        yield ("balance", "overflow"), "expected no: who goes which way is up to timing"
    if job.balance.when_busy:
        yield ("balance", "when_busy"), "expected none: when a link is busy is up to timing"
    if has_order and cluster.replicas:
        yield ("cluster", "replicas"), "expected 0"
    if has_order and job.checkpoint.dir:
        yield ("checkpoint", "dir"), "expected none"
    if run.deterministic and sync.mode != "sync" and cluster.workers > 1:
        yield (
            ("param_sync", "mode"),
            f"in mode {sync.mode} the order of {cluster.workers} workers' pushes is up to timing. "
            f"Possible are sync, or one worker; or leave deterministic out, record the run "
            f"(--record DIR), and repeat that one (--replay DIR)",
        )


def why_fixed(job: JobConfig) -> str:
    """Why a running job must stay as it is; empty: it need not."""
    if not job.run.is_fixed:
        return ""
    return f"it keeps the servers that it has, because of {_wish(job)}"


# -- records ------------------------------------------------------------------------------------


def with_record(job: JobConfig) -> JobConfig:
    """`job` with absolute folders of its records, the one to write empty, the other of such a job.

    Raises:
        ConfigError: there is a record already, or none.
        RecordError: it is damaged, or of another cluster.
    """
    run = job.run
    if run.record:
        folder = Path(run.record).resolve()
        if folder.is_dir() and any(folder.glob(f"*{SUFFIX}")):
            raise _of_record("record", f"{folder} holds a record; take another folder, or empty it")
        return replace(job, run=replace(run, record=str(folder)))
    if run.replay:
        folder = Path(run.replay).resolve()
        _check_record(job, folder)
        return replace(job, run=replace(run, replay=str(folder)))
    return job


def _check_record(job: JobConfig, folder: Path) -> None:
    from kv.replay.leases import ReplayedLeases, leases_file
    from kv.replay.recordfile import read_record, server_file
    from pslite.ordering import head_of

    files = [server_file(folder, rank) for rank in range(job.cluster.servers)]
    if not files[0].exists():
        raise _of_record("replay", f"there is no record in {folder}: {files[0].name} is missing")
    for rank, file in enumerate(files):
        record = read_record(file)
        check_head(record.path, record.head.differences(head_of(job, rank)))
    ReplayedLeases(leases_file(folder))


def check_head(path: Path, differences: list[str]) -> None:
    """Refuse a record of another cluster."""
    if differences:
        from kv.replay.errors import RecordError

        raise RecordError(path, f"this job is not the recorded one: {', '.join(differences)}")


def _of_record(key: str, problem: str) -> ConfigError:
    return ConfigError(problem, section="run", key=key)


# -- chance -------------------------------------------------------------------------------------


def fixed_environ(job: JobConfig, env: Mapping[str, str]) -> dict[str, str]:
    """`env` for the processes of a job, in which a job that is to repeat has no chance left.

    Python's hashes are seeded, and numeric libraries use one thread unless `env` says otherwise.
    """
    if not job.run.is_fixed:
        return dict(env)
    one_thread = dict.fromkeys(_THREADS, "1")
    cuda = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # what CUDA's matrix products need for it
    return {**one_thread, **cuda, **env, _HASH: str(job.run.seed % _LARGEST_HASH_SEED)}


def check_hashes(job: JobConfig, env: Mapping[str, str]) -> None:
    """Refuse a worker's process whose chance is fixed too late.

    Raises:
        ConfigError: the order of Python's sets is drawn anew, which only the start of a process can
            change.
    """
    if job.run.is_fixed and sys.flags.hash_randomization and not env.get(_HASH, "").isdigit():
        problem = (
            f"expected a number, as `pslite local` sets it: the order of Python's sets is drawn "
            f"anew in each process, and a run with {_wish(job)} could not be repeated"
        )
        raise ConfigError(problem, key=_HASH)


def fix_chance(job: JobConfig, rank: int) -> None:
    """Seed this process' random generators, Python's and NumPy's, for a worker of that rank."""
    if job.run.is_fixed:
        import numpy as np

        chance = np.random.SeedSequence([job.run.seed, rank]).generate_state(2)
        random.seed(int(chance[0]))
        np.random.seed(int(chance[1]))  # also what programs draw without a generator repeats
