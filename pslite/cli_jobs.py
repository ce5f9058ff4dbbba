"""The commands that run a job, or a node of one, and show its settings.

Each imports what it needs when it runs.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from pslite.cli_options import INI, SET, VERBOSE, clear_errors, leave


@click.command(context_settings={"ignore_unknown_options": False})
@INI
@click.option("--servers", type=int, help="Server processes; default: [cluster] servers.")
@click.option("--workers", type=int, help="Worker processes; default: [cluster] workers.")
@SET
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write one file of output for each node into this folder.",
)
@click.option(
    "--run",
    "run_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for cluster.json; default: run, in the current folder.",
)
@click.option(
    "--chaos",
    metavar="PLAN",
    help="What is to go wrong on purpose, such as 'kill server@20s, drop 2%'.",
)
@click.option(
    "--record",
    metavar="DIR",
    help="Write down the order in which servers work, so that the run can be repeated.",
)
@click.option("--replay", metavar="DIR", help="Repeat the run that was recorded there.")
@VERBOSE
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def local(
    ini: Path,
    servers: int | None,
    workers: int | None,
    overrides: tuple[str, ...],
    log_dir: Path | None,
    run_dir: Path | None,
    chaos: str | None,
    record: str | None,
    replay: str | None,
    verbose: int,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as the workers of a cluster of processes on this machine.

    A scheduler and servers are started around it; all output appears here under the names of the
    nodes. The job ends when all workers have ended, or at the first node that fails, with its
    exit code. Ctrl-C ends everything. A leading `python` is the Python that runs pslite.

    Every running job writes RUN/cluster.json (state, processes, the scheduler's address), by which
    other commands find it; so a folder `run` appears where none is named by --run. Two jobs at the
    same time need a folder each.

    With --chaos, or [chaos] plan in INI, things go wrong on purpose, and a report of it stands at
    the end and in RUN/chaos.json: what was injected, what was noticed when and by whom, how long
    the step rate suffered, whether the ledger balances (if not, the exit code is 1). Chance comes
    from [chaos] seed. A plan is a list of:

    \b
      kill | stop | cont | restart ROLE[:RANK]@WHEN [for TIME]
      drop | duplicate | delay | reorder N% [up to TIME] [between ROLE[:RANK] and ROLE[:RANK]]
          [from TIME] [for TIME]
      partition ROLE[:RANK] from ROLE[:RANK]@TIME [for TIME]
    WHEN is a time after all nodes have met, or start, barrier, checkpoint, shutdown,
    or the n-th such (barrier:3), or some time after it (barrier:3+2s).

    A run whose workers do not wait for each other comes to other bits each time. With --record
    each server writes down in which order it worked on requests, and with --replay the same job
    is run in that order again, to the same bits, or ends with what was expected and what came
    instead. Runs in mode sync repeat by [run] deterministic = yes alone. docs/consistency.md has
    the limits.

    \b
    Examples:
      pslite local conf/local.ini -- python my_worker.py --epochs 3
      pslite local conf/local.ini --servers 2 --workers 4 --set param_sync.mode=sync \\
          --run run/night --log-dir logs -- python my_worker.py
      pslite local conf/local.ini --workers 2 --set cluster.on_worker_failure=restart \\
          --chaos "kill worker@20s, stop server@30s for 5s, drop 2%" -- python my_worker.py
      pslite local conf/local.ini --workers 2 --record run/order -- python my_worker.py
      pslite local conf/local.ini --workers 2 --replay run/order -- python my_worker.py
    """
    from pslite.config import read_job
    from pslite.environ import current, verbosity
    from pslite.launcher import LaunchOptions, run_local
    from van.errors import ConfigError

    with clear_errors(verbose):
        if ini.suffix != ".ini" and not ini.exists():  # left out, so the command's first word
            raise ConfigError(
                f"there is no ini file {ini}; it comes before the command, as in "
                f"pslite local conf/local.ini -- python my_worker.py"
            )
        given = {
            "--servers": ("cluster.servers", servers),
            "--workers": ("cluster.workers", workers),
            "--chaos": ("chaos.plan", chaos),
            "--record": ("run.record", record),
            "--replay": ("run.replay", replay),
        }
        options = {
            option: f"{place}={value}"
            for option, (place, value) in given.items()
            if value is not None
        }
        # All at once: one setting may be right only with another.
        job = read_job(ini, overrides, options=options)
        code = run_local(
            job,
            command,
            LaunchOptions(
                log_dir=log_dir,
                run_dir=run_dir or Path("run"),
                needs_run_dir=run_dir is not None,
                verbose=verbose or verbosity(current()),
            ),
        )
    leave(code)


