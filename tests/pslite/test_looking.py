"""`pslite status` and `pslite table stats`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pslite
from kv.remote_worker import RemoteWorker
from pslite.cli import main
from pslite.looking import dispatchers, lost, most_used, scheduler_of, table_stats, total_stats
from pslite.rundir import RunDirectory
from van.errors import ConfigError


def report(**stats: Any) -> dict[str, Any]:
    """One server's report of a table."""
    names = "rows hot_rows nbytes disk_nbytes load_factor admitted denied dropped_gradients"
    names += " evicted expired spilled hot_hits hot_misses"
    figures = dict.fromkeys(names.split(), 0)
    return {
        "name": "user",
        "kind": "sparse",
        "mode": "async",
        "dim": 8,
        "clock": 3,
        **figures,
        "top": [],
        **stats,
    }


def test_figures_are_added_over_servers_and_the_load_is_weighted_by_rows() -> None:
    total = total_stats([report(rows=30, load_factor=0.6), report(rows=10, load_factor=0.2)])

    assert total["rows"] == 40
    assert total["load_factor"] == pytest.approx(0.5)


def test_the_most_used_keys_are_those_of_all_servers() -> None:
    parts = [report(top=[[5, 9.0], [6, 1.0]]), report(top=[[2, 9.0], [3, 4.0]])]

    assert most_used(parts, 3) == [(2, 9.0), (5, 9.0), (3, 4.0)]


def test_what_dispatchers_do_is_told_with_their_merge_ratio() -> None:
    facts = {
        "workers": [2, 3],
        "queue": 4,
        "latency": 0.0123,
        "under_way": 1,
        "pushes": 20,
        "merges": 8,
        "rows_in": 900,
        "rows_out": 600,
        "cache_hits": 1,
        "cache_misses": 3,
        "refreshed_rows": 50,
        "unchanged_rows": 2_000,
        "refresh_bytes_saved": 3 << 20,
        "flushes": {"all": 7, "interval": 1},
    }

    heading, line = dispatchers({1: facts}).splitlines()

    assert heading.split()[:2] == ["dispatcher", "workers"]
    assert line.startswith("1           2, 3")
    assert "1.50" in line
    assert "12.3 ms" in line
    assert "25.0 %" in line
    assert "3.0 MiB" in line
    assert line.endswith("all: 7, interval: 1")


def test_what_dispatchers_hold_of_a_table_is_told_with_it() -> None:
    link = {"plain_nbytes": 4096, "nbytes": 1024, "messages": 3, "seconds": 0.2}
    rows = {"rows": 64, "rows_sent": 64}
    kept = {"rows": 7, "nbytes": 512, "magnitude": 1.25, "dropped_rows": 0}
    user: dict[str, Any] = {
        "name": "user",
        "copied_rows": 30,
        "copied_nbytes": 2048,
        "cached_nbytes": 1024,
        "compression": {
            "dispatcher-server": link | rows,
            "worker-dispatcher": link | rows | {"messages": 0},
            "residuals": kept,
        },
    }
    item = {"name": "item", "copied_rows": 0, "copied_nbytes": 0, "cached_nbytes": 0}
    facts = {1: {"tables": [user, item]}}

    text = table_stats({"user": [report()], "item": [report()]}, "user", facts).splitlines()

    (holds,) = [line for line in text if line.startswith("dispatcher 1 holds of user: ")]
    assert "copies of 30 rows (2.0 KiB), 1.0 KiB of the latest pulls" in holds
    assert "7 rows (512 B), magnitudes of about 1.25" in holds
    (coded,) = [line for line in text if line.startswith("compression of user at dispatcher 1")]
    assert "dispatcher-server: 4.0 KiB as 1.0 KiB (-75.0 %)" in coded


def test_what_a_dead_dispatcher_had_kept_back_is_told() -> None:
    dispatcher, worker = 1 << 20, 9
    said: list[tuple[int, dict[str, Any]]] = [
        (dispatcher, {"kept_back": [1200, 0.5]}),
        (dispatcher + 1, {"kept_back": [0, 0.0]}),
        (worker, {"work": [1, 2]}),
    ]

    (line,) = lost(said)

    assert line.startswith("dispatcher 0: ")
    assert "1 200 rows" in line or "1,200 rows" in line


def test_the_text_names_tables_rates_and_keys() -> None:
    text = table_stats({"user": [report(rows=1_500_000, hot_hits=3, hot_misses=1, top=[[7, 2]])]})

    assert "1.5 M" in text
    assert "75.0 %" in text
    assert "most used keys of user (pushes): 7 (2)" in text


def test_the_text_tells_of_gradients_that_were_clipped_or_refused() -> None:
    parts = [report(clipped_rows=7, non_finite=1), report(clipped_rows=5)]

    said = "gradients of user: 12 rows clipped, 1 pushes or rounds refused as nan or inf"
    assert said in table_stats({"user": parts})
    assert "gradients of" not in table_stats({"user": [report()]})


def test_the_text_tells_how_stale_pushes_were_on_all_servers() -> None:
    parts = [report(staleness={"0": 5, "17-32": 1}), report(staleness={"2": 1, "0": 2})]

    assert "staleness of pushes to user (updates: pushes): 0: 7, 2: 1, 17-32: 1" in table_stats(
        {"user": parts}
    )


