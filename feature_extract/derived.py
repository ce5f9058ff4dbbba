"""Columns that a format's reader adds: date, hour and weekday of Avazu's `hour`."""

from __future__ import annotations

import datetime


def derive(column: str, hour: str) -> str | None:
    """The derived column's text, None where `hour` is not YYMMDDHH; nothing of nothing.

    >>> [derive(column, "14102123") for column in ("date", "hour_of_day", "weekday")]
    ['141021', '23', '2']
    """
    if not hour:
        return ""
    try:
        moment = datetime.datetime.strptime(hour, "%y%m%d%H")
    except ValueError:
        return None
    if len(hour) != len("YYMMDDHH"):
        return None
    if column == "weekday":
        return str(moment.isoweekday())
    return hour[:6] if column == "date" else hour[6:]
