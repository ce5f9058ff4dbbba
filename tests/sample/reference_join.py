"""The join, row by row, written straight from the rules and as slowly as they read.

Nothing here is shared with the package but the names of the columns.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sample import SCHEMA

ACTIONS, DIMENSIONS = ("pv", "fav", "cart", "buy"), ("cate", "brand")
PROFILE = [
    "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level",
    "shopping_level", "occupation", "new_user_class_level",
]  # fmt: skip
AD = ["cate_id", "campaign_id", "customer", "brand", "price"]
TEST_DAY = (1494604800 + 28800) // 86400


def rows_of(path: Path) -> list[dict]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    names = [name.strip() for name in lines[0].split(",")]
    return [dict(zip(names, line.split(","), strict=True)) for line in lines[1:] if line]


def day(time: int) -> int:
    return (time + 28800) // 86400


def distinct(values: list[str]) -> list[str]:
    return list(dict.fromkeys(values))


def reference_join(raw: Path, compat: bool) -> tuple[str, str]:
    """The text of train.tsv and test.tsv."""
    impressions = rows_of(raw / "raw_sample.csv")
    profiles = {row["userid"]: row for row in rows_of(raw / "user_profile.csv")}
    ads = {row["adgroup_id"]: row for row in rows_of(raw / "ad_feature.csv")}
    behaviors = rows_of(raw / "behavior_log.csv")
    for row in impressions + behaviors:
        row["t"] = int(row["time_stamp"])
    texts: tuple[list[str], list[str]] = ([], [])
    for row in impressions:
        sample = one_sample(row, impressions, profiles, ads, behaviors, compat)
        assert list(sample) == list(SCHEMA)
        texts[day(row["t"]) >= TEST_DAY].append("\t".join(sample.values()) + "\n")
    return "".join(texts[0]), "".join(texts[1])


def one_sample(row, impressions, profiles, ads, behaviors, compat):
    t, user, ad = row["t"], row["user"], row["adgroup_id"]
    sample = {n: row[n] for n in ("user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk")}
    monday_is_0 = (day(t) + 3) % 7
    sample["workdayflag"] = "1" if monday_is_0 < 5 and not compat else "0"
    sample["tm_hour"] = str((t + 28800) % 86400 // 3600)
    for name in PROFILE:
        sample[name] = profiles.get(user, {}).get(name, "")
    for name in AD:
        sample[name] = ads.get(ad, {}).get(name, "")

    for action in ACTIONS:
        for dimension in DIMENSIONS:
            count = Counter(
                b[dimension]
                for b in behaviors
                if b["user"] == user and b["btag"] == action and day(t) - 14 <= day(b["t"]) < day(t)
            )
            ranked = sorted(count, key=lambda value: (count[value], value), reverse=True)
            sample[f"{action}_{dimension}_last_14days"] = ",".join(ranked[:50])
    for action in ACTIONS:
        for dimension in DIMENSIONS:
            touched = sorted(
                (b["t"], b[dimension])
                for b in behaviors
                if b["user"] == user and b["btag"] == action
                and day(b["t"]) == day(t) and b["t"] < t
            )  # fmt: skip
            values = [value for _, value in touched]
            name = f"{action}_{dimension}_global_latest"
            sample[f"{name}_n"] = ",".join(distinct(values))
            sample[f"{name}_1"] = values[-1] if values else ""

    hour = t // 3600
    for hours in (24, 168):
        window = [i for i in impressions if hour - (hours - 1) <= i["t"] // 3600 and i["t"] < t]
        for who, key, value in (("user", "user", user), ("ad", "adgroup_id", ad)):
            shows = [i for i in window if i[key] == value]
            if compat and who == "ad":
                shows = [i for i in shows if i["t"] // 3600 < hour]
            clicks = [i for i in shows if i["clk"] == "1"]
            sample[f"{who}_show_last_{hours}hour"] = str(len(shows))
            sample[f"{who}_click_last_{hours}hour"] = str(len(clicks))
            sample[f"{who}_ctr_last_{hours}hour"] = str(len(clicks) / (len(shows) + 10))
    for hours in (24, 168):
        own = [
            i
            for i in impressions
            if i["user"] == user and hour - (hours - 1) <= i["t"] // 3600 and i["t"] < t
        ]
        clicks = [i for i in own if i["clk"] == "1"]
        sample |= click_columns(clicks, hour, hours, ads)
        this_ad = [i["clk"] for i in own if i["adgroup_id"] == ad]
        name = f"local_this_ad_count_last_{hours}hour"
        sample[f"user_click_{name}"] = str(this_ad.count("1"))
        sample[f"user_non_click_{name}"] = str(len(this_ad) - this_ad.count("1"))
    return sample


def click_columns(clicks, hour, hours, ads):
    """`clicks` of the window, in the order of the raw file."""
    past = [c for c in clicks if c["t"] // 3600 < hour]
    past.sort(key=lambda c: c["t"] // 3600)  # stable: within an hour the raw file's order stays
    current = [c for c in clicks if c["t"] // 3600 == hour]
    current.sort(key=lambda c: f"{c['time_stamp']}:{c['adgroup_id']}:{c['clk']}")
    ordered = past + current

    latest = max((c["t"] for c in clicks), default=None)
    last = [c for c in ordered if c["t"] == latest]
    last_ad = None
    if last:
        last_ad = (last[-1] if latest // 3600 == hour else last[0])["adgroup_id"]

    columns = {}
    kinds = {"aid": None, "cate_id": "cate_id", "brand": "brand", "customer": "customer"}
    for what, feature in kinds.items():
        clicked = [c["adgroup_id"] for c in ordered]
        if feature is not None:
            clicked = [ads[a][feature] for a in clicked if a in ads]
        columns[f"user_click_local_{what}_list_uniq_last_{hours}hour"] = ",".join(distinct(clicked))
    for what, feature in kinds.items():
        value = last_ad or ""
        if feature is not None:
            value = ads.get(last_ad, {}).get(feature, "")
        columns[f"user_last_click_local_{what}_last_{hours}hour"] = value
    return columns
