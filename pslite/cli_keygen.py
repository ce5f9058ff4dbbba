"""The command `pslite keygen`. It imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from pslite.cli_options import VERBOSE, clear_errors


@click.command()
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