def test_the_text_tells_what_came_and_went_compressed_on_all_servers() -> None:
    counts = {"messages": 3, "plain_nbytes": 4096, "nbytes": 1024, "rows": 40, "rows_sent": 30}
    counts |= {"skipped": 0, "seconds": 0.25}
    pulled = {**counts, "rows_sent": 40, "nbytes": 2048}
    both = {"worker-server": counts, "pull": pulled}

    text = table_stats({"user": [report(compression=both), report(compression=both), report()]})

    assert (
        "compression of user, pull: 8.0 KiB as 4.0 KiB (-50.0 %) in 6 messages, 0.5 s of servers\n"
        "compression of user, worker-server: 8.0 KiB as 2.0 KiB (-75.0 %) in 6 messages, "
        "0.5 s of servers, 25.0 % of rows left out"
    ) in text
    assert "compression" not in table_stats({"user": [report()]})


def test_a_table_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="no table 'usr'; its tables: user"):
        table_stats({"user": [report()]}, "usr")


def test_before_any_definition_it_says_so() -> None:
    assert table_stats({}) == "no table is defined yet"


def test_a_run_folder_loses_the_reports_of_a_former_job_and_nothing_else(tmp_path: Path) -> None:
    former = {"chaos.json", "chaos.jsonl", "dispatcher0.json", "dispatcher12.json"}
    other = {"chaos.json5", "dispatchers.json", "dispatcher-notes.json", "cluster.json.mine"}
    for name in former | other:
        (tmp_path / name).write_text("{}")

    RunDirectory(tmp_path).close()

    left = {path.name for path in tmp_path.iterdir()}
    assert not left & former
    assert left >= other


def test_a_job_is_found_by_its_folder_or_its_scheduler(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    folder.update(state="starting")
    with pytest.raises(ConfigError, match="only starting"):
        scheduler_of(tmp_path, None)
    folder.update(state="running", scheduler="tcp://127.0.0.1:4000")

    assert scheduler_of(tmp_path, None) == "tcp://127.0.0.1:4000"
    assert scheduler_of(None, "host:9091") == "tcp://host:9091"

    folder.close()
    with pytest.raises(ConfigError, match="has ended"):
        scheduler_of(tmp_path, None)


@pytest.mark.parametrize("command", [["status"], ["table", "stats"]])
def test_no_job_is_one_line_and_exit_code_2(command: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [*command, "--run", str(tmp_path)])

    assert done.exit_code == 2
    assert done.stderr.startswith("pslite: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["status"], ["table", "stats"]])
def test_a_scheduler_that_does_not_answer_is_named(command: list[str]) -> None:
    arguments = [*command, "--scheduler", "127.0.0.1:9", "--timeout", "0.2"]

    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert "scheduler at tcp://127.0.0.1:9 did not answer within 0.2 s" in done.stderr


@pytest.mark.parametrize(
    "command", [["status"], ["table", "stats"], ["ctl", "scale", "--servers", "2"]]
)
def test_a_job_whose_launcher_was_killed_has_ended_without_a_word(
    command: list[str], tmp_path: Path
) -> None:
    leave_behind(tmp_path)

    done = CliRunner().invoke(main, [*command, "--run", str(tmp_path)])

    assert done.exit_code == 2
    assert done.stderr == (
        f"pslite: error: the job in {tmp_path} has ended without a word: its launcher (process "
        f"{os.getpid()}) is gone, as after kill -9\n"
    )


def leave_behind(folder: Path) -> None:
    """A run folder as a launcher leaves it that is killed, and its guard with it."""
    directory = RunDirectory(folder)
    directory.update(state="running", scheduler="tcp://127.0.0.1:9")
    state = json.loads((folder / "cluster.json").read_text())
    directory.close()
    state["process"]["start"] += 1
    (folder / "cluster.json").write_text(json.dumps(state))


def test_an_audit_says_that_the_job_still_runs_or_was_killed(tmp_path: Path) -> None:
    def read(worker: RemoteWorker) -> None:
        for piece in worker.shards("numbers", 100):
            assert piece.stop

    with pslite.local_cluster(1, 1, run_dir=tmp_path) as cluster:
        cluster.run(read)

    def audited() -> tuple[int, str]:
        done = CliRunner().invoke(main, ["audit", str(tmp_path)])
        assert "every record exactly once" in done.stdout
        return done.exit_code, done.stderr

    assert audited() == (0, "")
    directory = RunDirectory(tmp_path)
    assert audited() == (
        0,
        f"pslite: the job in {tmp_path} still runs, so its ledger is not complete\n",
    )
    directory.close()
    assert audited() == (0, "")
    leave_behind(tmp_path)
    code, said = audited()
    assert (code, "has ended without a word" in said) == (0, True)


@pytest.mark.parametrize("servers", ["0", "-1", "1025", "x", "1.5"])
def test_a_number_of_servers_that_cannot_be_is_refused_unasked(servers: str) -> None:
    done = CliRunner().invoke(main, ["ctl", "scale", "--servers", servers])

    assert done.exit_code == 2
    assert "Invalid value for '--servers'" in done.stderr


def test_a_wait_for_moves_has_an_end() -> None:
    done = CliRunner().invoke(main, ["ctl", "scale", "--servers", "2", "--within", "nan"])

    assert done.exit_code == 2
    assert "is no number of seconds above 0" in done.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300"])
def test_a_wait_without_length_or_end_is_refused(seconds: str) -> None:
    done = CliRunner().invoke(main, ["status", "--scheduler", "127.0.0.1:9", "--timeout", seconds])

    assert done.exit_code == 2
    assert "is no number of seconds above 0" in done.stderr
