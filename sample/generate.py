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
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from sample import clicks, world
from sample.errors import OutputError, SettingError
from sample.schema import ACTIONS
from sample.truth import figures
from sample.world import BLOCK_EVENTS, END, Behaviors, Catalogue, Profiles, Shows

CTR = 0.05
TEST_DAY = END - 86400
PIDS = np.array(["430548_1007", "430539_1007"])
HEADERS = {
    "raw_sample.csv": "user,time_stamp,adgroup_id,pid,nonclk,clk",
    "ad_feature.csv": "adgroup_id,cate_id,campaign_id,customer,brand,price",
    "user_profile.csv": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    "shopping_level,occupation,new_user_class_level ",  # the published file has that blank
    "behavior_log.csv": "user,time_stamp,btag,cate,brand",
}


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
        (work / "truth.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        for path in sorted(work.iterdir()):
            os.replace(path, out / path.name)
    except OSError as error:
        raise OutputError(f"{error.filename}: {error.strerror}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


def _write(work: Path, impressions: int, behaviors: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 0])
    catalogue = world.make_catalogue(rng, impressions)
    effects = clicks.make_effects(rng, catalogue)
    users = len(catalogue.user_ids)
    block = max(users * BLOCK_EVENTS // (impressions + behaviors), 1)
    shown = rng.multinomial(impressions, _activity(rng, users, 0.8))
    acted = rng.multinomial(behaviors, _activity(rng, users, 0.9))
    streams = {name: (work / name).open("wb") for name in HEADERS}
    for name, header in HEADERS.items():
        streams[name].write(header.encode() + b"\n")
    _write_ads(streams["ad_feature.csv"], catalogue)
    truths, intercept = [], None
    with tqdm(total=impressions, desc="impressions", unit="row", unit_scale=True,
              disable=None) as bar:  # fmt: skip
        for number, first in enumerate(range(0, users, block), start=1):
            rng = np.random.default_rng([seed, number])
            part = slice(first, first + block)
            ids = catalogue.user_ids[part]
            profiles = world.make_profiles(rng, len(ids), catalogue)
            log = world.make_behaviors(rng, acted[part], profiles, catalogue)
            shows = world.make_shows(rng, shown[part], profiles, catalogue)
            logits = clicks.static_logits(rng, shows, log, profiles, catalogue, effects)
            draws = rng.random(len(logits))
            cate = catalogue.cate[shows.ad]
            if intercept is None:
                intercept = _intercept(logits, draws, shows, cate)
            probability, clicked = clicks.simulate(logits + intercept, draws, shows, cate)
            _write_profiles(streams["user_profile.csv"], rng, ids, profiles)
            _write_behaviors(streams["behavior_log.csv"], rng, ids, log, catalogue)
            order = rng.permutation(len(logits))
            _write_shows(streams["raw_sample.csv"], order, ids, shows, clicked, catalogue)
            truths.append((probability[order], clicked[order], shows.time[order] >= TEST_DAY))
            bar.update(len(logits))
    for stream in streams.values():
        stream.close()
    probability, clicked, is_test = (np.concatenate(parts) for parts in zip(*truths, strict=True))
    truth = pa.table({"probability": probability, "clk": clicked.astype(np.int8)})
    pq.write_table(truth, work / "truth.parquet")
    return {
        "seed": seed,
        "impressions": impressions,
        "behaviors": behaviors,
        "users": users,
        "ads": len(catalogue.ad_ids),
        "clicks": int(clicked.sum()),
        "ctr": float(clicked.mean()),
        **figures(probability, clicked, "all"),
        **figures(probability[~is_test], clicked[~is_test], "train"),
        **figures(probability[is_test], clicked[is_test], "test"),
    }


def _activity(rng: np.random.Generator, n: int, spread: float) -> NDArray[np.float64]:
    """Shares of users in all events."""
    share = rng.lognormal(0.0, spread, n)
    return np.asarray(share / share.sum(), np.float64)


def _intercept(
    logits: NDArray[np.float64], draws: NDArray[np.float64], shows: Shows, cate: world.Ints
) -> float:
    """What to add to all logits so that the mean probability is CTR; clicks lead to clicks."""
    low, high = -12.0, 6.0
    for _ in range(12):
        middle = (low + high) / 2
        probability, _ = clicks.simulate(logits + middle, draws, shows, cate)
        low, high = (middle, high) if probability.mean() < CTR else (low, middle)
    return (low + high) / 2


def _write_ads(stream: BinaryIO, catalogue: Catalogue) -> None:
    brand = np.where(catalogue.brand < 0, 0, catalogue.brand_ids[catalogue.brand])
    _write_rows(
        stream,
        catalogue.ad_ids,
        catalogue.cate_ids[catalogue.cate],
        catalogue.campaign,
        catalogue.customer,
        _or(brand, catalogue.brand < 0, "NULL"),
        catalogue.price,
    )


def _write_profiles(
    stream: BinaryIO, rng: np.random.Generator, ids: world.Ints, profiles: Profiles
) -> None:
    order = rng.permutation(len(ids))
    order = order[profiles.is_listed[order]]
    _write_rows(
        stream,
        ids[order],
        profiles.segment[order],
        profiles.group[order],
        profiles.gender[order],
        profiles.age[order],
        _or(profiles.pvalue[order], profiles.pvalue[order] < 0, ""),
        profiles.shopping[order],
        profiles.occupation[order],
        _or(profiles.city[order], profiles.city[order] < 0, ""),
    )


def _write_behaviors(
    stream: BinaryIO,
    rng: np.random.Generator,
    ids: world.Ints,
    log: Behaviors,
    catalogue: Catalogue,
) -> None:
    order = rng.permutation(len(log.user))
    brand = log.brand[order]
    _write_rows(
        stream,
        ids[log.user[order]],
        log.time[order],
        pa.DictionaryArray.from_arrays(log.action[order].astype(np.int8), list(ACTIONS)),
        catalogue.cate_ids[log.cate[order]],
        _or(np.where(brand < 0, 0, catalogue.brand_ids[brand]), brand < 0, "NULL"),
    )


def _write_shows(
    stream: BinaryIO,
    order: world.Ints,
    ids: world.Ints,
    shows: Shows,
    clicked: NDArray[np.bool_],
    catalogue: Catalogue,
) -> None:
    click = clicked[order].astype(np.int8)
    _write_rows(
        stream,
        ids[shows.user[order]],
        shows.time[order],
        catalogue.ad_ids[shows.ad[order]],
        pa.DictionaryArray.from_arrays(shows.pid[order].astype(np.int8), list(PIDS)),
        1 - click,
        click,
    )


def _or(values: world.Ints, missing: NDArray[np.bool_], text: str) -> pa.Array:
    """The values as text, `text` where missing."""
    texts = pa.array(values).cast(pa.string())
    return pa.compute.if_else(pa.array(missing), text, texts)


def _write_rows(stream: BinaryIO, *columns: Any) -> None:
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns]
    arrays = [a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for a in arrays]
    table = pa.table(dict(zip(map(str, range(len(arrays))), arrays, strict=True)))
    csv.write_csv(table, stream, csv.WriteOptions(include_header=False, quoting_style="none"))
