"""The command `pslite bench compression`. It imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pslite.cli_options import clear_errors


@click.command()
@click.option("--quick", is_flag=True, help="A minute: fewer rows; AUCs mean little then.")
@click.option(
    "--selective",
    is_flag=True,
    help="12 workers, compression and selective update beside neither and compression alone.",
)
@click.option(
    "--scheme",
    "chains",
    metavar="CHAIN",
    multiple=True,
    help="Only this chain for all tables, such as topk:0.1+fp16; may be repeated.",
)
@click.option(
    "--dispatchers",
    type=click.IntRange(min=0),
    default=0,
    help="Dispatchers between workers and servers; default: none.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Workers; default: 4.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=1, help="Rounds of processor times; default: 1."
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
    help="Also draw them; needs Matplotlib.",
)
def compression(
    quick: bool,
    selective: bool,
    chains: tuple[str, ...],
    dispatchers: int,
    workers: int | None,
    rounds: int,
    json_file: Path | None,
    picture: Path | None,
) -> None:
    """Train a click model with each compression scheme: bytes, processor time, AUC.

    Clicks are made up, the model is small, and all nodes are in one process, driven in turn, so
    bytes and AUC come out the same each time; processor time does not, so nothing else should run.

    \b
    Shown of each scheme:
      gradients    bytes of gradients less than as float32, keys not counted
      all traffic  bytes of pushes and pulls, keys included, less than without compression
      compute      processor time of all nodes more than without
      of it coding what encoders and decoders take of it
      change       of the test's AUC
      reported     traffic and compute of the system that this design follows

    \b
    Examples:
      pslite bench compression --rounds 3 --json compression.json --png compression.png
      pslite bench compression --scheme fp16 --scheme topk:0.05+int8
      pslite bench compression --selective
      pslite bench compression --selective --dispatchers 1
    """
    from pslite.bench.compression import Request, run_command

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{text}\033[K", nl=False, err=True)

    with clear_errors():
        run_command(
            Request(
                is_quick=quick,
                is_selective=selective,
                chains=chains,
                workers=workers,
                dispatchers=dispatchers,
                rounds=rounds,
                json=json_file,
                png=picture,
            ),
            click.echo,
            tell,
        )
