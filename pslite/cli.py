"""The command `pslite`. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from pslite import __version__
from pslite.cli_bench import compression
from pslite.cli_checkpoint import checkpoint
from pslite.cli_simulate import simulate
from van.errors import PsliteError

EXIT_ERROR = 2  # also click's own code for wrong usage

INI = click.argument("ini", type=click.Path(path_type=Path))
SET = click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Override one setting of the ini file; may be repeated.",
)
VERBOSE = click.option(
    "-v", "--verbose", count=True, help="-v: connections and tracebacks, -vv: every message."
)


@contextlib.contextmanager
def clear_errors(verbose: int = 0) -> Iterator[None]:
    """Turn an error of ours into one line on stderr and exit code 2; -v adds the traceback."""
    try:
        yield
    except PsliteError as error:
        if verbose:
            traceback.print_exc()
        click.echo(f"pslite: error: {error}", err=True)
        sys.exit(EXIT_ERROR)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pslite")
def main() -> None:
    """A parameter server for sparse models.

    \b
    Try it on this machine:
      pslite local conf/local.ini --servers 2 --workers 2 -- python examples/hello_ps.py
    """


@main.command(context_settings={"ignore_unknown_options": False})
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

    \b
    Examples:
      pslite local conf/local.ini -- python my_worker.py --epochs 3
      pslite local conf/local.ini --servers 2 --workers 4 --set param_sync.mode=sync \\
          --run run/night --log-dir logs -- python my_worker.py
      pslite local conf/local.ini --workers 2 --set cluster.on_worker_failure=restart \\
          --chaos "kill worker@20s, stop server@30s for 5s, drop 2%" -- python my_worker.py
    """
    from pslite.config import read_job
    from pslite.environ import current, verbosity
    from pslite.launcher import LaunchOptions, run_local

    with clear_errors(verbose):
        counts = {"servers": servers, "workers": workers}
        options = [f"cluster.{key}={n}" for key, n in counts.items() if n is not None]
        if chaos is not None:
            options.append(f"chaos.plan={chaos}")
        # All at once: one setting may be right only with another.
        origin = "--set, --servers, --workers or --chaos" if options else "--set"
        job = read_job(ini, [*overrides, *options], origin=origin)
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


