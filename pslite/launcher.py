"""A cluster of processes on this machine around a worker program.

`run_local` starts a scheduler, then servers and workers, shows what they print under their names
and sees to it that all of them end, whatever happens to any of them or to the launcher itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pslite import environ
from pslite.capacity import check_size
from pslite.chaos.config import counts_of
from pslite.config import JobConfig
from pslite.kept import forget_places, note_place
from pslite.keyring import keys_of_job
from pslite.localjob import LaunchOptions, LocalJob
from pslite.repeating import check_repeatable, fixed_environ, with_record
from pslite.rundir import RunDirectory
from van.errors import ConfigError

__all__ = ["LaunchOptions", "check_size", "resolve_command", "run_local"]

JOURNAL = "scheduler.journal"  # in the run folder
_FRAIL = ("stop", "stop", 0)  # how a job is set that ends when any node fails


def run_local(job: JobConfig, command: Sequence[str], options: LaunchOptions | None = None) -> int:
    """Run `command` as the workers of a local cluster; the exit code for the shell.

    0 if every node ended with 0; else the exit code of the first node that did not (128 + n if
    signal n ended it); 128 + n also if the launcher itself got signal n.

    Args:
        job: servers, workers and all other settings.
        command: the worker program; a leading `python` is the Python that runs this.
        options: where output goes, and the like.
    Raises:
        ConfigError: the command is not found, too many nodes, a plan of faults or a network that
            names none of them, or a folder that cannot be written.
    """
    options = options or LaunchOptions()
    env = environ.current() if options.env is None else options.env
    command = resolve_command(command, env)
    check_size(job)
    check_repeatable(job)
    job, env = with_record(job), fixed_environ(job, env)
    job.chaos.check(job.cluster)
    job.simulate.check_job(counts_of(job.cluster), job.van.resend == "on")
    job.checkpoint.require_place()
    with _run_directory(options) as run_dir:
        folder = None if run_dir is None else run_dir.path
        with keys_of_job(job, folder) as keyed:
            if run_dir is not None:  # for those who look into the job
                run_dir.update(keys=keyed.security.keys if keyed.security.curve else "")
                forget_places(run_dir.path)
                if job.checkpoint.dir:
                    note_place(run_dir.path, job.checkpoint.dir)
            lasting = with_journal(keyed, folder)
            makes_keys = not job.security.keys
            return LocalJob(lasting, command, env, options, run_dir, makes_keys=makes_keys).run()


def with_journal(job: JobConfig, run: Path | None) -> JobConfig:
    """`job` with a journal in its run folder, if it has one and goes on when a node fails.

    Then the scheduler's failure ends it as little as another's. What an earlier job left there is
    removed; a journal that the settings name is taken as it is.

    Raises:
        ConfigError: the folder cannot be written.
    """
    cluster = job.cluster
    wanted = {cluster.on_worker_failure, cluster.on_server_failure}
    is_lasting = wanted != {"stop"} or cluster.replicas > 0
    if cluster.journal:  # programs may change their directory
        journal = Path(cluster.journal).resolve()
    elif run is None or cluster.etcd or not is_lasting:
        return job
    else:
        journal = run.resolve() / JOURNAL
        try:
            journal.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{journal} cannot be removed: {error.strerror}") from None
    return replace(job, cluster=replace(cluster, journal=str(journal)))


def resolve_command(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The command with its program found: `python` is our own, others are looked up in PATH.

    Raises:
        ConfigError: nothing to run, or the program is not found.
    """
    if not command:
        raise ConfigError(
            "no worker program; give it after the ini file and --, as in "
            "pslite local conf/local.ini -- python my_worker.py"
        )
    program, *arguments = command
    if program in ("python", "python3"):
        return [sys.executable, *arguments]
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise ConfigError(
            f"worker program {program!r} not found, or not executable; "
            f"is it spelled right, or missing a leading `python`?"
        )
    return [found, *arguments]


@contextlib.contextmanager
def _run_directory(options: LaunchOptions) -> Iterator[RunDirectory | None]:
    if options.run_dir is None:
        yield None
        return
    try:
        directory = RunDirectory(options.run_dir)
    except ConfigError as error:
        if options.needs_run_dir:
            raise
        options.err.write(f"pslite: this job has no cluster.json: {error}\n")
        yield None
        return
    try:
        yield directory
    finally:
        directory.close()
