"""The command `pslite bench`. It imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from pslite.cli_compression import compression
from pslite.cli_options import clear_errors


@click.group(invoke_without_command=True)
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


bench.add_command(compression)
