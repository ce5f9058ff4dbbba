"""What users write about compression: chains, tables, links."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.compression import schemes, settings
from kv.compression.schemes import BF16, FP16, Chain, Delta, Int8, OneBit, Scheme, Selective, TopK
from kv.compression.settings import NO_RULES, Compression, Rules
from kv.errors import SettingError
from kv.spec import TableSpec
from van.errors import ConfigError

ALL = [Selective(eps=0.5), Delta(), TopK(share=0.25, rows=1), FP16(feedback=0), schemes.Zstd()]


def test_doctests() -> None:
    assert not doctest.testmod(settings).failed


@given(st.lists(st.sampled_from(ALL), min_size=1, unique=True))
def test_a_chain_is_written_as_it_is_read(chosen: list[Scheme]) -> None:
    chosen.sort(key=lambda scheme: scheme.stage)
    if isinstance(chosen[-1], Delta):
        chosen = [*chosen, Int8()]
    chain = Chain(tuple(chosen))

    assert Chain.parse(str(chain)) == chain


def test_settings_follow_a_scheme_in_order_or_by_name() -> None:
    chain = Chain.parse(" topk:0.1:rows=1 + FP16:feedback=0 ")

    assert chain.schemes == (TopK(share=0.1, rows=1), FP16(feedback=0))
    assert str(chain) == "topk:0.1:rows=1+fp16:feedback=0"
    assert chain.keeps_errors
    assert not Chain.parse("topk:0.1:feedback=0+fp16:0").keeps_errors
    assert Chain.parse("delta+onebit").quantiser == OneBit()


@pytest.mark.parametrize(("text", "words"), [
    ("tpok:0.1", "did you mean topk?"),
    ("topk", "share must be given"),
    ("topk:0", "above 0, at most 1"),
    ("topk:0.1:2", "rows must be 0 or 1"),
    ("topk:much", "share must be a number, not 'much'"),
    ("topk:0.1:share=0.2", "given twice"),
    ("topk:0.1:size=3", "unknown setting 'size'"),
    ("fp16:1:2", "it has 1: feedback"),
    ("delta:1+int8", "it has none"),
    ("fp16+topk:0.1", "topk must stand before fp16"),
    ("fp16+int8", "fp16 and int8 do the same"),
    ("delta", "write delta+int8"),
    ("selective", "a limit must be given"),
    ("selective:-1", "eps must be 0 or more"),
    ("zstd:20", "a whole number, 1 to 19"),
    ("none+fp16", "none stands alone"),
    ("", "unknown name ''"),
])  # fmt: skip
def test_what_is_wrong_with_a_chain_is_said(text: str, words: str) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        Chain.parse(text)


def test_a_definition_says_it_for_all_links_or_for_some() -> None:
    assert Compression.of("fp16") == Compression.of(
        {"worker-server": "fp16", "worker-dispatcher": "fp16", "dispatcher-server": "fp16"}
    )
    one = Compression.of({"push": "topk:0.1", "dispatcher-server": "none", "pull": BF16.name})
    assert one.worker_server == Chain.parse("topk:0.1")
    assert one.dispatcher_server is None
    assert one.pull == Chain.parse("bf16")
    assert Compression.of({"push": Chain.parse("fp16"), "memory": "1MiB"}).memory == 1 << 20
    assert Compression.of("none").is_none


@pytest.mark.parametrize(("given", "words"), [
    ({"pul": "fp16"}, "did you mean pull"),
    ({"pull": "topk:0.1"}, "values that are pulled may be fp16, bf16, int8, zstd"),
    ({"pull": "onebit"}, "nothing is kept"),
    ({"memory": "-1"}, "memory"),
    ({"memory": True}, "memory is bytes"),
    ({"push": 3}, "a chain is a text"),
    (3, "a chain such as"),
])  # fmt: skip
def test_what_is_wrong_with_a_definition_is_said(given: object, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Compression.of(given)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=f"table user: compression: .*{words}"):
        TableSpec.sparse("user", 8, compression=given)  # type: ignore[arg-type]


def test_a_definition_travels() -> None:
    spec = TableSpec.sparse("user", 8, compression={"push": "topk:0.1+int8", "pull": "fp16"})
    other = TableSpec.sparse("user", 8, compression="fp16")

    assert TableSpec.from_dict(spec.to_dict()) == spec
    assert "compression push=topk:0.1+int8, pull=fp16 here, push=fp16 there" in spec.difference(
        other
    )
    old = {key: value for key, value in spec.to_dict().items() if key != "compression"}
    assert TableSpec.from_dict(old).compression is None


def test_the_first_rule_that_says_something_counts() -> None:
    rules = Rules(
        {
            "user": "topk:0.1",
            "user@dispatcher-server": "onebit",
            "item": "none",
            "dense": "fp16",
            "*": "bf16",
            "*@pull": "int8",
            "sparse@memory": "1MiB",
        }
    )

    user, item, ad, head = (
        rules.of(name, kind)
        for name, kind in (
            ("user", "sparse"), ("item", "sparse"), ("ad", "sparse"), ("head", "dense")
        )
    )  # fmt: skip

    assert str(user) == (
        "worker-server=topk:0.1, worker-dispatcher=topk:0.1, dispatcher-server=onebit, pull=int8, "
        "memory=1MiB"
    )
    assert str(item) == "pull=int8, memory=1MiB"
    assert str(ad) == "push=bf16, pull=int8, memory=1MiB"
    assert str(head) == "push=fp16, pull=int8"
    assert Rules({"*": "fp16", "item": "none"}).of("item", "sparse") is None
    assert NO_RULES.of("item", "sparse") is None
    assert rules.unused({"user": "sparse"}) == ["item"]


@pytest.mark.parametrize(("key", "text", "words"), [
    ("user", "topk:2", r"\[compression\] user: .*share must be above 0"),
    ("user@pul", "fp16", r"\[compression\] user@pul: .*did you mean pull"),
    ("@pull", "fp16", r"a table stands before @pull"),
    ("user@pull", "onebit", r"\[compression\] user@pull: .*nothing is kept"),
    ("user@memory", "much", r"\[compression\] user@memory: .*such as 64KB"),
])  # fmt: skip
def test_what_is_wrong_with_a_rule_is_said_with_its_key(key: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Rules({key: text})