@click.command()
@VERBOSE
def node(verbose: int) -> None:
    """Run one node of a cluster: the scheduler, a server or a dispatcher.

    Its role and the scheduler's address come from the environment, as with ps-lite; `pslite local`
    sets them by itself. Programs of workers call pslite.connect().

    \b
    Example, on three terminals. First, in each of them, what all nodes share:
      export DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=9091 DMLC_NUM_SERVER=1 DMLC_NUM_WORKER=1
    Then one line in each:
      DMLC_ROLE=scheduler pslite node
      DMLC_ROLE=server pslite node
      DMLC_ROLE=worker python examples/hello_ps.py

    On several machines DMLC_PS_ROOT_URI is the scheduler's host as the others reach it.

    \b
    Variables of every node:
      DMLC_ROLE                scheduler, server, dispatcher or worker
      DMLC_NUM_SERVER          how many servers
      DMLC_NUM_WORKER          how many workers
      DMLC_NUM_DISPATCHER      how many dispatchers; unset: what the ini file says, else none
      DMLC_PS_ROOT_URI         host at which the scheduler listens
      DMLC_PS_ROOT_PORT        its port
    Variables of one node, if wanted:
      DMLC_NODE_HOST           host name or address at which the others reach this node;
                               unset: this machine's address on the way to the scheduler
      DMLC_INTERFACE           network interface whose address it takes instead, such as eth0
      PSLITE_RANK              the rank it asks for; unset: any that is free
      PSLITE_VERBOSE           0, 1 (connections) or 2 (every message); else PS_VERBOSE
      PSLITE_RUN               the job's run folder, for what nodes write there
    Variables that `pslite local` sets:
      PSLITE_LIFE              a number that it knows this process by
      PSLITE_LAUNCHER          stdin: where it tells the scheduler which processes have ended
      PSLITE_BEGINS            1: with this scheduler a job begins, whatever etcd has of one before
    Settings, the same for every node:
      PSLITE_CONF              an ini file, such as conf/local.ini
      PSLITE_SET               lines section.key=value that override it
      PS_HEARTBEAT_INTERVAL    seconds between a node's signs of life; 0: none
      PS_HEARTBEAT_TIMEOUT     seconds without one after which a node is dead
      PS_RESEND                0 or 1: whether what nobody answers is sent again
      PS_RESEND_TIMEOUT        milliseconds until then
      PS_DROP_MSG              percent of this node's messages to lose on purpose, for tests
    """
    from dataclasses import replace

    from pslite.environ import current, from_environ

    with clear_errors(verbose):
        settings = from_environ(current())
        if verbose:
            settings = replace(settings, verbose=verbose)

        from postoffice.errors import ClusterStoppedError
        from pslite.lifecycle import CONSEQUENCE
        from pslite.node import run_node

        try:
            run_node(settings)
        except ClusterStoppedError as error:
            click.echo(f"pslite: {settings} ends: {error}", err=True)
            sys.exit(CONSEQUENCE)
        except KeyboardInterrupt:
            click.echo(f"pslite: {settings} ends: interrupted", err=True)
            sys.exit(128 + signal.SIGINT)


@click.command()
@INI
@SET
@VERBOSE
def config(ini: Path, overrides: tuple[str, ...], verbose: int) -> None:
    """Print the settings that INI gives, each with its meaning and default.

    \b
    Example:
      pslite config conf/local.ini --set cluster.servers=4
    """
    from pslite.config import read_job
    from pslite.explain import explain

    with clear_errors(verbose):
        click.echo(explain(read_job(ini, overrides)), nl=False)
