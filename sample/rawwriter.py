"""Write raw files as the Taobao data set has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from numpy.typing import NDArray

from sample.errors import writing
from sample.schema import ACTIONS
from sample.world import Behaviors, Catalogue, Ints, Profiles, Rng, Shows

PIDS = ("430548_1007", "430539_1007")
HEADERS = {
    "raw_sample.csv": "user,time_stamp,adgroup_id,pid,nonclk,clk",
    "ad_feature.csv": "adgroup_id,cate_id,campaign_id,customer,brand,price",
    "user_profile.csv": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    "shopping_level,occupation,new_user_class_level ",  # the published file has that blank
    "behavior_log.csv": "user,time_stamp,btag,cate,brand",
}


class RawWriter(ExitStack):
    """The four files, open: `with RawWriter(folder, catalogue) as writer`.

    Args:
        folder: where to make them.
        catalogue: gives the ids, and the rows of ad_feature.csv, which are written at once.
    """

    def __init__(self, folder: Path, catalogue: Catalogue) -> None:
        super().__init__()
        self.catalogue = catalogue
        self._folder = folder
        self._streams = {name: self.enter_context(_opened(folder / name)) for name in HEADERS}
        for name, header in HEADERS.items():
            self._streams[name].write(header.encode() + b"\n")
        brand = np.where(catalogue.brand < 0, 0, catalogue.brand_ids[catalogue.brand])
        self._rows(
            "ad_feature.csv",
            catalogue.ad_ids,
            catalogue.cate_ids[catalogue.cate],
            catalogue.campaign,
            catalogue.customer,
            _or(brand, catalogue.brand < 0, "NULL"),
            catalogue.price,
        )

    def profiles(self, rng: Rng, ids: Ints, profiles: Profiles) -> None:
        """Write the users that are listed, shuffled; ids: of all users of the block."""
        order = rng.permutation(len(ids))
        order = order[profiles.is_listed[order]]
        self._rows(
            "user_profile.csv",
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

    def behaviors(self, rng: Rng, ids: Ints, log: Behaviors) -> None:
        """Write the behaviours of a block, shuffled."""
        order = rng.permutation(len(log.user))
        brand = log.brand[order]
        self._rows(
            "behavior_log.csv",
            ids[log.user[order]],
            log.time[order],
            _chosen(ACTIONS, log.action[order]),
            self.catalogue.cate_ids[log.cate[order]],
            _or(np.where(brand < 0, 0, self.catalogue.brand_ids[brand]), brand < 0, "NULL"),
        )

    def shows(self, order: Ints, ids: Ints, shows: Shows, clicked: NDArray[np.bool_]) -> None:
        """Write the impressions of a block in the given order."""
        click = clicked[order].astype(np.int8)
        self._rows(
            "raw_sample.csv",
            ids[shows.user[order]],
            shows.time[order],
            self.catalogue.ad_ids[shows.ad[order]],
            _chosen(PIDS, shows.pid[order]),
            1 - click,
            click,
        )

    def _rows(self, name: str, *columns: Any) -> None:
        table = pa.table({str(i): column for i, column in enumerate(columns)})
        plain = csv.WriteOptions(include_header=False, quoting_style="none")
        with writing(self._folder / name):
            csv.write_csv(table, self._streams[name], plain)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with writing(path):
        stream = path.open("wb")
    try:
        yield stream
    finally:
        with writing(path):  # closing writes what is left
            stream.close()


def _or(values: Ints, is_missing: NDArray[np.bool_], text: str) -> pa.Array:
    """The values as text, `text` where missing."""
    return pc.if_else(pa.array(is_missing), text, pa.array(values).cast(pa.string()))


def _chosen(texts: tuple[str, ...], which: Ints) -> pa.Array:
    return pa.array(texts).take(pa.array(which))
