"""What exists before anyone clicks: ads, users, and when and on what they act.

Users are made in blocks that do not depend on each other, each from its own seed, so that a log of
any size needs the memory of one block. Ids recur: about 20 impressions a user, 100 an ad.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rng = np.random.Generator

SHANGHAI = 8 * 3600
FIRST_DAY = 1494000000  # 2017-05-06 00:00 Asia/Shanghai; 22 days earlier the behaviours begin
DAYS_BEFORE, DAYS = 22, 8
END = FIRST_DAY + DAYS * 86400

BLOCK_EVENTS = 2_000_000  # impressions and behaviours of a block of users, about
USER_SHARE, AD_SHARE = 20, 100  # impressions a user and an ad have on average
INTERESTS = 5  # cates a user comes back to

# share of each action; the order is that of sample.schema.ACTIONS
ACTION_SHARE = np.array([0.87, 0.04, 0.06, 0.03])
HOUR_SHARE = np.array(
    [2.4, 1.2, 0.7, 0.4, 0.4, 0.6, 1.3, 2.5, 3.9, 4.9, 5.4, 5.3,
     5.2, 5.4, 5.3, 5.2, 5.0, 4.8, 5.2, 6.2, 7.3, 8.0, 7.6, 5.0]
)  # fmt: skip


def zipf(n: int, exponent: float) -> Floats:
    """Shares of n things, falling as rank ** -exponent."""
    shares = np.power(np.arange(n) + 3.0, -exponent)
    return np.asarray(shares / shares.sum(), np.float64)


@dataclass(frozen=True)
class Catalogue:
    """All ads, sorted by cate, and what they are about. Numbers count from 0; ids are printed."""

    ad_ids: Ints
    cate: Ints  # number of each ad's cate
    brand: Ints  # number, -1 is unknown
    campaign: Ints
    customer: Ints
    price: Floats
    cumulative: Floats  # shares of the ads, summed up; ads + 1
    cate_bounds: Ints  # first ad of each cate; cates + 1
    cate_ids: Ints
    cate_share: Floats
    brand_ids: Ints
    brand_bounds: Ints  # brands of cate c are brand_bounds[c]:brand_bounds[c + 1]
    user_ids: Ints

    @property
    def n_cates(self) -> int:
        return len(self.cate_ids)


def make_catalogue(rng: Rng, impressions: int) -> Catalogue:
    """Ads, cates, brands and user ids for a log of so many impressions."""
    n_ads = max(impressions // AD_SHARE, 24)
    n_users = max(impressions // USER_SHARE, 16)
    n_cates = int(np.clip(n_ads // 40, min(n_ads, 40), 5000))
    cate_share = rng.permutation(zipf(n_cates, 0.7))
    cate = np.sort(
        np.concatenate([np.arange(n_cates), rng.choice(n_cates, n_ads - n_cates, p=cate_share)])
    )
    brands_of = np.maximum(np.bincount(cate, minlength=n_cates) // 6, 2)
    brand_bounds = np.concatenate([[0], np.cumsum(brands_of)])
    brand = brand_bounds[cate] + (rng.random(n_ads) ** 1.5 * brands_of[cate]).astype(np.int64)
    brand[rng.random(n_ads) < 0.2] = -1
    share = rng.lognormal(0.0, 0.9, n_ads)
    level = rng.normal(5.0, 0.8, n_cates)[cate]
    return Catalogue(
        ad_ids=_ids(rng, n_ads),
        cate=cate,
        brand=brand,
        campaign=_ids(rng, n_ads)[rng.integers(0, max(n_ads // 2, 1), n_ads)],
        customer=_ids(rng, n_ads)[rng.integers(0, max(n_ads // 4, 1), n_ads)],
        price=np.maximum(np.round(np.exp(level + rng.normal(0.0, 0.7, n_ads)), 1), 0.1),
        cumulative=np.concatenate([[0.0], np.cumsum(share / share.sum())]),
        cate_bounds=np.searchsorted(cate, np.arange(n_cates + 1)),
        cate_ids=_ids(rng, n_cates),
        cate_share=cate_share,
        brand_ids=_ids(rng, int(brand_bounds[-1])),
        brand_bounds=brand_bounds,
        user_ids=_ids(rng, n_users),
    )


def _ids(rng: Rng, n: int) -> Ints:
    """n different ids from about 1.3 n numbers, in no order."""
    return rng.permutation(n + n // 3 + 5)[:n] + 1


@dataclass(frozen=True)
class Profiles:
    """Users of one block; levels as the files have them, -1 is unknown."""

    segment: Ints
    group: Ints
    gender: Ints
    age: Ints
    pvalue: Ints
    shopping: Ints
    occupation: Ints
    city: Ints
    is_listed: NDArray[np.bool_]  # whether user_profile.csv has the user
    interests: Ints  # (users, INTERESTS) cates


def make_profiles(rng: Rng, n: int, catalogue: Catalogue) -> Profiles:
    gender = rng.choice([1, 2], n, p=[0.35, 0.65])
    age = rng.choice(7, n, p=[0.01, 0.14, 0.26, 0.27, 0.2, 0.11, 0.01])
    pvalue = rng.choice([1, 2, 3], n, p=[0.35, 0.5, 0.15])
    city = rng.choice([1, 2, 3, 4], n, p=[0.15, 0.45, 0.25, 0.15])
    return Profiles(
        segment=rng.integers(0, 97, n),
        group=np.where(gender == 2, 0, 6) + np.clip(age, 1, 6),
        gender=gender,
        age=age,
        pvalue=np.where(rng.random(n) < 0.4, -1, pvalue),
        shopping=rng.choice([1, 2, 3], n, p=[0.1, 0.15, 0.75]),
        occupation=(rng.random(n) < 0.06).astype(np.int64),
        city=np.where(rng.random(n) < 0.3, -1, city),
        is_listed=rng.random(n) >= 0.05,
        interests=rng.choice(catalogue.n_cates, (n, INTERESTS), p=catalogue.cate_share),
    )


def sessions(
    rng: Rng, user: Ints, first_day: int, days: int, restart: float, pause: float, tie: float
) -> Ints:
    """Unix times of the events of each user, which come in sessions.

    Args:
        user: number of the user of each event, rising.
        restart: chance that an event begins a session.
        pause: mean seconds between events of a session.
        tie: chance that an event has the second of the one before.
    """
    n = len(user)
    starts = (rng.random(n) < restart) | (np.diff(user, prepend=-1) != 0)
    begin = first_day + 86400 * rng.integers(0, days, n)
    begin += 3600 * rng.choice(24, n, p=HOUR_SHARE / HOUR_SHARE.sum()) + rng.integers(0, 3600, n)
    gap = np.where(rng.random(n) < tie, 0, 1 + rng.exponential(pause, n).astype(np.int64))
    gap = np.cumsum(np.where(starts, 0, gap))
    origin = np.maximum.accumulate(np.where(starts, np.arange(n), 0))
    return np.minimum(begin[origin] + gap - gap[origin], first_day + 86400 * days - 1)


@dataclass(frozen=True)
class Behaviors:
    """Behaviours of a block, by (user, time)."""

    user: Ints
    time: Ints
    action: Ints
    cate: Ints
    brand: Ints  # -1 is unknown


def make_behaviors(rng: Rng, counts: Ints, profiles: Profiles, catalogue: Catalogue) -> Behaviors:
    """`counts[u]` behaviours of each user, mostly on what interests them, one cate a session."""
    user = np.repeat(np.arange(len(counts)), counts)
    n = len(user)
    time = sessions(
        rng, user, FIRST_DAY - 86400 * DAYS_BEFORE, DAYS_BEFORE + DAYS, 0.25, 60.0, 0.03
    )
    # a cate lasts for a few views
    new = (rng.random(n) < 0.4) | (np.diff(user, prepend=-1) != 0)
    origin = np.maximum.accumulate(np.where(new, np.arange(n), 0))
    cate = _interesting(rng, user, 0.8, profiles, catalogue)[origin]
    sizes = np.diff(catalogue.brand_bounds)[cate]
    brand = catalogue.brand_bounds[cate] + (rng.random(n) ** 1.5 * sizes).astype(np.int64)
    brand[rng.random(n) < 0.01] = -1
    action = rng.choice(4, n, p=ACTION_SHARE)
    order = np.lexsort((time, user))
    return Behaviors(user, time[order], action[order], cate[order], brand[order])


def _interesting(
    rng: Rng, user: Ints, chance: float, profiles: Profiles, catalogue: Catalogue
) -> Ints:
    """A cate for each event: with `chance` one of the user's interests, else any."""
    pick = (rng.random(len(user)) ** 1.6 * INTERESTS).astype(np.int64)
    any_cate = rng.choice(catalogue.n_cates, len(user), p=catalogue.cate_share)
    return np.where(rng.random(len(user)) < chance, profiles.interests[user, pick], any_cate)