@main.command()
@VERBOSE
def node(verbose: int) -> None:
    """Run one node of a cluster: the scheduler or a server.

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
      DMLC_ROLE                scheduler, server or worker
      DMLC_NUM_SERVER          how many servers
      DMLC_NUM_WORKER          how many workers
      DMLC_PS_ROOT_URI         host at which the scheduler listens
      DMLC_PS_ROOT_PORT        its port
    Variables of one node, if wanted:
      DMLC_NODE_HOST           host name or address at which the others reach this node;
                               unset: this machine's address on the way to the scheduler
      DMLC_INTERFACE           network interface whose address it takes instead, such as eth0
      PSLITE_RANK              the rank it asks for; unset: any that is free
      PSLITE_VERBOSE           0, 1 (connections) or 2 (every message); else PS_VERBOSE
      PSLITE_RUN               the job's run folder, for what nodes write there
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


@main.command()
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


@main.group(invoke_without_command=True)
@click.pass_context
@click.option("--quick", is_flag=True, help="Some minutes: 3 rounds, fewer sizes.")
@click.option("--large", is_flag=True, help="Also tables of 50 and 100 million rows.")
@click.option(
    "--only", metavar="NAME", multiple=True, help="Only this workload; may be repeated. See --list."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each case; default: 5.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of peers; default: bench/peers of the source tree.",
)
@click.option(
    "--without", metavar="PEER", multiple=True, help="Leave this peer out; may be repeated."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all figures to this file.",
)
@click.option(
    "--png",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw keys a second; needs Matplotlib.",
)
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also put the tables into this page, between its marks, or into a new file.",
)
@click.option(
    "--from",
    "earlier",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Measure nothing; report from a file that --json wrote.",
)
@click.option("--list", "is_list", is_flag=True, help="Show workloads and peers, and end.")
def bench(
    context: click.Context,
    quick: bool,
    large: bool,
    only: tuple[str, ...],
    rounds: int | None,
    peers: Path | None,
    without: tuple[str, ...],
    json_file: Path | None,
    picture: Path | None,
    markdown: Path | None,
    earlier: Path | None,
    is_list: bool,
) -> None:
    """Measure pslite beside its peers on this machine, against its targets.

    Peers (torch rpc, gRPC, Ray, bare pyzmq) are files of a folder, and take part if what they
    need is installed: pip install pslite[bench]. Everything is measured in turn, in processes of
    its own; nothing else should run meanwhile. Shown are medians, and min to max, of all rounds.

    \b
    Examples:
      pslite bench --quick
      pslite bench --json bench.json --png bench.png
      pslite bench --only tables --only latency --rounds 9 --without ray_actor
      pslite bench --from bench.json --markdown docs/performance.md
      pslite bench compression
    """
    if context.invoked_subcommand is not None:
        return
    from pslite.bench.command import Request, run_command

    with clear_errors():
        run_command(
            Request(
                is_quick=quick,
                is_large=large,
                only=only,
                rounds=rounds,
                peers=peers,
                without=without,
                json=json_file,
                png=picture,
                markdown=markdown,
                earlier=earlier,
                is_list=is_list,
            )
        )


RUN = click.option(
    "--run",
    "run_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The job's run folder; default: run, in the current folder.",
)
SCHEDULER = click.option(
    "--scheduler", metavar="ADDRESS", help="The scheduler's address instead, such as host:9091."
)

KEYS = click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --scheduler: the job's folder of keys, if it has [security] curve = on.",
)


def _seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= threading.TIMEOUT_MAX:
        raise click.BadParameter(f"{value} is no number of seconds above 0")
    return value


TIMEOUT = click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    callback=_seconds,
    help="Seconds to wait for a node's answer.",
)


@main.command()
@RUN
@SCHEDULER
@KEYS
@TIMEOUT
@VERBOSE
def status(
    run_dir: Path | None, scheduler: str | None, keys: Path | None, timeout: float, verbose: int
) -> None:
    """Show the nodes of a running job.

    \b
    Examples:
      pslite status
      pslite status --scheduler 127.0.0.1:9091
    """
    from pslite import looking

    with clear_errors(verbose):
        address = looking.scheduler_of(run_dir, scheduler)
        folder = looking.keys_of(run_dir, scheduler, keys)
        with looking.observing(address, timeout, folder) as observer:
            click.echo(looking.status(observer))


@main.group()
def table() -> None:
    """Look at the tables of a running job."""


@table.command()
@RUN
@SCHEDULER
@KEYS
@TIMEOUT
@VERBOSE
@click.option("--json", "as_json", is_flag=True, help="Print each server's report as JSON.")
@click.argument("name", required=False)
def stats(
    run_dir: Path | None,
    scheduler: str | None,
    keys: Path | None,
    timeout: float,
    verbose: int,
    as_json: bool,
    name: str | None,
) -> None:
    """Show rows, memory and use of the tables, or of the table NAME.

    Rows, bytes and load of the index; keys admitted, denied, evicted and expired by the table's
    policies; how often a key was found in memory and not on disk; the most used keys.

    \b
    Examples:
      pslite table stats
      pslite table stats user --run run/night
    """
    import json

    from pslite import looking

    with clear_errors(verbose):
        address = looking.scheduler_of(run_dir, scheduler)
        folder = looking.keys_of(run_dir, scheduler, keys)
        with looking.observing(address, timeout, folder) as observer:
            reports = looking.table_reports(observer)
        text = looking.table_stats(reports, name)  # also finds that there is no such table
        chosen = reports if name is None else {name: reports[name]}
        click.echo(json.dumps(chosen, indent=2) if as_json else text)


main.add_command(checkpoint)
main.add_command(simulate)
bench.add_command(compression)


@main.command()
@click.option(
    "--cluster",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the keys; what is there is kept, what is missing is made.",
)
@click.option("--servers", type=click.IntRange(0, 1024), help="Keys of servers; default: 1.")
@click.option("--workers", type=click.IntRange(0), help="Keys of workers; default: 1.")
@click.option(
    "--per-role",
    is_flag=True,
    help="One key for all servers and one for all workers: nodes of a role are not told apart.",
)
@VERBOSE
def keygen(
    folder: Path, servers: int | None, workers: int | None, per_role: bool, verbose: int
) -> None:
    """Make the keys of a cluster, and the lists of who may take which role.

    With them `[security] curve = on` encrypts all connections and lets only these nodes in. Each
    node has a key NAME.secret, which nobody else may read, and NAME.public; ROLE.allowed lists the
    keys that may register as ROLE. Copy to another machine the lists, scheduler.public and the
    secret keys of its own nodes. docs/security.md tells more.

    \b
    Examples:
      pslite keygen --cluster keys --servers 2 --workers 4
      pslite local conf/local.ini --servers 2 --workers 4 \\
          --set security.curve=on --set security.keys=keys -- python my_worker.py
    """
    from pslite.keyring import make_keys, names_of

    with clear_errors(verbose):
        if per_role and (servers is not None or workers is not None):
            raise click.UsageError("--per-role makes one key a role; leave out the counts")
        result = make_keys(
            folder,
            ["server"] if per_role else names_of("server", 1 if servers is None else servers),
            ["worker"] if per_role else names_of("worker", 1 if workers is None else workers),
        )
        click.echo(f"{folder}: {len(result.made)} keys made, {len(result.kept)} kept")
        click.echo(f"switch on: --set security.curve=on --set security.keys={folder}")


@main.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the accounts as JSON.")
def audit(run_dir: Path, as_json: bool) -> None:
    """Check that the job in the folder RUN counted every record of its data exactly once.

    Workers that read data by worker.shards(...), as pslite-ctr does, get it in pieces; what happens
    to each piece stands in RUN/ledger.jsonl. A piece counts when its worker says that it is done;
    what a worker that died had not done is given to another. Shown are, for each data set, the
    records that count, pieces that were given again and how many of their records the model had
    seen before (to within a step for each death), and the share of each worker.

    Exit code 0: every record counts exactly once. 1: it does not; what is missing, or counted
    twice, is told. A job that still runs is not complete. 2: there is no ledger to be read.

    \b
    Examples:
      pslite audit run
      pslite audit run/night --json
    """
    import json

    from pslite import audit as auditing

    with clear_errors():
        accounts = auditing.audit(run_dir)
        found = json.dumps(auditing.as_json(accounts), indent=2)
        click.echo(found if as_json else auditing.report(accounts))
        leave(0 if auditing.balances(accounts) else 1)


@main.group()
def ctl() -> None:
    """Change a running job."""


@ctl.command()
@RUN
@SCHEDULER
@KEYS
@TIMEOUT
@VERBOSE
@click.option("--servers", type=click.IntRange(1, 1024), required=True, help="How many to have.")
@click.option("--within", default=600.0, show_default=True, help="Seconds to wait for the moves.")
def scale(
    run_dir: Path | None,
    scheduler: str | None,
    keys: Path | None,
    timeout: float,
    verbose: int,
    servers: int,
    within: float,
) -> None:
    """Let a running job have another number of servers; it goes on meanwhile.

    Rows move to servers that come, and away from those that leave. In a job of `pslite local` new
    servers are started by its launcher; elsewhere this command says how many are to be started.

    \b
    Examples:
      pslite ctl scale --servers 3
      pslite ctl scale --servers 3 --scheduler host:9091 --keys keys
    """
    from pslite import looking
    from pslite.scaling import launcher_of
    from pslite.scaling import scale as scale_job

    with clear_errors(verbose):
        address = looking.scheduler_of(run_dir, scheduler)
        folder = looking.keys_of(run_dir, scheduler, keys)
        ask = launcher_of(run_dir, scheduler, timeout)
        with looking.observing(address, timeout, folder) as observer:
            scale_job(observer, servers, within, click.echo, ask)


def leave(code: int) -> None:
    """Leave with `code`, quietly even if nobody reads our output any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
