"""What a new training replaces in its run folder: nothing until it can start, then all together.

A folder whose settings are of one run and whose model is of another would be measured as if both
belonged together. So everything that can be wrong beforehand is found wrong beforehand, with the
folder as it was, and then all that an earlier run left goes at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from apps.ctr.errors import CtrError
from apps.ctr.job import RunFolder
from apps.ctr.savedmodel import MANIFEST
from feature_extract.index import DICTIONARY
from feature_extract.schema import FILE_NAME
from pslite.rundir import is_taken
from van.errors import ConfigError

STAGING = ".features.new"  # where features are extracted while an earlier run is still whole


@contextmanager
def staging(run: RunFolder) -> Iterator[Path]:
    """An empty folder beside those of the run, gone afterwards.

    Raises:
        CtrError: another job is at work in the run folder.
        ConfigError: the run folder cannot be written.
    """
    if is_taken(run.path):
        raise CtrError(f"another job is running in {run.path}; choose another folder with --out")
    is_new = not run.path.exists()
    scratch = run.path / STAGING
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(run, error) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # not empty: the run has begun
                run.path.rmdir()


def start_afresh(run: RunFolder, scratch: Path, data: Path, inis: Mapping[str, bytes]) -> None:
    """Remove what an earlier run left, then put staged features and ini files in place.

    Args:
        scratch: holds the features extracted for this run, if there are any.
        data: the file that is trained on, which stays where it is.
        inis: contents of the files in RUN/conf by their names.
    Raises:
        ConfigError: the run folder cannot be written.
    """
    try:
        _remove_model(run.model)
        stale = [run.metrics, run.intervals, run.curve, run.job, run.feature_ini, run.ledger]
        stale += [run.conf / "model.ini", run.conf / "cluster.ini"]
        if data.resolve().parent != run.features.resolve():
            stale += [run.features / FILE_NAME, run.features / DICTIONARY]
            stale += run.features.glob("final_t*.parquet")
        for path in stale:
            path.unlink(missing_ok=True)
        run.conf.mkdir(parents=True, exist_ok=True)
        for name, content in inis.items():
            (run.conf / name).write_bytes(content)
        run.features.mkdir(exist_ok=True)
        for path in scratch.iterdir():
            path.replace(run.features / path.name)
    except OSError as error:
        raise _unwritable(run, error) from error


def _remove_model(model: Path) -> None:
    manifest = model / MANIFEST
    if manifest.is_file():  # else it is no model of ours, and not ours to remove
        manifest.unlink()  # first, as without it nothing loads
        shutil.rmtree(model)


def _unwritable(run: RunFolder, error: OSError) -> ConfigError:
    return ConfigError(f"run folder {run.path} cannot be written: {error}")
