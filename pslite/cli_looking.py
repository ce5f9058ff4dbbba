"""The commands that look at a job: status, table stats, metrics, audit.

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


@click.command()
@RUN
@SCHEDULER
@KEYS
@TIMEOUT
@VERBOSE
@click.option(
    "--listen", metavar="HOST:PORT", help="Answer Prometheus at http://HOST:PORT/metrics instead."
)
def metrics(
    run_dir: Path | None,
    scheduler: str | None,
    keys: Path | None,
    timeout: float,
    verbose: int,
    listen: str | None,
) -> None:
    """Print the metrics of a running job's nodes as Prometheus reads them.

    Of all nodes the bytes that they have sent, of dispatchers what waits and how long sums take.
    With --listen they are gathered anew each time that Prometheus looks, until Ctrl-C; no node of
    the job listens for that.

    \b
    Examples:
      pslite metrics
      pslite metrics --run run/night > night.prom
      pslite metrics --listen 127.0.0.1:9108
    """
    from postoffice.config import split_address
    from pslite import looking
    from pslite import metrics as gathering
    from van.errors import ConfigError

    with clear_errors(verbose):

        def read() -> str:
            address = looking.scheduler_of(run_dir, scheduler)
            folder = looking.keys_of(run_dir, scheduler, keys)
            with looking.observing(address, timeout, folder) as observer:
                return gathering.exposition(gathering.gather(observer))

        if listen is None:
            click.echo(read(), nl=False)
            return
        try:
            place = split_address(listen)
        except ConfigError as error:
            raise ConfigError(error.problem, key="--listen") from None
        with gathering.exporter(*place, read) as server:
            host, port = server.server_address[:2]
            click.echo(f"metrics at http://{host!s}:{port}/metrics")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                leave(0)


@click.group()
def table() -> None:
    """Look at the tables of a running job.

    \b
    Example:
      pslite table stats
    """


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
            dispatchers, silent = looking.dispatcher_reports(observer, observer.cluster())
        for line in silent:
            click.echo(line, err=True)
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
