"""Write raw logs in the Taobao format whose true click probabilities are known.

Output folder: the four csv files, `truth.parquet` (one row for each row of raw_sample.csv, in its
order: `probability` and `clk`) and `truth.json` with the figures no model can beat. The same
arguments give the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from sample import clicks, world
from sample.clicks import Effects
from sample.errors import OutputError, SettingError, writing
from sample.rawwriter import RawWriter
from sample.truth import figures
from sample.world import BLOCK_EVENTS, END, Catalogue, Ints, Shows

CTR = 0.05
TEST_DAY = END - 86400


def generate(out: Path, impressions: int, behaviors: int, seed: int) -> dict[str, Any]:
    """Write raw logs to the folder `out`.

    Args:
        out: made if missing; files there are replaced.
        impressions: rows of raw_sample.csv, at least 1.
        behaviors: rows of behavior_log.csv.
        seed: of everything, 0 or more.
    Returns:
        what truth.json holds: `seed`, `impressions`, `behaviors`, `users`, `ads`, `clicks`, `ctr`,
        and `best_auc_*` and `best_logloss_*` of the true probabilities for `all`, `train`
        (before 2017-05-13) and `test`; null where a part has not both outcomes.
    Raises:
        SettingError: an argument makes no sense.
        OutputError: the folder cannot be written.
    """
    if impressions < 1 or behaviors < 0 or seed < 0:
        raise SettingError("impressions must be at least 1, behaviors and seed at least 0")
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".generate-", dir=out))
    except OSError as error:
        raise OutputError(f"{error.filename}: {error.strerror}") from error
    try:
        found = _write(work, impressions, behaviors, seed)
        with writing(work / "truth.json"):
            (work / "truth.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        for path in sorted(work.iterdir(), key=lambda path: path.name == "truth.json"):
            os.replace(path, out / path.name)  # truth.json last: where it is, all is
    except OSError as error:
        raise OutputError(f"{error.filename or out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


class _Truth(NamedTuple):
    """What is known of impressions, in the order of the rows of raw_sample.csv."""

    probability: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    is_test: NDArray[np.bool_]


def _write(work: Path, impressions: int, behaviors: int, seed: int) -> dict[str, Any]:
    """Write all but truth.json, and give what that is to hold."""
    rng = np.random.default_rng([seed, 0])
    catalogue = world.make_catalogue(rng, impressions)
    effects = clicks.make_effects(rng, catalogue)
    users = len(catalogue.user_ids)
    shown = rng.multinomial(impressions, _activity(rng, users, 0.8))
    acted = rng.multinomial(behaviors, _activity(rng, users, 0.9))
    blocks = Blocks(catalogue, effects, seed)
    size = max(users * BLOCK_EVENTS // (impressions + behaviors), 1)
    parts = []
    with (
        RawWriter(work, catalogue) as writer,
        tqdm(
            total=impressions, desc="impressions", unit="row", unit_scale=True, disable=None
        ) as bar,
    ):
        for first in range(0, users, size):
            part = slice(first, first + size)
            ids = catalogue.user_ids[part]
            parts.append(blocks.write(writer, ids, shown[part], acted[part]))
            bar.update(len(parts[-1].clicked))
    truth = _Truth(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    table = pa.table({"probability": truth.probability, "clk": truth.clicked.astype(np.int8)})
    with writing(work / "truth.parquet"):
        pq.write_table(table, work / "truth.parquet")
    return {
        "seed": seed,
        "impressions": impressions,
        "behaviors": behaviors,
        "users": users,
        "ads": len(catalogue.ad_ids),
        "clicks": int(truth.clicked.sum()),
        "ctr": float(truth.clicked.mean()),
        **figures(truth.probability, truth.clicked, "all"),
        **figures(truth.probability[~truth.is_test], truth.clicked[~truth.is_test], "train"),
        **figures(truth.probability[truth.is_test], truth.clicked[truth.is_test], "test"),
    }


class Blocks:
    """Makes users and what they do, block by block, each from a seed of its own.

    Args:
        seed: of the log; the n-th block has the seed (seed, n).
    """

    def __init__(self, catalogue: Catalogue, effects: Effects, seed: int) -> None:
        self.catalogue, self.effects, self.seed = catalogue, effects, seed
        self.number = 0
        self._intercept: float | None = None

    def write(self, writer: RawWriter, ids: Ints, shown: Ints, acted: Ints) -> _Truth:
        """Make and write one block.

        Args:
            ids: of its users.
            shown, acted: impressions and behaviours of each.
        """
        self.number += 1
        rng = np.random.default_rng([self.seed, self.number])
        profiles = world.make_profiles(rng, len(ids), self.catalogue)
        log = world.make_behaviors(rng, acted, profiles, self.catalogue)
        shows = world.make_shows(rng, shown, profiles, self.catalogue)
        logits = clicks.static_logits(rng, shows, log, profiles, self.catalogue, self.effects)
        draws, cate = rng.random(len(logits)), self.catalogue.cate[shows.ad]
        if self._intercept is None and len(logits):  # the first block decides for all
            self._intercept = find_intercept(logits, draws, shows, cate)
        probability, clicked = clicks.simulate(
            logits + (self._intercept or 0.0), draws, shows, cate
        )
        order = rng.permutation(len(logits))
        writer.profiles(rng, ids, profiles)
        writer.behaviors(rng, ids, log)
        writer.shows(order, ids, shows, clicked)
        return _Truth(probability[order], clicked[order], shows.time[order] >= TEST_DAY)


def _activity(rng: np.random.Generator, n: int, spread: float) -> NDArray[np.float64]:
    """Shares of users in all events."""
    share = rng.lognormal(0.0, spread, n)
    return np.asarray(share / share.sum(), np.float64)


def find_intercept(
    logits: NDArray[np.float64], draws: NDArray[np.float64], shows: Shows, cate: Ints
) -> float:
    """What to add to all logits so that the mean probability is CTR; clicks lead to clicks."""
    low, high = -12.0, 6.0
    for _ in range(12):
        middle = (low + high) / 2
        probability, _ = clicks.simulate(logits + middle, draws, shows, cate)
        low, high = (middle, high) if probability.mean() < CTR else (low, middle)
    return (low + high) / 2
