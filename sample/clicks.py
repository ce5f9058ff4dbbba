"""Who clicks: the click model of the generated logs.

The logit of a click is a sum of effects of the user, the ad, the context and the history, each of
which a model can find in the columns of a sample; docs/samples.md lists them. Everything a
probability depends on lies strictly before the impression's second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sample.world import END, SHANGHAI, Behaviors, Catalogue, Floats, Ints, Profiles, Rng, Shows

PV, FAV, CART, BUY = range(4)
REMEMBERED = 4  # latest clicks of a user that count

# effects on the logit
SEEN_CATE = 0.6  # viewed the ad's cate in the last 14 days
WANTED_CATE = 0.6  # put into the cart, or marked, something of the ad's cate in the last 14 days
BOUGHT_CATE = -0.5  # bought something of it
SEEN_BRAND = 0.4  # viewed the ad's brand in the last 14 days
SEEN_TODAY = 0.7  # viewed the ad's cate today
SEEN_LAST = 0.4  # ... and nothing since
CLICKED_CATE = 0.6  # among the latest clicks, at most 167 clock hours ago, is one on the ad's cate
CLICKED_AD = -0.8  # ... on the ad itself
CLICKED_LATELY = 0.3  # clicked any ad in the last 24 clock hours
TIRED = -0.25  # for each show of the ad to the user in the last 24 clock hours, up to 4


@dataclass(frozen=True)
class Effects:
    """Effects drawn once for a whole log."""

    cate: Floats
    brand: Floats
    ad: Floats  # of the ad alone and of its price
    taste: Floats  # (2, cates), of gender on cate
    age: Floats
    shopping: Floats
    pvalue: Floats  # the last is for unknown
    hour: Floats
    pid: Floats


def make_effects(rng: Rng, catalogue: Catalogue) -> Effects:
    price = np.log(catalogue.price)
    hours = np.arange(24)
    return Effects(
        cate=rng.normal(0.0, 0.42, catalogue.n_cates),
        brand=rng.normal(0.0, 0.12, len(catalogue.brand_ids)),
        ad=rng.normal(0.0, 0.08, len(catalogue.ad_ids)) - 0.25 * (price - price.mean()),
        taste=rng.normal(0.0, 0.25, (2, catalogue.n_cates)),
        age=rng.normal(0.0, 0.25, 7),
        shopping=np.array([-0.35, -0.1, 0.1]),
        pvalue=np.array([-0.3, 0.0, 0.3, 0.05]),
        hour=0.4 * np.sin((hours - 15) / 24 * 2 * np.pi),
        pid=np.array([0.25, -0.4]),
    )


def static_logits(
    rng: Rng,
    shows: Shows,
    behaviors: Behaviors,
    profiles: Profiles,
    catalogue: Catalogue,
    effects: Effects,
) -> Floats:
    """The part of each impression's logit that earlier clicks do not change."""
    user, cate, brand = shows.user, catalogue.cate[shows.ad], catalogue.brand[shows.ad]
    hour = (shows.time + SHANGHAI) % 86400 // 3600
    own = rng.normal(0.0, 0.15, len(profiles.age))
    own += effects.age[profiles.age] + effects.shopping[profiles.shopping - 1]
    own += effects.pvalue[np.where(profiles.pvalue < 0, 3, profiles.pvalue - 1)]
    about = effects.cate[cate] + effects.ad[shows.ad]
    about += np.where(brand < 0, 0.0, effects.brand[brand])
    about += effects.taste[profiles.gender[user] - 1, cate]
    context = effects.hour[hour] + effects.pid[shows.pid]
    return (
        own[user]
        + about
        + context
        + _interest(shows, behaviors, cate, brand)
        + TIRED * np.minimum(_shows_before(shows), 4)
    )


