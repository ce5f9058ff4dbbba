"""What the README shows is what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import apps.ctr.cli
import apps.ctr.pipeline
import feature_extract.cli
import pslite.cli
import sample.cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [pslite.cli.main, sample.cli.main, feature_extract.cli.main, apps.ctr.cli.main]
HELLO = (ROOT / "examples" / "hello_ps.py").read_text(encoding="utf-8")


def test_the_first_example_is_the_program_in_examples() -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)

    assert shown is not None
    assert shown[1] == HELLO.split('"""\n\n', 1)[1]


@pytest.mark.parametrize("page", ["optimizers", "consistency"])
def test_the_examples_of_a_page_run(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    shown = re.findall(r"```python\n(import .*?)```", text, re.DOTALL)  # others are not whole

    assert len(shown) >= 2
    for code in shown:
        exec(code, {})


def test_the_first_example_is_short() -> None:
    assert len(HELLO.splitlines()) <= 20


def test_every_script_and_file_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    text = re.sub(r"--out \S+", "", text)  # what a command writes need not be there before
    named = re.findall(r"(?:\./)?((?:[\w]+/)*[\w-]+\.(?:sh|py|ini|txt))\b", text)

    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_page_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8"))
    own = [link for link in links if "://" not in link]

    assert [link for link in own if not (page.parent / link).exists()] == []


def test_the_readme_leads_to_the_documentation() -> None:
    text = (ROOT / "README.md").read_text("utf-8")

    assert len(re.findall(r"\]\(docs/[\w-]+\.md\)", text)) > 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert re.findall(r"@[A-Z_]+@", page.read_text("utf-8")) == []


def helps() -> Iterator[str]:
    """What each command and each of its subcommands says to --help."""
    # As users ask: click keeps a command's help option as the first context made it.
    runner = CliRunner()
    for main in COMMANDS:
        for arguments in ([], *([name] for name in main.commands)):
            yield runner.invoke(main, [*arguments, "--help"]).output
    yield apps.ctr.pipeline.EPILOG


def test_every_file_in_conf_that_a_help_names_is_there() -> None:
    named = {name for text in helps() for name in re.findall(r"(?<![\w/])conf/[\w.-]+\w", text)}

    assert {"conf/local.ini", "conf/fnn.ini", "conf/features_taobao.ini"} <= named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
