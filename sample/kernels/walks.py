# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-untyped-decorators=False, disallow-incomplete-defs=False
# Kernel arguments are untyped on purpose: their docstrings give dtype and shape.
"""Go along the impressions of each user and, at the same time, along what the user did.

Values are numbered by the code point order of their texts, so that numbers compare as texts do; -1
is none. A list is `start` and `stop` into a shared `pool`: impressions with the same list share it.
"""

from sample.kernels.jit import kernel

SECONDS_PER_DAY = 86400
SHANGHAI = 8 * 3600  # seconds ahead of UTC, all year since 1991
NO_DAY = -(2**62)


@kernel
def day_of(time):
    """Number of the Shanghai day of a Unix time."""
    return (time + SHANGHAI) // SECONDS_PER_DAY


@kernel
def todays_values(bounds, times, values, shown, show_times, seen, pool, start, stop, last):
    """What each user touched on the day of an impression, strictly before it.

    bounds: int64 (4 users + 1,), behaviours of user u and action a are bounds[4u+a]:bounds[4u+a+1];
    times: int64 and values: int32 (n,), rising by (time, value) within those bounds;
    shown: int64 (users + 1,), bounds of each user's impressions; show_times: int64, rising;
    seen: int32 (distinct values,), zeros; pool: int32 (n,); start, stop: int64 and last: int32
    (4, impressions): distinct values in order of first touch, and the last one touched.
    """
    stamp = 0
    used = 0
    for user in range(shown.size - 1):
        for action in range(4):
            at, end = bounds[4 * user + action], bounds[4 * user + action + 1]
            day = NO_DAY
            begin = used
            latest = -1
            for i in range(shown[user], shown[user + 1]):
                while at < end and times[at] < show_times[i]:
                    if day_of(times[at]) != day:
                        day = day_of(times[at])
                        begin = used
                        stamp += 1
                    latest = values[at]
                    if seen[latest] != stamp:
                        seen[latest] = stamp
                        pool[used] = latest
                        used += 1
                    at += 1
                if day_of(show_times[i]) == day:
                    start[action, i] = begin
                    stop[action, i] = used
                    last[action, i] = latest
                else:
                    start[action, i] = 0
                    stop[action, i] = 0
                    last[action, i] = -1
    return used


@kernel
def top_values(
    bounds, times, values, shown, show_times, days, limit, counts, keys, pool, start, stop
):
    """The most frequent values in the whole days before the day of an impression.

    Arguments as of `todays_values`; counts: int64 (distinct values,), zeros; keys: int64 of the
    same shape, scratch; pool: int32, `limit` for each day, user and action. By falling count, ties
    by falling value.
    """
    used = 0
    for user in range(shown.size - 1):
        for action in range(4):
            low, end = bounds[4 * user + action], bounds[4 * user + action + 1]
            previous = NO_DAY
            begin = used
            for i in range(shown[user], shown[user + 1]):
                day = day_of(show_times[i])
                if day != previous:
                    previous = day
                    while low < end and day_of(times[low]) < day - days:
                        low += 1
                    at = low
                    distinct = 0
                    while at < end and day_of(times[at]) < day:
                        if counts[values[at]] == 0:
                            keys[distinct] = values[at]
                            distinct += 1
                        counts[values[at]] += 1
                        at += 1
                    for k in range(distinct):
                        value = keys[k]
                        keys[k] = -((counts[value] << 32) | value)
                        counts[value] = 0
                    keys[:distinct].sort()
                    begin = used
                    for k in range(min(distinct, limit)):
                        pool[used] = (-keys[k]) & 0xFFFFFFFF
                        used += 1
                start[action, i] = begin
                stop[action, i] = used
    return used


@kernel
def clicks_before(
    clicked, past_hours, past_times, past_ads, own_hours, own_times, own_ads,
    shown, show_times, hours, pool, start, stop, last,
):  # fmt: skip
    """The ads a user clicked in the window of an impression, in the order of the lists.

    clicked: int64 (users + 1,), bounds of each user's clicks, once in the order (hour, line) of
    past clock hours, once in the order (hour, text) of the own one; *_hours, *_times: int64 and
    *_ads: int32 (clicks,); pool: int32, too short a one is only measured; start, stop: int64 and
    last: int32 (impressions,). Returns the length `pool` needs.
    """
    used = 0
    for user in range(shown.size - 1):
        low = own = clicked[user]
        end = clicked[user + 1]
        for i in range(shown[user], shown[user + 1]):
            time = show_times[i]
            hour = time // 3600
            while low < end and past_hours[low] < hour - (hours - 1):
                low += 1
            start[i] = used
            last[i] = -1
            latest = -(2**62)
            at = low
            while at < end and past_hours[at] < hour:
                if past_hours[at] > latest // 3600 or past_times[at] > latest:
                    latest = past_times[at]
                    last[i] = past_ads[at]
                if used < pool.size:
                    pool[used] = past_ads[at]
                used += 1
                at += 1
            while own < end and own_hours[own] < hour:
                own += 1
            at = own
            while at < end and own_hours[at] == hour:
                if own_times[at] < time:
                    if own_times[at] >= latest:
                        latest = own_times[at]
                        last[i] = own_ads[at]
                    if used < pool.size:
                        pool[used] = own_ads[at]
                    used += 1
                at += 1
            stop[i] = used
    return used


@kernel
def distinct_values(start, stop, pool, value_of, seen, out, out_start, out_stop):
    """Values of pool[start[i]:stop[i]], first occurrence counting, without the absent ones.

    value_of: int32 (ads,), -1 where absent; seen: int32 (distinct values,), zeros; out: int32, as
    long as `pool`; out_start, out_stop: int64.
    """
    used = 0
    for i in range(start.size):
        out_start[i] = used
        for at in range(start[i], stop[i]):
            value = value_of[pool[at]]
            if value >= 0 and seen[value] != i + 1:
                seen[value] = i + 1
                out[used] = value
                used += 1
        out_stop[i] = used
    return used