def _interest(shows: Shows, behaviors: Behaviors, cate: Ints, brand: Ints) -> Floats:
    """Effects of behaviours in the 14 whole days before and earlier the same day."""
    today = (shows.time + SHANGHAI) // 86400 * 86400 - SHANGHAI
    before = today - 14 * 86400
    logit = np.zeros(len(shows.time))
    for actions, values, wanted, effect in (
        ((PV,), behaviors.cate, cate, SEEN_CATE),
        ((FAV, CART), behaviors.cate, cate, WANTED_CATE),
        ((BUY,), behaviors.cate, cate, BOUGHT_CATE),
        ((PV,), behaviors.brand, brand, SEEN_BRAND),
    ):
        chosen = np.isin(behaviors.action, actions) & (values >= 0)
        log = _Log(behaviors.user[chosen], values[chosen], behaviors.time[chosen])
        logit += effect * (log.count(shows.user, wanted, before, today) > 0)
    viewed = behaviors.action == PV
    user, viewed_cate, time = (
        column[viewed] for column in (behaviors.user, behaviors.cate, behaviors.time)
    )
    log = _Log(user, viewed_cate, time)
    logit += SEEN_TODAY * (log.count(shows.user, cate, today, shows.time) > 0)
    log = _Log(user, np.zeros_like(user), time)  # which are by (user, time) already
    last = log.position(shows.user, 0, shows.time) - 1
    seen = np.flatnonzero(log.position(shows.user, 0, today) <= last)
    logit[seen] += SEEN_LAST * (viewed_cate[last[seen]] == cate[seen])
    return logit


class _Log:
    """Events by (user, value, time), to be counted in a span of time."""

    def __init__(self, user: Ints, value: Ints, time: Ints) -> None:
        self.width = int(value.max(initial=0)) + 1
        self.keys = np.sort(self._key(user, value, time))

    def _key(self, user: Ints, value: Ints | int, time: Ints) -> Ints:
        return (user * self.width + value) * (1 << 23) + (time - END + (1 << 22))

    def position(self, user: Ints, value: Ints | int, time: Ints) -> Ints:
        """How many events come before (user, value, time)."""
        return np.searchsorted(self.keys, self._key(user, value, time))

    def count(self, user: Ints, value: Ints, low: Ints, high: Ints) -> Ints:
        """Events of (user, value) in [low, high)."""
        found = self.position(user, value, high) - self.position(user, value, low)
        return np.where((value >= 0) & (value < self.width), found, 0)


def _shows_before(shows: Shows) -> Ints:
    """Earlier shows of the same ad to the same user in 24 clock hours, the own one included."""
    begin = shows.time // 3600 * 3600 - 23 * 3600
    return _Log(shows.user, shows.ad, shows.time).count(shows.user, shows.ad, begin, shows.time)


def simulate(
    logits: Floats, draws: Floats, shows: Shows, cate: Ints
) -> tuple[Floats, NDArray[np.bool_]]:
    """Click probabilities and clicks, given what does not depend on earlier clicks.

    Goes through the seconds of each user in turn, all users at a time.

    Args:
        logits: float64 (n,), intercept included; impressions by (user, time).
        draws: float64 (n,), uniform; an impression is clicked if its draw is below its probability.
        cate: of the ad of each impression.
    """
    n, users = len(logits), int(shows.user.max(initial=-1)) + 1
    probability, clicked = np.empty(n), np.zeros(n, np.bool_)
    hour = shows.time // 3600
    past_hour = np.full((users, REMEMBERED), -(1 << 40))
    past_cate, past_ad = np.full((2, users, REMEMBERED), -1)
    place = np.zeros(users, np.int64)
    for now in _seconds_in_turn(shows):
        user = shows.user[now]
        age = hour[now, None] - past_hour[user]
        recent = age <= 167
        logit = logits[now] + CLICKED_LATELY * (age <= 23).any(axis=1)
        logit += CLICKED_CATE * (recent & (past_cate[user] == cate[now, None])).any(axis=1)
        logit += CLICKED_AD * (recent & (past_ad[user] == shows.ad[now, None])).any(axis=1)
        probability[now] = 1.0 / (1.0 + np.exp(-logit))
        hit = now[draws[now] < probability[now]]
        clicked[hit] = True
        who = shows.user[hit]
        past_hour[who, place[who]] = hour[hit]
        past_cate[who, place[who]] = cate[hit]
        past_ad[who, place[who]] = shows.ad[hit]
        place[who] = (place[who] + 1) % REMEMBERED
    return probability, clicked


def _seconds_in_turn(shows: Shows) -> list[Ints]:
    """Impressions of every user's first second, then of every user's second one, and so on."""
    new_user = np.diff(shows.user, prepend=-1) != 0
    new_second = new_user | (np.diff(shows.time, prepend=-1) != 0)
    second = np.cumsum(new_second)
    turn = second - second[np.maximum.accumulate(np.where(new_user, np.arange(len(second)), 0))]
    order = np.argsort(turn, kind="stable")
    return np.split(order, np.searchsorted(turn[order], np.arange(1, turn.max(initial=0) + 1)))
