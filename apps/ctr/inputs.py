"""Which files a run trains on: final features as they are, or samples that are extracted first."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apps.ctr.errors import DataError
from apps.ctr.job import RunFolder
from apps.ctr.output import replacing, writing
from feature_extract.extract import apply, extract
from feature_extract.index import DICTIONARY
from feature_extract.schema import FILE_NAME, FeatureSchema, IndexKind

FINAL = (".parquet", ".tsv", ".tsv.gz")
SAMPLES = (".tsv", ".parquet", ".tsv.gz", ".csv", ".csv.gz", ".txt", ".txt.gz")


@dataclass(frozen=True)
class DataFiles:
    """The files of a data folder; `final` tells features from samples."""

    train: Path
    test: Path | None
    final: bool


def find_data(folder: Path) -> DataFiles:
    """`final_train.*` and `final_test.*` of a folder, or else its `train.*` and `test.*`.

    Raises:
        DataError: neither is there.
    """
    for prefix, suffixes, final in (("final_", FINAL, True), ("", SAMPLES, False)):
        train = _first(folder, f"{prefix}train", suffixes)
        if train is not None:
            return DataFiles(train, _first(folder, f"{prefix}test", suffixes), final)
    problem = (
        f"holds neither {_names('final_train', FINAL)} (features) nor "
        f"{_names('train', SAMPLES)} (samples)"
    )
    raise DataError(folder, problem)


def _names(name: str, suffixes: Sequence[str]) -> str:
    """`train.tsv, .csv or .gz` of a name and its suffixes."""
    return f"{name}{', '.join(suffixes[:-1])} or {suffixes[-1]}"


def _first(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    found = (folder / f"{name}{suffix}" for suffix in suffixes)
    return next((path for path in found if path.is_file()), None)


def extract_features(
    samples: DataFiles,
    out: Path,
    feature_ini: Path | None,
    *,
    settings: Sequence[str] = (),
    min_freq: int = 1,
    index: IndexKind | None = None,
) -> tuple[DataFiles, list[str]]:
    """Extract samples into the folder `out`; the files of final features, and warnings.

    Args:
        settings, min_freq, index: see `feature_extract.extract.extract`.
    Raises:
        DataError: no feature ini.
        FeatureError: ini or samples are wrong.
    """
    if feature_ini is None:
        raise DataError(samples.train, "holds samples, which need a feature ini: --features FILE")
    how: dict[str, Any] = {"min_freq": min_freq, "settings": settings, "index": index}
    report = extract(feature_ini, samples.train, samples.test, out, **how)
    final = (out / "final_train.parquet", out / "final_test.parquet")
    return DataFiles(final[0], final[1] if samples.test else None, final=True), report["warnings"]


def keep_description(folder: Path, run: RunFolder) -> None:
    """Keep in the run what predicting on samples needs: dictionary, description, feature ini.

    Args:
        folder: of an extraction; what is not there (with features made otherwise) is left out.
    """
    with writing(run.features):
        run.features.mkdir(parents=True, exist_ok=True)
    for name in (FILE_NAME, DICTIONARY):
        if (folder / name).is_file() and folder.resolve() != run.features.resolve():
            with replacing(run.features / name) as aside:
                shutil.copyfile(folder / name, aside)
    if (run.features / FILE_NAME).is_file():
        description = FeatureSchema.from_json((run.features / FILE_NAME).read_bytes())
        with replacing(run.feature_ini) as aside:
            aside.write_text(description.ini, encoding="utf-8")


Kind = Literal["auto", "final", "samples"]


def final_file(data: Path, run: RunFolder, kind: Kind, scratch: Path) -> Path:
    """A file of final features for `data`: itself, or what the run's dictionary makes of it.

    Args:
        kind: what `data` is; `auto` finds out.
        scratch: a folder for the extracted file.
    Raises:
        DataError: samples, and the run does not know how its features were made.
        FeatureError: the samples do not fit.
    """
    if kind == "final" or (kind == "auto" and is_final(data)):
        return data
    if not run.feature_ini.is_file():
        problem = (
            f"looks like samples, but {run.path} has no description of its features: the folder "
            f"it was trained on lacked the {FILE_NAME} of pslite-features"
        )
        raise DataError(data, problem)
    out = scratch / "final.parquet"
    apply(run.feature_ini, run.features, data, out)
    return out


def is_final(data: Path) -> bool:
    """Whether a file holds final features: Parquet with a column of a feature, or such lines.

    Raises:
        DataError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with data.open("rb") as file:
            if file.read(4) == b"PAR1":
                return any("/" in name for name in pq.read_schema(data).names)
        with pa.input_stream(str(data), compression="detect") as stream:
            line = stream.read(1 << 20).partition(b"\n")[0].decode(errors="replace")
    except (OSError, pa.ArrowException) as error:
        raise DataError(data, f"cannot be read: {error}") from error
    cells = line.rstrip("\r").split("\t")
    return len(cells) == 8 and "#" in cells[0] and cells[1] in {"0", "1", "0.0", "1.0"}
