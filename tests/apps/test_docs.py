from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from apps.ctr.modelconf import SECTIONS, load_model_config
from apps.ctr.tables import dense_optimizer, embedding_initializer, embedding_optimizer

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "ctr.md").read_text(encoding="utf-8")


def test_the_documentation_names_every_key_of_the_model_ini() -> None:
    for section, kind in SECTIONS.items():
        assert f"`[{section}]`" in DOCS
        for key in dataclasses.fields(kind):
            assert f"`{key.name}`" in DOCS, f"[{section}] {key.name}"


def test_the_network_in_the_documentation_can_be_used() -> None:
    import torch

    from apps.ctr.models import BlockShape

    code = DOCS.partition("```python\n")[2].partition("```")[0]
    names: dict[str, type] = {}
    exec(code, names)

    wide = names["Wide"]({"x": BlockShape(2, 3, 1)}, ())

    assert wide(torch.ones(4, 7)).tolist() == [0.5] * 4


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "conf").glob("fnn*.ini")), ROOT / "conf/dssm.ini"]
)
def test_the_model_inis_are_right_to_the_last_key(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = load_model_config(path)

    for check in (dense_optimizer, embedding_optimizer, embedding_initializer):
        check(conf)
    assert caplog.text == ""
