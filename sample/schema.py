"""The names of the 77 columns of a sample, in order, and the groups they are made of."""

from __future__ import annotations

IMPRESSION = ("user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk")
CALENDAR = ("workdayflag", "tm_hour")
PROFILE = (
    "cms_segid",
    "cms_group_id",
    "final_gender_code",
    "age_level",
    "pvalue_level",
    "shopping_level",
    "occupation",
    "new_user_class_level",
)
AD = ("cate_id", "campaign_id", "customer", "brand", "price")

ACTIONS = ("pv", "fav", "cart", "buy")
DIMENSIONS = ("cate", "brand")
WINDOWS = (24, 168)  # clock hours
CLICKED = ("aid", "cate_id", "brand", "customer")  # what the click lists are about
TOP_DAYS = 14  # whole days behind a list of most frequent values
TOP_VALUES = 50  # values in such a list, at most


def count_columns(hours: int) -> tuple[str, ...]:
    """Show, click and ctr of user and ad in a window.

    >>> count_columns(24)[0]
    'user_show_last_24hour'
    """
    return tuple(
        f"{who}_{what}_last_{hours}hour"
        for who in ("user", "ad")
        for what in ("show", "click", "ctr")
    )


def click_columns(hours: int) -> tuple[str, ...]:
    """Lists, last values and this-ad counts of the user's clicks in a window."""
    return (
        *(f"user_click_local_{what}_list_uniq_last_{hours}hour" for what in CLICKED),
        *(f"user_last_click_local_{what}_last_{hours}hour" for what in CLICKED),
        f"user_click_local_this_ad_count_last_{hours}hour",
        f"user_non_click_local_this_ad_count_last_{hours}hour",
    )


TOP = tuple(f"{a}_{d}_last_14days" for a in ACTIONS for d in DIMENSIONS)
LATEST = tuple(
    f"{a}_{d}_global_latest_{n}" for a in ACTIONS for d in DIMENSIONS for n in ("n", "1")
)
COUNTS = tuple(name for hours in WINDOWS for name in count_columns(hours))
CLICKS = tuple(name for hours in WINDOWS for name in click_columns(hours))

SCHEMA: tuple[str, ...] = (
    *IMPRESSION,
    *CALENDAR,
    *PROFILE,
    *AD,
    *TOP,
    *LATEST,
    *COUNTS,
    *CLICKS,
)