@dataclass(frozen=True)
class Shows:
    """Impressions of a block, by (user, time)."""

    user: Ints
    time: Ints
    ad: Ints
    pid: Ints


def make_shows(rng: Rng, counts: Ints, profiles: Profiles, catalogue: Catalogue) -> Shows:
    """`counts[u]` impressions of each user; half aim at an interest, some repeat the last ad."""
    user = np.repeat(np.arange(len(counts)), counts)
    n = len(user)
    time = sessions(rng, user, FIRST_DAY, DAYS, 0.45, 90.0, 0.06)
    time = time[np.lexsort((time, user))]
    cate = _interesting(rng, user, 0.45, profiles, catalogue)
    low, high = (catalogue.cumulative[catalogue.cate_bounds[cate + end]] for end in (0, 1))
    ad = np.searchsorted(catalogue.cumulative, low + rng.random(n) * (high - low), "right") - 1
    ad = np.clip(ad, catalogue.cate_bounds[cate], catalogue.cate_bounds[cate + 1] - 1)
    fresh = (rng.random(n) >= 0.15) | (np.diff(user, prepend=-1) != 0)
    ad = ad[np.maximum.accumulate(np.where(fresh, np.arange(n), 0))]
    return Shows(user, time, ad, (rng.random(n) < 0.4).astype(np.int64))
