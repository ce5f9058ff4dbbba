"""Hypothesis strategies: samples and feature inis that fit each other."""

from __future__ import annotations

from hypothesis import strategies as st

TEXT_FIELDS, NUMBER_FIELDS, LIST_FIELDS = ("t", "u", "v"), ("n", "m"), ("l", "k")
FIELDS = ("row", "clk", *TEXT_FIELDS, *NUMBER_FIELDS, *LIST_FIELDS)
PLAIN = ["", "NULL", "a", "b", "é", "𝄞", "a b", "9", "10", "\uffff"]
AWKWARD = ["a|b", "a#b", "#", "a_b"]  # allowed with escape = true
NUMBERS = ["", "0", "1", "-0.5", "2.5", "50", "50.01", "1e3", "+7", "-1", "16777217", "0.1", "3e-5"]
BREAKS = ["0", "1", "-1", "50", "50.01", "0.1", "1e3", "16777216", "2.5"]


@st.composite
def samples(draw, escape: bool, compat: bool, size: st.SearchStrategy[int]) -> list[list[str]]:
    texts = st.sampled_from(PLAIN + ([*AWKWARD, "a,b"] if escape else []))
    items = st.sampled_from(PLAIN + (AWKWARD if escape else []))
    numbers = st.sampled_from(NUMBERS if compat else [*NUMBERS, "NULL"])
    lists = st.lists(items, max_size=4).map(",".join)
    rows = []
    for number in range(draw(size)):
        row = [f"r{number}", draw(st.sampled_from(["0", "1"]))]
        row += [draw(texts) for _ in TEXT_FIELDS]
        row += [draw(numbers) for _ in NUMBER_FIELDS]
        row += [draw(lists) for _ in LIST_FIELDS]
        rows.append(row)
    return rows


breaks = st.lists(st.sampled_from(BREAKS), min_size=1, max_size=4).map(
    lambda texts: "|".join(sorted(texts, key=float))
)
texts, numbers, lists = (st.sampled_from(f) for f in (TEXT_FIELDS, NUMBER_FIELDS, LIST_FIELDS))
bucket = st.builds("{},bucket,{}".format, numbers, breaks)
hit = st.builds("{}|{},hit".format, st.one_of(texts, numbers), lists)
group = st.one_of(
    st.builds("{},group".format, lists),
    st.builds("{},group,{}".format, lists, st.sampled_from(["t", "u", "shared"])),
)


@st.composite
def combine(draw) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            parts.append((draw(texts), "direct", ""))
        else:
            parts.append((draw(numbers), "bucket", draw(breaks)))
    fields, operators, arguments = zip(*parts, strict=True)
    return f"{'|'.join(fields)},combine,{'|'.join(operators)},{'#'.join(arguments)}"


curve = st.builds("{},{}".format, st.just("p"), st.sampled_from(["log", "sqrt"]))
dense = st.one_of(st.builds("{},direct".format, numbers), bucket, hit, curve)
sparse = st.one_of(st.builds("{},direct".format, texts), bucket, hit, group, combine(), curve)


@st.composite
def inis(draw, escape: bool) -> dict[str, dict[str, str]]:
    ini: dict[str, dict[str, str]] = {
        "raw_sample_schema": {"fields": ",".join((*FIELDS, "p"))},
        "id": {"id": draw(st.sampled_from(["row,direct", "row|n,combine,direct|bucket,#1"]))},
        "label": {"label": "clk,direct"},
    }
    if escape:
        ini["id"]["escape"] = "true"
    for group_name in ("user", "ad", "user_ad"):
        for kind, features in (("dense", dense), ("sparse", sparse)):
            drawn = draw(st.lists(features, max_size=3))
            if drawn:
                section = f"{kind}_features_{group_name}"
                ini[section] = {f"{10 - i:03d}_f{i}": text for i, text in enumerate(drawn)}
    if not any(section.endswith(("user", "ad")) for section in ini):
        ini["sparse_features_user"] = {"001_t": "t,direct"}
    return ini
