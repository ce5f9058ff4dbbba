"""The columns of the impressions of a slice of users, from their behaviours and clicks.

The kernels walk along impressions by (user, time) and say for each which piece of a pool of
numbered words it gets. Here these become text columns by name, one value a row, rows in the order
of the raw file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sample.kernels import walks
from sample.kernels.words import join_words, joined_lengths
from sample.rawfiles import text_array
from sample.schema import ACTIONS, CLICKED, TOP_DAYS, TOP_VALUES

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Words:
    """Distinct texts, numbered by rising code point order.

    Args:
        values: large_string; null is absent.
    """

    def __init__(self, values: pa.Array) -> None:
        coded = values.dictionary_encode()
        order = pc.array_sort_indices(coded.dictionary).to_numpy()
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        self.codes: Ints = np.full(len(values), -1, np.int32)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        self.codes[known] = ranks[coded.indices.drop_null().to_numpy()]
        self.texts: pa.Array = coded.dictionary.take(pa.array(order))

    def __len__(self) -> int:
        return len(self.texts)

    def lookup(self, codes: Ints) -> pa.Array:
        """The texts of `codes`; -1 is empty text."""
        return pc.fill_null(self.texts.take(pa.array(codes, mask=codes < 0)), "")

    def join(self, start: Longs, stop: Longs, pool: Ints) -> pa.Array:
        """The texts of pool[start[i]:stop[i]] joined by a comma."""
        offsets, words = buffers(self.texts)
        lengths = np.empty(len(start), np.int64)
        joined_lengths(start, stop, pool, offsets, lengths)
        out_offsets = np.zeros(len(start) + 1, np.int64)
        np.cumsum(lengths, out=out_offsets[1:])
        out = np.empty(int(out_offsets[-1]), np.uint8)
        join_words(start, stop, pool, offsets, words, out)
        return text_array(out_offsets, out)


def buffers(texts: pa.Array) -> tuple[Longs, NDArray[np.uint8]]:
    """Offsets, int64 (n + 1,), and bytes of a large_string array without nulls."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    used = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return used.copy(), np.frombuffer(data or b"", np.uint8).copy()  # writable, as kernels know it


@dataclass(frozen=True)
class Impressions:
    """Impressions of a slice of users, by (user, time)."""

    bounds: Longs  # (users + 1,), impressions of each user
    times: Longs  # (impressions,), Unix seconds
    places: Longs  # (impressions,), where each row of the raw file's order stands here

    @classmethod
    def of(cls, users: Longs, n_users: int, times: Longs) -> Impressions:
        """From the user, counted from 0, and time of each row."""
        order = np.lexsort((times, users))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        bounds = np.searchsorted(users[order], np.arange(n_users + 1))
        return cls(bounds, times[order], places)


def behavior_columns(
    dimension: str, groups: Longs, times: Longs, values: pa.Array, shown: Impressions
) -> dict[str, pa.Array]:
    """Columns about what users touched in one dimension.

    Args:
        dimension: cate or brand.
        groups: 4 * user + action of each behaviour, users counted from 0.
        times: of each behaviour; rows rise by (group, time, value).
        values: large_string, what was touched.
    """
    words = Words(values)
    n, users, at = len(shown.times), len(shown.bounds) - 1, shown.places
    bounds = np.searchsorted(groups, np.arange(4 * users + 1))
    start, stop = np.empty((4, n), np.int64), np.empty((4, n), np.int64)
    columns = {}

    pool = np.empty(len(values), np.int32)
    last = np.empty((4, n), np.int32)
    walks.todays_values(
        bounds, times, words.codes, shown.bounds, shown.times,
        np.zeros(len(words), np.int32), pool, start, stop, last,
    )  # fmt: skip
    for i, action in enumerate(ACTIONS):
        name = f"{action}_{dimension}_global_latest"
        columns[f"{name}_n"] = words.join(start[i, at], stop[i, at], pool)
        columns[f"{name}_1"] = words.lookup(last[i, at])

    pool = np.empty(4 * TOP_VALUES * _user_days(shown), np.int32)
    scratch = np.zeros((2, len(words)), np.int64)
    walks.top_values(
        bounds, times, words.codes, shown.bounds, shown.times, TOP_DAYS, TOP_VALUES,
        scratch[0], scratch[1], pool, start, stop,
    )  # fmt: skip
    for i, action in enumerate(ACTIONS):
        columns[f"{action}_{dimension}_last_14days"] = words.join(start[i, at], stop[i, at], pool)
    return columns


def _user_days(shown: Impressions) -> int:
    """How many pairs of a user and a day have impressions, or a few more."""
    days = (shown.times + walks.SHANGHAI) // walks.SECONDS_PER_DAY
    return int(np.count_nonzero(np.diff(days))) + len(shown.bounds)


@dataclass(frozen=True)
class Clicks:
    """Clicks of a slice of users in one order: clock hour and time of each, and the ad's number."""

    hours: Longs
    times: Longs
    ads: Ints


def click_columns(
    hours: int,
    bounds: Longs,
    past: Clicks,
    own: Clicks,
    ads: dict[str, Words],
    shown: Impressions,
) -> dict[str, pa.Array]:
    """Lists of what users clicked in a window, and the last of it.

    Args:
        hours: clock hours of the window.
        bounds: int64 (users + 1,), clicks of each user, in both orders.
        past: by (user, hour, line), the order of past clock hours.
        own: by (user, hour, text), the order in the impression's own clock hour.
        ads: what is known of each ad by its number, for every name in `CLICKED`.
    """
    n = len(shown.times)
    start, stop = np.empty(n, np.int64), np.empty(n, np.int64)
    last = np.empty(n, np.int32)
    pool = np.empty(0, np.int32)
    for _ in range(2):  # first to measure, then to fill
        used = walks.clicks_before(
            bounds, past.hours, past.times, past.ads, own.hours, own.times, own.ads,
            shown.bounds, shown.times, hours, pool, start, stop, last,
        )  # fmt: skip
        pool = pool if len(pool) else np.empty(used, np.int32)
    start, stop, last = start[shown.places], stop[shown.places], last[shown.places]
    columns = {}
    for what in CLICKED:
        words = ads[what]
        out = np.empty_like(pool)
        out_start, out_stop = np.empty_like(start), np.empty_like(stop)
        walks.distinct_values(
            start, stop, pool, words.codes, np.zeros(len(words), np.int32), out, out_start, out_stop
        )
        name = f"user_click_local_{what}_list_uniq_last_{hours}hour"
        columns[name] = words.join(out_start, out_stop, out)
        values = np.full(n, -1, np.int32)
        values[last >= 0] = words.codes[last[last >= 0]]
        columns[f"user_last_click_local_{what}_last_{hours}hour"] = words.lookup(values)
    return columns
