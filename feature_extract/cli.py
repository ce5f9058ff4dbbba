"""`pslite-features`: extract features, apply a dictionary, split a file, explain a sample."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click

from feature_extract.errors import FeatureError

EXIT_ERROR = 2  # also click's own code for wrong usage

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
ANYWHERE = click.Path(path_type=Path)

conf_option = click.option("--conf", type=EXISTING, required=True, help="The feature ini.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a line of the ini; may be repeated.",
)
format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "parquet"]),
    default="parquet",
    show_default=True,
    help="Lines of text, or Parquet for training.",
)
max_bad_option = click.option(
    "--max-bad",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How many malformed lines of a file are skipped and counted.",
)
dictionary_option = click.option(
    "--dictionary",
    type=click.Path(exists=True, path_type=Path),
    help="Directory of an earlier extraction, or a dictionary file; hashing needs none.",
)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Turn an error of ours into one line on stderr and exit code 2."""
    try:
        yield
    except FeatureError as error:
        click.echo(f"pslite-features: error: {error}", err=True)
        sys.exit(EXIT_ERROR)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Turn samples into features as a feature ini says.

    \b
    pslite-features extract --conf conf/features_taobao.ini \\
        --train samples/train.tsv --test samples/test.tsv --out features

    docs/features.md describes the ini, the operators and the files.
    """


@main.command()
@conf_option
@click.option("--train", type=EXISTING, required=True, help="Training samples.")
@click.option("--test", type=EXISTING, help="Test samples.")
@click.option("--out", type=ANYWHERE, required=True, help="Directory for the results.")
@click.option(
    "--min-freq",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Values seen that often or less in the training samples have no number.",
)
@format_option
@click.option(
    "--index",
    type=click.Choice(["dictionary", "hash"]),
    help="How values become numbers, instead of what the ini says.",
)
@click.option(
    "--intermediate/--no-intermediate",
    default=False,
    help="Intermediate samples and counts with parquet, too; text always has them.",
)
@click.option(
    "--compat",
    is_flag=True,
    help="Reproduce existing files: NULL in a number column is an error, absent sparse "
    "sections are counted.",
)
@max_bad_option
@set_option
def extract(format_: Literal["text", "parquet"], **options: Any) -> None:
    """Make a dictionary of the training samples and extract both files.

    \b
    Parquet files for training:
      pslite-features extract --conf conf/features_taobao.ini --train samples/train.tsv \\
          --test samples/test.tsv --out features --min-freq 1
    The same as text, with intermediate samples and counts:
      pslite-features extract ... --format text
    """
    from feature_extract.extract import extract as run

    with clear_errors():
        report = run(format=format_, **options)
    _print_report(report)


@main.command()
@conf_option
@dictionary_option
@click.option("--data", type=EXISTING, required=True, help="The samples.")
@click.option("--out", type=ANYWHERE, required=True, help="The file to write.")
@format_option
@max_bad_option
@set_option
def apply(format_: Literal["text", "parquet"], **options: Any) -> None:
    """Extract one more file as an earlier extraction was done; samples may lack their label.

    \b
      pslite-features apply --conf conf/features_taobao.ini --dictionary features \\
          --data new.tsv --out new.parquet
    """
    from feature_extract.extract import apply as run

    with clear_errors():
        report = run(format=format_, **options)
    _print_report(report)


@main.command()
@conf_option
@click.option("--data", type=EXISTING, required=True, help="The samples.")
@click.option("--row", type=click.IntRange(1), required=True, help="Which sample, from 1.")
@dictionary_option
@set_option
def explain(**options: Any) -> None:
    """Print the features of one sample: column, operator, what it read, what came out.

    \b
      pslite-features explain --conf conf/features_taobao.ini --data samples/test.tsv --row 5
    With --dictionary the numbers of the values stand beside them.
    """
    from feature_extract.explain import explain as run

    with clear_errors():
        found = run(**options, warn=_warn)
    for line in found.lines():
        click.echo(line)


@main.command()
@click.option("--data", type=EXISTING, required=True, help="The file, text or Parquet.")
@click.option("--out", type=ANYWHERE, required=True, help="Directory for the two files.")
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    help="Which share of the rows, from the end, becomes the test file.",
)
@click.option("--conf", type=EXISTING, help="Feature ini that says whether there is a header.")
@click.option("--header/--no-header", default=None, help="The same without an ini.")
def split(**options: Any) -> None:
    """Split a file: the head for training, the tail for testing, a header kept in both.

    \b
      pslite-features split --data avazu.csv --header --test-share 0.1 --out parts
    """
    from feature_extract.split import split as run

    with clear_errors():
        parts = run(**options, warn=_warn)
    for part in parts:
        click.echo(f"{part.rows} rows in {part.path}")


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def _print_report(report: dict[str, Any]) -> None:
    for warning in report["warnings"]:
        _warn(warning)
    for example in report["bad_examples"]:
        click.echo(f"skipped: {example}", err=True)
    rows = " and ".join(f"{count} {name}" for name, count in report["rows"].items())
    click.echo(f"{rows} samples, {report['features']} features, {report['seconds']:.1f} s")
    for name, count in report["bad_lines"].items():
        if count:
            click.echo(f"{count} malformed lines of {name} skipped")
    if report["values"] is not None:
        click.echo(f"{report['size']} of {report['values']} values are in the dictionary")
    click.echo("in " + ", ".join(report["files"]))
