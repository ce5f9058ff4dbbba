"""What is trained on what: the cases, and their data, kept as features in the work folder."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from convergence_clock import Batch

from apps.ctr.batch import Rows
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.modelconf import ModelConfig, load_model_config
from apps.ctr.models import network_class
from apps.ctr.run import SHUFFLED_ROWS
from feature_extract.extract import extract
from sample.generate import generate
from sample.join import join

ROOT = Path(__file__).resolve().parents[1]
CACHE = 1 << 30  # bytes of rows
SEED = 1  # of the generated logs
HELD_OUT, TEST = "held out", "test"
MODES = ("async", "async:lr", "dc_async", "ssp:4", "sync", "semi_sync:0.75", "backup:1")


class NoDataError(Exception):
    """A data set is not there; the text says why."""


@dataclass(frozen=True)
class Case:
    """A model on a data set.

    Attributes:
        data: its folder's name.
        conf, features: inis in `conf/`.
        impressions: of logs that are generated, with four times as many behaviours; 0: the data is
            that of `PSLITE_DATA`.
        settings: of the model, that are not those of the ini.
        modes, workers: what is compared; one worker is the same in all modes.
        tests: what the model is tested on: name, and what the table calls it. `HELD_OUT` is the
            last eighth of the training data, which then must not be shuffled.
        has_target: whether AUC is held against that of one worker.
    """

    name: str
    title: str
    data: str
    conf: str
    features: str
    impressions: int = 0
    settings: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    tests: tuple[tuple[str, str], ...] = ((TEST, "the test rows"),)
    has_target: bool = True

    def sized(self, rows: int) -> Case:
        """With that many training rows or a few more, where it is generated."""
        return dataclasses.replace(self, impressions=rows * 8 // 7) if self.impressions else self


CTR = Case(
    "ctr",
    "Generated advertising logs, `conf/fnn.ini` (Adam, embeddings Adagrad)",
    "ctr",
    "fnn.ini",
    "features_taobao.ini",
    impressions=115_000,
    tests=((HELD_OUT, "rows of the same days"), (TEST, "the day after")),
)
A9A = Case("a9a", "a9a, `conf/fnn_a9a.ini` (Adagrad)", "a9a", "fnn_a9a.ini", "features_a9a.ini")
SGD = dataclasses.replace(
    A9A,
    name="a9a-sgd",
    title="a9a with plain SGD, learning rate 1 for 256 rows",
    settings=("optimizer.optimizer=sgd", "optimizer.learning_rate=1"),
    modes=(*MODES, "dc_async:1", "dc_async:16", "dc_async:64"),
    workers=(1, 16),
    has_target=False,
)
CASES = {case.name: case for case in (CTR, A9A, SGD)}


class Data:
    """A case's data, ready to be trained on.

    Args:
        folder: of `final_train.parquet` and `final_test.parquet`.
        settings: of the model, besides the case's own.
        rows: of the training data that are used; None: all.
    """

    def __init__(
        self, case: Case, folder: Path, settings: tuple[str, ...] = (), rows: int | None = None
    ) -> None:
        self.conf = load_model_config(ROOT / "conf" / case.conf, (*case.settings, *settings))
        blocks = network_class(self.conf.net.model).blocks
        source = open_source(folder / "final_train.parquet", blocks, window_rows=SHUFFLED_ROWS)
        self._train = Dataset(source, CACHE)
        self._test = Dataset(open_source(folder / "final_test.parquet", blocks))
        self.schema = self._train.schema
        self._case, self._rows = case, rows
        self._batches: dict[tuple[int, int], list[Batch]] = {}

    @cached_property
    def train_rows(self) -> int:
        """Rows of one epoch."""
        count = self._kept
        return count if self._rows is None else min(self._rows, count)

    @property
    def _kept(self) -> int:
        """Rows that are not held out."""
        count = self._train.count()
        return count * 7 // 8 if HELD_OUT in dict(self._case.tests) else count

    @cached_property
    def tests(self) -> dict[str, list[Rows]]:
        """The rows of each test."""
        size, held_out = self.conf.test.batch_size, (self._kept, self._train.count())
        batches = {
            HELD_OUT: self._train.batches(size, within=held_out),
            TEST: self._test.batches(size),
        }
        return {name: [b.rows() for b in batches[name]] for name in dict(self._case.tests)}

    def seeded(self, seed: int) -> ModelConfig:
        """The settings with this seed for the shuffle and what the network draws."""
        return dataclasses.replace(self.conf, train=dataclasses.replace(self.conf.train, seed=seed))

    def batches(self, seed: int, size: int) -> list[Batch]:
        """Those of all epochs, in the order that the settings and the seed say; the last are kept.

        Where nothing is shuffled they are the same for all seeds.
        """
        conf = self.conf.train
        order = (seed if conf.shuffle else 0, size)
        if order not in self._batches:
            self._batches = {
                order: [
                    Batch.of(batch.rows())
                    for epoch in range(1, conf.epoch + 1)
                    for batch in self._train.batches(
                        size,
                        shuffle=(seed, epoch) if conf.shuffle else None,
                        within=(0, self.train_rows),
                    )
                ]
            }
        return self._batches[order]


def prepare(
    case: Case, work: Path, settings: tuple[str, ...] = (), rows: int | None = None
) -> Data:
    """The case's data; its features are made unless they are there.

    Raises:
        NoDataError: its files are not there.
    """
    folder = work / (f"{case.data}-{case.impressions}" if case.impressions else case.data)
    features = folder / "features"
    if not (features / "features.json").is_file():  # written last
        samples = folder / "samples"
        if case.impressions:
            generate(folder / "raw", case.impressions, 4 * case.impressions, SEED)
            join(folder / "raw", samples)
        else:
            _copy(case.data, samples)
        conf = ROOT / "conf" / case.features
        extract(conf, samples / "train.tsv", samples / "test.tsv", features)
    return Data(case, features, settings, rows)


def _copy(name: str, samples: Path) -> None:
    """Public data under the names that extraction expects."""
    place = os.environ.get("PSLITE_DATA")
    if not place:
        raise NoDataError(f"PSLITE_DATA names no folder with {name}/{name} and {name}/{name}.t")
    source = Path(place) / name
    for file in (source / name, source / f"{name}.t"):
        if not file.is_file():
            raise NoDataError(f"there is no {file}")
    samples.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / name, samples / "train.tsv")
    shutil.copyfile(source / f"{name}.t", samples / "test.tsv")
