"""A trained model as files: written aside and moved into place, checked when loaded, no pickle.

    MODEL/manifest.json           settings, features, names and checksums of the other files
    MODEL/dense.npz               one array a parameter of the network
    MODEL/embedding-00000.npz     keys (uint64, rising over all files) and rows (float32)

A loaded model trains no further (optimiser state is not saved); it scores rows as the tables it
was read from did, to the bit, keys without a row included.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.ctr.errors import SavedModelError
from apps.ctr.learner import Learner
from apps.ctr.modelconf import ModelConfig, model_config, plain_sections
from apps.ctr.output import writing
from apps.ctr.schema import Schema
from apps.ctr.snapshot import Snapshot
from kv.local import LocalCluster

FORMAT = 1
ROWS_A_FILE = 1 << 20
MANIFEST = "manifest.json"


def save_model(
    path: str | Path, snapshot: Snapshot, conf: ModelConfig, schema: Schema, seed: int
) -> None:
    """Write a model, replacing one that is there only when the new one is complete.

    Args:
        seed: the job's seed of initial values, which unseen keys read.
    Raises:
        OutputError: it cannot be written.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with writing(path):
            _write_files(aside, snapshot, conf, schema, seed)
            _move_into_place(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_files(
    aside: Path, snapshot: Snapshot, conf: ModelConfig, schema: Schema, seed: int
) -> None:
    aside.mkdir(parents=True)
    np.savez(aside / "dense.npz", **snapshot.dense)  # type: ignore[arg-type]  # names, no option
    for number, start in enumerate(range(0, len(snapshot.keys), ROWS_A_FILE)):
        part = slice(start, start + ROWS_A_FILE)
        rows = {"keys": snapshot.keys[part], "rows": snapshot.embeddings[part]}
        np.savez(aside / f"embedding-{number:05d}.npz", **rows)  # type: ignore[arg-type]  # names, no option
    manifest = {
        "format": FORMAT,
        "seed": seed,
        "rows": len(snapshot.keys),
        "digest": snapshot.digest(),
        "conf": conf.as_dict(),
        "dense": schema.dense,
        "sparse": schema.sparse,
        "index": schema.index,
        "files": {file.name: _checksum(file) for file in sorted(aside.iterdir())},
    }
    text = json.dumps(manifest, indent=2)
    (aside / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _move_into_place(aside: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    aside.rename(path)
    shutil.rmtree(old, ignore_errors=True)


class SavedModel:
    """A model read from files.

    Attributes:
        conf: its settings.
        schema: the features it was trained on.
        learner: scores rows; its tables are in this process.

    Raises:
        SavedModelError: a file is missing, altered, or of a later format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = self._read_manifest()
        self._check_files()
        self.conf = model_config(
            plain_sections(self.manifest["conf"]), file=str(self.path / MANIFEST)
        )
        self.schema = Schema(
            dense={group: tuple(names) for group, names in self.manifest["dense"].items()},
            sparse={group: tuple(names) for group, names in self.manifest["sparse"].items()},
            index=self.manifest.get("index"),
        )
        worker = LocalCluster(1, seed=self.manifest["seed"]).worker(0)
        self.learner = Learner(worker, self.conf, self.schema)
        self._fill_tables()

    def _read_manifest(self) -> dict[str, Any]:
        file = self.path / MANIFEST
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            problem = f"{MANIFEST} cannot be read ({error.strerror}); is it a run of pslite-ctr?"
            raise SavedModelError(self.path, problem) from error
        except ValueError as error:
            raise SavedModelError(self.path, f"{MANIFEST} is damaged: {error}") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise SavedModelError(self.path, f"{MANIFEST} is not of format {FORMAT}")
        return found

    def _check_files(self) -> None:
        for name, checksum in self.manifest["files"].items():
            try:
                found = _checksum(self.path / name)
            except OSError as error:
                problem = f"{name} cannot be read: {error.strerror}"
                raise SavedModelError(self.path, problem) from error
            if found != checksum:
                raise SavedModelError(self.path, f"{name} is not the file that was saved")

    def _fill_tables(self) -> None:
        dense = self._arrays("dense.npz")
        if dense.keys() != self.learner.dense.keys():
            problem = f"has parameters {sorted(dense)}, its network {sorted(self.learner.dense)}"
            raise SavedModelError(self.path, problem)
        for name, table in self.learner.dense.items():
            table.assign(dense[name])
        for name in sorted(n for n in self.manifest["files"] if n.startswith("embedding-")):
            found = self._arrays(name)
            self.learner.embedding.assign(found["keys"], found["rows"])

    def _arrays(self, name: str) -> dict[str, NDArray[Any]]:
        try:
            with np.load(self.path / name, allow_pickle=False) as found:
                return dict(found)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise SavedModelError(self.path, f"{name} cannot be read: {error}") from error


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
