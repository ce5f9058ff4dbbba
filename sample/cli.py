"""The commands `pslite-sample generate` and `pslite-sample join`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from sample.errors import SampleError

EXIT_ERROR = 2  # also click's own code for wrong usage
NEEDED = {"duckdb", "numba", "numpy", "pyarrow", "tqdm"}


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each command has its own --help with an example.",
)
def main() -> None:
    """Raw advertising logs to samples for training.

    \b
    Example:
      pslite-sample generate --out RAW --impressions 200000 --behaviors 1000000 --seed 1
      pslite-sample join --raw RAW --out SAMPLES
    """


@main.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--impressions", default=200_000, show_default=True, type=click.IntRange(1),
              help="Rows of raw_sample.csv.")  # fmt: skip
@click.option("--behaviors", default=1_000_000, show_default=True, type=click.IntRange(0),
              help="Rows of behavior_log.csv.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0),
              help="Seed; equal arguments give equal bytes.")  # fmt: skip
def generate(out: Path, impressions: int, behaviors: int, seed: int) -> None:
    """Make raw logs in the Taobao format with known click probabilities.

    Writes raw_sample.csv, ad_feature.csv, user_profile.csv, behavior_log.csv, and truth.parquet
    and truth.json with the true probability of each click and the best AUC any model can reach.

    \b
    Example:
      pslite-sample generate --out RAW --impressions 200000 --behaviors 1000000 --seed 1
    """
    with _plain_errors():
        from sample.generate import generate as run

        found = run(out, impressions, behaviors, seed)
    click.echo(
        f"{found['impressions']} impressions ({found['ctr']:.2%} clicked) of "
        f"{found['users']} users and {found['ads']} ads, {found['behaviors']} behaviours, "
        f"seed {seed}\n"
        f"best AUC any model can reach: {_shown(found['best_auc_test'])} on the test day, "
        f"{_shown(found['best_auc_all'])} over all\nin {out}"
    )


@main.command()
@click.option("--raw", required=True, type=click.Path(path_type=Path),
              help="Folder of the four raw csv files.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--compat", is_flag=True, help="Reproduce existing files: workdayflag 0, ad counts "
              "without the impression's own clock hour.")  # fmt: skip
@click.option("--format", "form", default="tsv", show_default=True,
              type=click.Choice(["tsv", "parquet"]), help="Format of the output.")  # fmt: skip
@click.option("--memory", default="2GB", show_default=True, help="Memory to use, at least 512MB.")
@click.option("--max-bad", default=0, show_default=True, type=click.IntRange(0),
              help="Malformed lines to skip before giving up.")  # fmt: skip
@click.option("--temp", type=click.Path(path_type=Path), help="Folder for work files; --out if "
              "not given.")  # fmt: skip
def join(
    raw: Path, out: Path, compat: bool, form: str, memory: str, max_bad: int, temp: Path | None
) -> None:
    """Join raw logs into samples of 77 columns, correct in time.

    Reads raw_sample.csv, ad_feature.csv, user_profile.csv and behavior_log.csv; writes train.tsv
    (days before 2017-05-13) and test.tsv, or .parquet with all columns text. Takes the published
    Taobao files as they are. The files appear when they are complete.

    \b
    Example:
      pslite-sample join --raw RAW --out SAMPLES --memory 4GB
    """
    with _plain_errors():
        from sample.join import join as run

        found = run(raw, out, compat=compat, format=form, memory=memory, max_bad=max_bad, temp=temp)
    _report(found)


def _report(found: dict[str, Any]) -> None:
    bad = sum(found["bad_lines"].values())
    if bad:
        counts = ", ".join(f"{name} {count}" for name, count in found["bad_lines"].items())
        click.echo(f"skipped {bad} malformed lines ({counts}), the first:", err=True)
        for example in found["bad_examples"]:
            click.echo(f"  {example}", err=True)
    seconds = found["seconds"]
    stages = ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items())
    click.echo(
        f"{found['train']} train and {found['test']} test samples of {found['users']} users and "
        f"{found['ads']} ads, {found['behaviors']} behaviours used\n"
        f"{sum(seconds.values()):.1f} s ({stages})\nin " + ", ".join(found["files"])
    )


def _shown(value: float | None) -> str:
    return "unknown (no click or nothing else)" if value is None else f"{value:.4f}"


@contextmanager
def _plain_errors() -> Iterator[None]:
    """A mistake of the user's ends the command with one line and exit code 2."""
    try:
        yield
    except SampleError as error:
        click.echo(f"pslite-sample: error: {error}", err=True)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in NEEDED:
            raise
        click.echo(
            f"pslite-sample: error: {error.name} is not installed; pip install 'pslite[ctr]'",
            err=True,
        )
    else:
        return
    sys.exit(EXIT_ERROR)
