"""Walk along users in slices that fit into memory, and give each slice's samples.

A sample depends on the history of its own user and on nothing of another user but the counts of its
ad, which `sample.tables` has already put beside it. So users are the unit of work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sample.history import Clicks, Impressions, Words, behavior_columns, click_columns
from sample.schema import AD, CLICKED, DIMENSIONS, IMPRESSION, PROFILE, SCHEMA, WINDOWS
from sample.tables import DAY, Tables

IMPRESSION_BYTES, BEHAVIOR_BYTES = 6000, 200  # what one costs in memory, measured generously


@dataclass(frozen=True)
class Slice:
    """Users `first` to `last`, both included."""

    first: int
    last: int
    impressions: int


def cut(tables: Tables, memory: int) -> list[Slice]:
    """Slices of users, each of about `memory` bytes at most (but never less than one user)."""
    users = tables.db.execute("SELECT count(*) FROM users").fetchall()[0][0]
    counts = np.zeros((2, users), np.int64)
    for row, table in enumerate(("impressions", "behaviors")):
        found = tables.db.execute(
            f"SELECT user_code, count(*) AS n FROM {table} GROUP BY user_code"
        ).fetchnumpy()
        counts[row, np.asarray(found["user_code"])] = found["n"]
    weights = counts[0] * IMPRESSION_BYTES + counts[1] * BEHAVIOR_BYTES
    slices, first, weight = [], 0, 0
    for user in range(users):
        if weight and weight + weights[user] > memory:
            slices.append(Slice(first, user - 1, int(counts[0, first:user].sum())))
            first, weight = user, 0
        weight += int(weights[user])
    if users:
        slices.append(Slice(first, users - 1, int(counts[0, first:].sum())))
    return slices


class Walk:
    """Makes samples slice by slice.

    Args:
        tables: loaded.
        compat: `workdayflag` is 0 throughout, as in existing files.
    """

    def __init__(self, tables: Tables, compat: bool) -> None:
        self.tables, self.compat = tables, compat
        ads = self._arrow("SELECT * FROM ads ORDER BY code")
        names = {"aid": "key"} | {name: name for name in CLICKED[1:]}
        self.ads = {what: Words(_text(ads[column])) for what, column in names.items()}

    def samples(self, piece: Slice) -> pa.Table:
        """Columns `line`, `day` and SCHEMA of the impressions of a slice, by rising line."""
        users = f"user_code BETWEEN {piece.first} AND {piece.last}"
        table = self._arrow(_static(users))
        users_of = _numbers(table["user_code"]) - piece.first
        shown = Impressions.of(users_of, piece.last - piece.first + 1, _numbers(table["ts"]))
        columns = {name: _text(table[name]) for name in (*IMPRESSION, *PROFILE, *AD)}
        columns |= self._calendar(table) | _counts(table)
        for dimension in DIMENSIONS:
            columns |= self._behaviors(dimension, users, piece, shown)
        past, bounds = self._clicks(users, piece, "line")
        own, _ = self._clicks(users, piece, "time_stamp || ':' || a.key || ':' || clk")
        for hours in WINDOWS:
            columns |= click_columns(hours, bounds, past, own, self.ads, shown)
        columns["line"], columns["day"] = table["line"], table["day"]
        return pa.table({name: columns[name] for name in ("line", "day", *SCHEMA)})

    def _behaviors(
        self, dimension: str, users: str, piece: Slice, shown: Impressions
    ) -> dict[str, pa.Array]:
        table = self._arrow(
            f"""SELECT 4 * (user_code - {piece.first}) + action AS grp, ts, {dimension}
            FROM behaviors WHERE {users} ORDER BY grp, ts, {dimension}"""
        )
        groups, times = _numbers(table["grp"]), _numbers(table["ts"])
        return behavior_columns(dimension, groups, times, _text(table[dimension]), shown)

    def _clicks(self, users: str, piece: Slice, order: str) -> tuple[Clicks, NDArray[np.int64]]:
        table = self._arrow(
            f"""SELECT user_code, ts, floor(ts / 3600)::BIGINT AS hour, ad_code
            FROM impressions AS i JOIN ads AS a ON a.code = ad_code
            WHERE clk = '1' AND {users} ORDER BY user_code, hour, {order}"""
        )
        ads = _numbers(table["ad_code"]).astype(np.int32)
        bounds = _bounds(_numbers(table["user_code"]) - piece.first, piece)
        return Clicks(_numbers(table["hour"]), _numbers(table["ts"]), ads), bounds

    def _calendar(self, table: pa.Table) -> dict[str, pa.Array]:
        seconds = _numbers(table["ts"]) + 28800
        weekday = (seconds // 86400 + 3) % 7  # day 0, 1970-01-01, was a Thursday
        works = np.zeros_like(weekday) if self.compat else (weekday < 5).astype(np.int64)
        return {
            "workdayflag": pc.cast(pa.array(works), pa.large_string()),
            "tm_hour": pc.cast(pa.array(seconds % 86400 // 3600), pa.large_string()),
        }

    def _arrow(self, query: str) -> pa.Table:
        return self.tables.db.sql(query).to_arrow_table()


def _static(users: str) -> str:
    """Impressions of a slice with what is known of user and ad; unknown is empty."""
    known = [
        f"coalesce({table}.{name}, '') AS {name}"
        for table, names in (("u", PROFILE), ("a", AD))
        for name in names
    ]
    return f"""SELECT i.* EXCLUDE (user_code), u.key AS "user", i.user_code, a.key AS adgroup_id,
            {DAY} AS day, {", ".join(known)}
        FROM impressions AS i JOIN users AS u ON u.code = i.user_code
        JOIN ads AS a ON a.code = i.ad_code
        WHERE {users} ORDER BY i.line"""


def _counts(table: pa.Table) -> dict[str, pa.Array]:
    columns = {}
    for hours in WINDOWS:
        for who in ("user", "ad"):
            show, click = (_numbers(table[f"{who}_{what}_{hours}"]) for what in ("show", "click"))
            columns[f"{who}_show_last_{hours}hour"] = _digits(show)
            columns[f"{who}_click_last_{hours}hour"] = _digits(click)
            columns[f"{who}_ctr_last_{hours}hour"] = _ratios(click, show + 10)
        show, click = (_numbers(table[f"both_{what}_{hours}"]) for what in ("show", "click"))
        columns[f"user_click_local_this_ad_count_last_{hours}hour"] = _digits(click)
        columns[f"user_non_click_local_this_ad_count_last_{hours}hour"] = _digits(show - click)
    return columns


def _ratios(part: NDArray[np.int64], whole: NDArray[np.int64]) -> pa.Array:
    """The quotients as the shortest decimals that read back, which is Python's repr."""
    values, at = np.unique(part / whole, return_inverse=True)
    return pa.array([repr(v) for v in values.tolist()], pa.large_string()).take(pa.array(at))


def _digits(values: NDArray[np.int64]) -> pa.Array:
    return pc.cast(pa.array(values), pa.large_string())


def _bounds(codes: NDArray[np.int64], piece: Slice) -> NDArray[np.int64]:
    return np.searchsorted(codes, np.arange(piece.last - piece.first + 2))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.array(column.to_numpy(), np.int64)  # a copy: writable, as the kernels know it


def _text(column: pa.ChunkedArray) -> pa.Array:
    return pc.cast(column.combine_chunks(), pa.large_string())
