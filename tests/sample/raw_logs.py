"""Small raw logs made to be awkward: few users, ads and values, times that crowd around borders."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

MIDNIGHT = 1494604800  # 2017-05-13 00:00 in Shanghai, the first second of the test day
HOUR, DAY = 3600, 86400
HEADERS = {
    "raw_sample": "user,time_stamp,adgroup_id,pid,nonclk,clk",
    "ad_feature": "adgroup_id,cate_id,campaign_id,customer,brand,price",
    "user_profile": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    "shopping_level,occupation,new_user_class_level ",
    "behavior_log": "user,time_stamp,btag,cate,brand",
}

USERS = ["1", "2", "10", "NULL", "", "u é"]
ADS = ["7", "12", "123", "é", "NULL"]  # 12 is a prefix of 123: the text order of clicks differs
VALUES = ["5", "12", "123", "", "NULL", "Ω", "\U0001f600", "～"]  # the last two differ in UTF-16

users, ads, values = st.sampled_from(USERS), st.sampled_from(ADS), st.sampled_from(VALUES)
moments = st.builds(
    lambda *parts: MIDNIGHT + sum(parts),
    st.integers(-2, 2),
    st.sampled_from([0, 0, HOUR, -HOUR, -HOUR // 2, -DAY]),
    st.sampled_from([0, 0, -23 * HOUR, -24 * HOUR, -167 * HOUR, -168 * HOUR]),
)
whole_days = st.sampled_from([0, 0, DAY, 13 * DAY, 14 * DAY, 15 * DAY])
spaces = st.sampled_from(["", "", "", " ", "\t", "\r", " \r"])


@st.composite
def impressions(draw) -> str:
    click = draw(st.integers(0, 1))
    fields = [draw(users), draw(moments), draw(ads), draw(values), 1 - click, click]
    return draw(spaces) + ",".join(map(str, fields)) + draw(spaces)


@st.composite
def behaviors(draw) -> str:
    time = draw(moments) - draw(whole_days)
    action = draw(st.sampled_from(["pv", "pv", "fav", "cart", "buy"]))
    fields = [draw(users), time, action, draw(values), draw(values)]
    return draw(spaces) + ",".join(map(str, fields)) + draw(spaces)


profiles = st.builds(lambda user, a, b: f"{user},{a},1,2,,{b},,0,", users, values, values)
features = st.builds(
    lambda ad, cate, customer, brand: f"{ad},{cate},c,{customer},{brand},9.5",
    st.sampled_from(ADS[:-1]), values, values, values,
)  # fmt: skip
raw_logs = st.fixed_dictionaries(
    {
        "raw_sample": st.lists(impressions(), max_size=30),
        "behavior_log": st.lists(behaviors(), max_size=40),
        "ad_feature": st.lists(features, max_size=6),
        "user_profile": st.lists(profiles, max_size=5),
    }
)


def write_raw(folder: Path, rows: dict[str, list[str]]) -> Path:
    """The four files, those without rows with their header only."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, header in HEADERS.items():
        text = "\n".join([header, *rows.get(name, [])]) + "\n"
        (folder / f"{name}.csv").write_bytes(text.encode("utf-8"))
    return folder


def read_tsv(folder: Path) -> tuple[str, str]:
    """The texts of train.tsv and test.tsv."""
    return tuple(
        (folder / f"{name}.tsv").read_bytes().decode("utf-8") for name in ("train", "test")
    )
