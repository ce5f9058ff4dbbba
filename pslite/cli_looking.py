"""The commands that look at a job: status, table stats, audit.

Each imports what it needs when it runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from pslite.cli_options import KEYS, RUN, SCHEDULER, TIMEOUT, VERBOSE, clear_errors, leave


@click.command()
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


@click.group()
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
    policies; how often a key was found in memory and not on disk; the most used keys; what
    dispatchers hold: copies of rows, and what compression has kept back.

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
            dispatchers = looking.dispatcher_reports(observer, observer.cluster())
        text = looking.table_stats(reports, name, dispatchers)  # also finds: no such table
        chosen = reports if name is None else {name: reports[name]}
        click.echo(json.dumps(chosen, indent=2) if as_json else text)


@click.command()
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
        if note := auditing.standing(run_dir):
            click.echo(f"pslite: {note}", err=True)
        found = json.dumps(auditing.as_json(accounts), indent=2)
        click.echo(found if as_json else auditing.report(accounts))
        leave(0 if auditing.balances(accounts) else 1)
