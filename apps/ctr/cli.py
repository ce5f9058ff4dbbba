"""The command `pslite-ctr`. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

EXIT_ERROR = 2  # also click's own code for wrong usage

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
RUN = click.option("--run", required=True, type=FOLDER, help="Folder of a finished training run.")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
KIND = click.option(
    "--kind",
    type=click.Choice(["auto", "final", "samples"]),
    default="auto",
    show_default=True,
    help="What --data is: final features, or samples to extract with the run's dictionary.",
)


@contextlib.contextmanager
def clear_errors(verbose: bool) -> Iterator[None]:
    """Turn an error of ours into one line on stderr and exit code 2; -v adds the traceback."""
    from feature_extract.errors import FeatureError
    from van.errors import PsliteError

    try:
        yield
    except BrokenPipeError:  # whoever read our lines has gone, which click knows to end with
        raise
    except (PsliteError, FeatureError, OSError) as error:
        if verbose:
            traceback.print_exc()
        click.echo(f"pslite-ctr: error: {error}", err=True)
        sys.exit(EXIT_ERROR)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Train click-through models on a parameter server, test them, predict with them.

    \b
    From samples to predictions:
      pslite-ctr train --conf conf/fnn.ini --features conf/features_taobao.ini \\
          --data samples --mode cluster --servers 2 --workers 2 --out run
      pslite-ctr evaluate --run run --data samples/test.tsv
      pslite-ctr predict --run run --data new.tsv --out probabilities.txt
    """


@main.command()
@click.option("--conf", required=True, type=EXISTING, help="Model ini, such as conf/fnn.ini.")
@click.option("--features", type=EXISTING, help="Feature ini; needed if --data holds samples.")
@click.option("--cluster", type=EXISTING, help="Cluster ini, such as conf/local.ini.")
@click.option(
    "--data",
    required=True,
    type=FOLDER,
    help="Folder with final_train.parquet or .tsv (and final_test.*), "
    "or else train.tsv and test.tsv, which are extracted first.",
)
@click.option(
    "--mode",
    type=click.Choice(["local", "threads", "cluster"]),
    default="local",
    show_default=True,
    help="One process without network, workers as threads, or a cluster of processes.",
)
@click.option("--servers", type=click.IntRange(1), help="Servers; default: [cluster] servers.")
@click.option("--workers", type=click.IntRange(1), help="Workers; default: [cluster] workers.")
@click.option(
    "--sync/--async",
    "sync",
    default=None,
    help="Whether workers wait for each other in each step; default: [param_sync] mode.",
)
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Run folder."
)
@click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Override a setting of the model or cluster ini; may be repeated.",
)
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --mode cluster: write down the order of updates, so that the run can be repeated.",
)
@click.option(
    "--replay",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --mode cluster: repeat the run that was recorded there, to the same bits.",
)
@click.option(
    "--min-freq",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="When extracting: feature values seen that often or less are unknown.",
)
@click.option(
    "--index",
    type=click.Choice(["dictionary", "hash"]),
    help="When extracting: how feature values become keys; default: as the feature ini says.",
)
@VERBOSE
def train(verbose: bool, **options: Any) -> None:
    """Train a model, test it, save it.

    \b
    Examples:
      pslite-ctr train --conf conf/fnn.ini --data features --out run
      pslite-ctr train --conf conf/dssm.ini --features conf/features_taobao.ini --data samples \\
          --cluster conf/local.ini --mode cluster --servers 2 --workers 4 --sync --out run \\
          --set train.epoch=2 --set optimizer.learning_rate=0.02
      pslite-ctr train --conf conf/fnn.ini --data features --cluster conf/local.ini \\
          --mode cluster --servers 2 --workers 2 --record run/order --out run/first
      pslite-ctr train --conf conf/fnn.ini --data features --cluster conf/local.ini \\
          --mode cluster --servers 2 --workers 2 --replay run/order --out run/again

    Runs of workers that do not wait for each other differ in their bits. With --record servers
    write down the order of updates, with --replay the same command comes to the same model again.
    Runs with --sync repeat by --set run.deterministic=yes alone.

    RUN/metrics.json gets the final figures, RUN/metrics.jsonl those of each interval, RUN/model the
    model, RUN/conf the settings.
    """
    with clear_errors(verbose):
        from apps.ctr.command import train_command
        from apps.ctr.report import training_report
        from apps.ctr.runlock import only_training

        with only_training(options["out"]):
            metrics = train_command(**options, say=click.echo)
        click.echo(training_report(metrics, options["out"]))


@main.command()
@RUN
@click.option("--data", required=True, type=EXISTING, help="Labelled rows.")
@KIND
@VERBOSE
def evaluate(run: Path, data: Path, kind: Any, verbose: bool) -> None:
    """Measure the model of RUN on a file of labelled rows.

    \b
    Example:
      pslite-ctr evaluate --run run --data features/final_test.parquet
    """
    with clear_errors(verbose):
        from apps.ctr.job import RunFolder
        from apps.ctr.predict import evaluate as measure
        from apps.ctr.report import quality_report

        click.echo(quality_report(measure(RunFolder(path=run), data, kind)))


@main.command()
@RUN
@click.option("--data", required=True, type=EXISTING, help="Rows; they need no label.")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write."
)
@KIND
@VERBOSE
def predict(run: Path, data: Path, out: Path, kind: Any, verbose: bool) -> None:
    """Write the click probability of each row of a file, one a line, in its order.

    \b
    Example:
      pslite-ctr predict --run run --data new_samples.tsv --out probabilities.txt
    """
    with clear_errors(verbose):
        from apps.ctr.job import RunFolder
        from apps.ctr.predict import predict as write

        rows = write(RunFolder(path=run), data, out, kind)
        click.echo(f"{rows} probabilities in {out}")


@main.command()
@RUN
@VERBOSE
def worker(run: Path, verbose: bool) -> None:
    """Be one worker of the cluster that trains in RUN; `train --mode cluster` starts these.

    \b
    By hand, with a job that `train` has left in run/conf/job.json:
      pslite local conf/local.ini --servers 2 --workers 2 -- python -m apps.ctr worker --run run
    """
    with clear_errors(verbose):
        from apps.ctr.job import RunFolder
        from apps.ctr.run import run_worker
        from postoffice.errors import ClusterStoppedError
        from pslite.lifecycle import CONSEQUENCE

        try:
            run_worker(RunFolder(path=run), click.echo)
        except ClusterStoppedError:  # who failed has said so
            sys.exit(CONSEQUENCE)
