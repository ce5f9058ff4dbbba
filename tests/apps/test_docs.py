from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apps.ctr.inputs import find_data
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


PUBLIC = ["adult", "a9a", "avazu", "criteo", "taobao_ad"]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_commands_above_a_model_ini_make_the_folder_it_is_trained_on(
    tmp_path: Path, name: str
) -> None:
    text = (ROOT / f"conf/fnn_{name}.ini").read_text(encoding="utf-8")
    *preparation, train = re.findall(r"^#   (.*)$", text, re.MULTILINE)
    for file in ["adult.data", "adult.test", "a9a", "a9a.t", "train.csv", "train.txt"]:
        (tmp_path / file).write_text(f"of {file}\n" * 20)
    (tmp_path / "impressions.csv").write_text("of impressions.csv\n" * 20)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    script = "\n".join(preparation).replace(
        "pslite-features", f"{sys.executable} -m feature_extract"
    )

    subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=True,
    )

    folder = re.search(r"--data (\S+)", train)
    assert folder is not None
    found = find_data(tmp_path / folder[1])
    assert found.test is not None
    assert found.train.read_text() != found.test.read_text()
    assert f"--conf conf/fnn_{name}.ini --features conf/features_{name}.ini" in train
