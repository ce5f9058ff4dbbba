"""The commands `pslite checkpoint`. Each imports what it needs when it runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from pslite.cli_options import RUN, TRACEBACKS, clear_errors

EXIT_DIFFERENT = 1
URL = click.argument("url")
URL_OR_RUN = click.argument("url", required=False)


@contextlib.contextmanager
def _bar(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if somebody looks at it."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=length, label=label, file=sys.stderr, hidden=hidden) as bar:
        yield bar.update


@click.group()
def checkpoint() -> None:
    """Look at checkpoints: list, verify, compare, export.

    URL is the folder of the checkpoints, as [checkpoint] dir has it, or a URL such as
    s3://bucket/job. `list` and `verify` without URL take the places in which the job in --run has
    kept checkpoints, also those that its program has chosen.

    \b
    Examples:
      pslite checkpoint list run/checkpoints
      pslite checkpoint list --run run/night
      pslite checkpoint diff run/checkpoints ckpt-000006 ckpt-000007
    """


@checkpoint.command("list")
@URL_OR_RUN
@RUN
@TRACEBACKS
def list_command(url: str | None, run_dir: Path | None, verbose: bool) -> None:
    """Show the checkpoints of URL, oldest first.

    STEPS is how many steps a worker had completed, ROWS what a full checkpoint at that moment has.

    \b
    Example:
      pslite checkpoint list run/checkpoints
    """
    with clear_errors(verbose):
        from pslite.checkpoints import listing, shelf_of

        for place in _places(url, run_dir):
            if url is None:
                click.echo(f"{place}:")
            click.echo(listing(shelf_of(place)))


@checkpoint.command()
@URL_OR_RUN
@click.argument("names", nargs=-1)
@RUN
@TRACEBACKS
def verify(url: str | None, names: tuple[str, ...], run_dir: Path | None, verbose: bool) -> None:
    """Read checkpoints, all or those of NAMES, and compare every file with its checksum.

    Exits with 1 if one is damaged; each file that is says so by name.

    \b
    Examples:
      pslite checkpoint verify run/checkpoints
      pslite checkpoint verify s3://bucket/job ckpt-000007
    """
    with clear_errors(verbose):
        damaged = 0
        for place in _places(url, run_dir):
            if url is None:
                click.echo(f"{place}:")
            damaged += _verify(place, names)
    sys.exit(EXIT_DIFFERENT if damaged else 0)


def _verify(url: str, names: Sequence[str]) -> int:
    """Say of checkpoints whether they are good; the number of those that are not."""
    from kv.checkpoint.errors import DamagedCheckpointError
    from pslite.checkpoints import shelf_of, size

    shelf = shelf_of(url)
    chosen = list(names) or shelf.names()
    if not chosen:
        click.echo(f"no checkpoints in {url}")
    damaged = 0
    for name in chosen:
        try:
            chain = shelf.chain(name)
            nbytes = sum(manifest.nbytes for manifest in chain)
            with _bar(nbytes, name) as update:
                shelf.verify(name, update)
        except DamagedCheckpointError as error:
            damaged += 1
            click.echo(f"{name}: DAMAGED: {error.reason}")
        else:
            files = sum(len(manifest.files()) for manifest in chain)
            click.echo(f"{name}: good ({files} files, {size(nbytes)})")
    return damaged


def _places(url: str | None, run_dir: Path | None) -> list[str]:
    """The URL, or those of the job in a run folder, of which it is said if it was killed."""
    from pslite.kept import places_of_job
    from pslite.rundir import how_ended, read_cluster

    if url is not None:
        return [url]
    run = run_dir or Path("run")
    state = read_cluster(run)
    if state.get("lost"):
        click.echo(f"pslite: {how_ended(run, state)}", err=True)
    return places_of_job(run)


@checkpoint.command()
@URL
@click.argument("first")
@click.argument("second")
@TRACEBACKS
def diff(url: str, first: str, second: str, verbose: bool) -> None:
    """Compare the rows of two checkpoints, FIRST and SECOND: weights and optimiser state.

    A row counts as the same if all of its bits are. Exits with 1 if anything differs. Both
    versions of a table have to fit into memory.

    \b
    Example:
      pslite checkpoint diff run/checkpoints ckpt-000006 ckpt-000007
    """
    with clear_errors(verbose):
        from kv.checkpoint.reading import SavedTables, compare
        from pslite.checkpoints import differences, shelf_of

        shelf = shelf_of(url)
        one, other = (SavedTables(shelf, shelf.chain(name)) for name in (first, second))
        found = []
        with _bar(len(one.specs.keys() | other.specs.keys()), "tables") as update:
            for entry in compare(one, other):
                found.append(entry)
                update(1)
        click.echo(differences(found, first, second))
    sys.exit(0 if all(entry.is_same for entry in found) else EXIT_DIFFERENT)


@checkpoint.command()
@URL
@click.argument("name", required=False)
@click.option("--table", "tables", multiple=True, help="Only this table; may be repeated.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet"]),
    default="parquet",
    show_default=True,
    help="What the files are.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that gets a file for each table.",
)
@TRACEBACKS
def export(
    url: str, name: str | None, tables: tuple[str, ...], kind: str, out: Path, verbose: bool
) -> None:
    """Write the tables of the checkpoint NAME, by default the last good one, as Parquet.

    A sparse table becomes columns key, weights, shows, last_seen and version; a dense one its
    values in C order, with the shape in the file's metadata.

    \b
    Examples:
      pslite checkpoint export run/checkpoints --out tables
      pslite checkpoint export run/checkpoints ckpt-000007 --table user --out tables
      duckdb -c "select key, weights[1] from 'tables/user.parquet' limit 5"
    """
    with clear_errors(verbose):
        from kv.checkpoint.errors import NoCheckpointError
        from kv.checkpoint.reading import SavedTables
        from pslite.checkpoint_export import export_tables
        from pslite.checkpoints import shelf_of

        shelf = shelf_of(url)
        chosen = name or shelf.last_good()
        if chosen is None:
            raise NoCheckpointError(url, "there is no good checkpoint to export")
        saved = SavedTables(shelf, shelf.verify(chosen))
        shards = saved.manifest.servers
        rows = sum(part.size for shard in shards for part in shard.tables.values())
        with _bar(rows, chosen) as update:
            written = export_tables(saved, tables or sorted(saved.specs), out, update)
        for table, path, count in written:
            click.echo(f"{table}: {count:,} rows in {path}")
