"""`pslite-features`: extract features, apply a dictionary, split a file, explain a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

from feature_extract.errors import FeatureError

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
ANYWHERE = click.Path(path_type=Path)
FORMAT = click.Choice(["text", "parquet"])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Turn samples into features as a feature ini says.

    \b
    pslite-features extract --conf conf/features_taobao.ini \\
        --train samples/train.tsv --test samples/test.tsv --out features

    docs/features.md describes the ini, the operators and the files.
    """


@main.command()
@click.option("--conf", type=EXISTING, required=True, help="The feature ini.")
@click.option(
    "--train",
    type=EXISTING,
    required=True,
    help="Training samples; the dictionary is made of them.",
)
@click.option("--test", type=EXISTING, help="Test samples.")
@click.option("--out", type=ANYWHERE, required=True, help="Directory for the results.")
@click.option(
    "--min-freq",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Values seen that often or less have no number.",
)
@click.option(
    "--format",
    "format_",
    type=FORMAT,
    default="parquet",
    show_default=True,
    help="Text lines, or Parquet for training.",
)
@click.option(
    "--index",
    type=click.Choice(["dictionary", "hash"]),
    help="How values become numbers, instead of what the ini says.",
)
@click.option(
    "--intermediate/--no-intermediate",
    default=None,
    help="Intermediate samples and counts; text has them unless told not to.",
)
@click.option(
    "--compat",
    is_flag=True,
    help="Reproduce existing files: NULL in a number column is an error, absent sections are counted.",
)
@click.option(
    "--max-bad",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Malformed lines to skip in each file.",
)
def extract(format_: str, **options: Any) -> None:
    """Make a dictionary of the training samples and extract both files.

    \b
    Example: Parquet files for training
      pslite-features extract --conf conf/features_taobao.ini --train samples/train.tsv \\
          --test samples/test.tsv --out features --min-freq 1
    The same as text, with intermediate samples and counts:
      pslite-features extract ... --format text
    """
    from feature_extract.extract import extract as run

    try:
        report = run(format=format_, **options)
    except FeatureError as error:
        _fail(error)
    _report(report)


@main.command()
@click.option("--conf", type=EXISTING, required=True, help="The feature ini of that extraction.")
@click.option(
    "--dictionary",
    type=click.Path(exists=True, path_type=Path),
    help="Directory of an earlier extraction, or a dictionary file; not needed with hashing.",
)
@click.option("--data", type=EXISTING, required=True, help="The samples.")
@click.option("--out", type=ANYWHERE, required=True, help="The file to write.")
@click.option(
    "--format",
    "format_",
    type=FORMAT,
    default="parquet",
    show_default=True,
    help="Text lines, or Parquet.",
)
@click.option(
    "--max-bad",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Malformed lines to skip.",
)
def apply(format_: str, **options: Any) -> None:
    """Extract one more file with the dictionary of an earlier extraction.

    Samples may lack their label.

    \b
    Example:
      pslite-features apply --conf conf/features_taobao.ini --dictionary features \\
          --data new.tsv --out new.parquet
    """
    from feature_extract.extract import apply as run

    try:
        report = run(format=format_, **options)
    except FeatureError as error:
        _fail(error)
    _report(report)


def _fail(error: FeatureError) -> NoReturn:
    raise click.ClickException(str(error))


def _report(report: dict[str, Any]) -> None:
    for warning in report["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    for example in report["bad_examples"]:
        click.echo(f"skipped: {example}", err=True)
    rows = ", ".join(f"{count} {name}" for name, count in report["rows"].items())
    skipped = sum(report["bad_lines"].values())
    click.echo(f"{rows} samples, {report['features']} features in {report['seconds']:.1f} s")
    if skipped:
        click.echo(f"{skipped} malformed lines skipped")
    if report["values"] is not None:
        click.echo(f"dictionary of {report['size']} of {report['values']} values")
    for file in report["files"]:
        click.echo(f"  {file}")
