"""What the README shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELLO = (ROOT / "examples" / "hello_ps.py").read_text(encoding="utf-8")


def test_the_first_example_is_the_program_in_examples() -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)

    assert shown is not None
    assert shown[1] == HELLO.split('"""\n\n', 1)[1]


def test_the_first_example_is_short() -> None:
    assert len(HELLO.splitlines()) <= 20


def test_every_script_and_file_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    named = re.findall(r"(?:\./)?((?:[\w]+/)*[\w-]+\.(?:sh|py|ini|txt))\b", text)

    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
