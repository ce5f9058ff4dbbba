"""The command `pslite`."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import pslite
from kv.initializers import Initializer
from kv.optimizers import Optimizer
from kv.schedules import Schedule
from kv.settings import Named
from pslite.cli import main
from pslite.config import JobConfig
from pslite.environ import OURS
from pslite.launcher import LaunchOptions
from van.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
LOCAL = str(ROOT / "conf" / "local.ini")


def run(*arguments: str, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, in this process."""
    done = CliRunner().invoke(main, arguments, env=env, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["local", "node", "config", "simulate", "ctl", "table"])
def test_every_help_has_an_example(command: str) -> None:
    code, out, _ = run(command, "--help")

    assert code == 0
    assert "Example" in out
    assert "pslite" in out.split("Example")[1]


def test_the_version_is_that_of_the_package() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")

    assert run("--version")[1] == f"pslite, version {setup['metadata']['version']}\n"


def test_config_prints_the_settings_as_an_ini_that_reads_back(tmp_path: Path) -> None:
    code, out, _ = run("config", LOCAL, "--set", "cluster.servers=4")
    printed = tmp_path / "printed.ini"
    printed.write_text(out)

    assert code == 0
    assert "# server processes, 1 to 1024 (default 1)\nservers = 4\n" in out
    assert run("config", str(printed))[1] == out


def test_config_lists_the_values_a_setting_allows() -> None:
    _, out, _ = run("config", LOCAL)

    assert "or semi_sync; default async)\nmode = async\n" in out


def test_the_help_of_node_tells_every_variable() -> None:
    _, out, _ = run("node", "--help")

    for variable in OURS:
        assert variable in out


def test_the_help_of_local_says_what_it_writes_and_where() -> None:
    _, out, _ = run("local", "--help")

    assert "RUN/cluster.json" in out
    assert "default: run" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["local", "absent.ini", "--", "true"], "absent.ini: cannot be read"),
        (["local", LOCAL], "no worker program; give it after the ini file and --"),
        (["local", LOCAL, "--", "absent-program"], "'absent-program' not found"),
        (
            ["local", LOCAL, "--servers", "0", "--", "true"],
            "--servers [cluster] servers: expected 1 to 1024",
        ),
        (
            ["local", LOCAL, "--record", "a", "--replay", "b", "--", "true"],
            "--replay [run] replay: a run is recorded or replayed, not both",
        ),
        (["local", "--", "python", "x.py"], "no ini file python; it comes before the command"),
        (["status", "--run", "nowhere"], "--run names the run folder"),
        (["status", "--scheduler", "nonsense"], "--scheduler: expected HOST:PORT"),
        (["status", "--scheduler", "tcp://h:99999"], "--scheduler: expected HOST:PORT"),
        (["audit", "nowhere"], "there is no folder nowhere"),
        (
            ["local", LOCAL, "--workers", "0", "--", "true"],
            "[cluster] workers: expected 1 to 65536",
        ),
        (["local", LOCAL, "--workers", "65536", "--", "true"], "are 65537 processes"),
        (["local", LOCAL, "--set", "a.b=1", "--", "true"], "--set [a]: unknown section"),
        (["local", LOCAL, "--set", "x", "--", "true"], "expected section.key=value"),
        (
            ["local", LOCAL, "--set", "checkpoint.dir=s33://b/job", "--", "true"],
            "[checkpoint] dir: s33://b/job: fsspec knows no scheme 's33'; did you mean s3?",
        ),
        (
            ["local", LOCAL, "--set", f"checkpoint.dir={__file__}/below", "--", "true"],
            "nothing can be kept there: Not a directory",
        ),
        (["config", LOCAL, "--set", "cluster.severs=1"], "did you mean servers?"),
        (["node"], "DMLC_ROLE is not set"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments, DMLC_ROLE="")

    assert code == 2
    assert out == ""
    assert err.startswith("pslite: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_verbose_adds_the_traceback() -> None:
    _, _, err = run("config", "absent.ini", "-v")

    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("pslite: error: absent.ini")


def test_local_passes_on_what_it_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[JobConfig, tuple[str, ...], LaunchOptions]] = []

    def fake(job: JobConfig, command: tuple[str, ...], options: LaunchOptions) -> int:
        calls.append((job, command, options))
        return 7

    monkeypatch.setattr("pslite.launcher.run_local", fake)
    options = ["--servers", "2", "--workers", "3", "--set", "run.seed=5", "--set", "run.name=x"]
    folders = ["--log-dir", str(tmp_path / "logs"), "--run", str(tmp_path / "run")]

    code, _, _ = run(
        "local", LOCAL, *options, *folders, "-vv", "--", "python", "a.py", "--set", "-v", "--help"
    )

    assert code == 7
    (job, command, given), *_ = calls
    assert (job.cluster.servers, job.cluster.workers) == (2, 3)
    assert (job.run.seed, job.run.name) == (5, "x")
    assert command == ("python", "a.py", "--set", "-v", "--help")
    assert (given.log_dir, given.run_dir) == (tmp_path / "logs", tmp_path / "run")
    assert given.verbose == 2


def test_an_option_wins_over_set(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[int] = []
    monkeypatch.setattr(
        "pslite.launcher.run_local", lambda job, *_: servers.append(job.cluster.servers) or 0
    )

    run("local", LOCAL, "--set", "cluster.servers=5", "--servers", "2", "--", "true")

    assert servers == [2]


def test_python_m_pslite_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pslite", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == f"pslite, version {pslite.__version__}\n"


def test_every_public_name_is_where_the_table_says() -> None:
    missing = [name for name in pslite.__all__ if getattr(pslite, name, None) is None]

    assert missing == []
    assert sorted(pslite.__all__) == sorted({"__version__", *pslite._HOME_OF})
    assert set(pslite.__all__) <= set(dir(pslite))
    assert issubclass(ConfigError, pslite.PsliteError)


@pytest.mark.parametrize("family", [Optimizer, Schedule, Initializer])
def test_every_setting_of_a_table_is_a_public_name(family: type[Named]) -> None:
    assert {kind.__name__ for kind in family.members.values()} <= set(pslite.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pslite' has no attribute 'conect'"):
        pslite.conect  # noqa: B018


@pytest.mark.parametrize("shadow", ["kv.py", "van/__init__.py", "postoffice.py"])
def test_a_file_that_hides_a_package_of_ours_is_named(shadow: str, tmp_path: Path) -> None:
    path = tmp_path / shadow
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('must not be imported')")

    done = subprocess.run(
        [sys.executable, "-c", "import pslite"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    name = shadow.split("/")[0].removesuffix(".py")
    assert done.stderr.splitlines()[-1].startswith(
        f"ImportError: {path} hides the package '{name}' of pslite (in {ROOT}); rename it"
    )


def test_a_folder_without_python_files_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "van").mkdir()

    done = subprocess.run(
        [sys.executable, "-c", "import pslite; print(pslite.VanError.__name__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("VanError\n", "")
