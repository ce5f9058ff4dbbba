"""`bench/sync_share.py`: what it counts, that it runs, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from sync_share import ring_bytes  # noqa: E402  (after the path)
from sync_share_net import SKIPPED  # noqa: E402
from sync_share_report import Share, draw, share_of, table, verdict  # noqa: E402
from sync_share_work import Settings  # noqa: E402

Environment = Callable[..., dict[str, str]]
SCRIPT = str(ROOT / "bench" / "sync_share.py")
LIMIT = 400.0
FOUND = {
    "all-reduce": {512: Share(0.46, 2, 1e6, 2e6), 1024: Share(0.64, 3, 2e6, 2e6)},
    "servers, sync": {1024: Share(0.2, 2, 1e6, 1e6)},
    "servers, async ahead": {1024: Share(0.05, 2, 1e6, 1e6), 2048: Share(0.16, 2, 1e6, 1e6)},
}


def test_the_share_is_that_of_all_workers_time() -> None:
    lines = [
        {"computed": 4.0, "seconds": 5.0, "steps": 2, "sent": 10, "received": 30},
        {"computed": 4.0, "seconds": 11.0, "steps": 2, "sent": 10, "received": 10},
    ]

    assert share_of(lines) == Share(share=0.5, seconds=4.0, sent=5.0, received=10.0)


def test_the_report_says_what_became_of_the_claim(tmp_path: Path) -> None:
    lines = table(FOUND).splitlines()

    assert lines[2:] == [
        "| 512 | 46% (3.0 MB) |  |  |",
        "| 1024 | 64% (4.0 MB) | 20% (2.0 MB) | 5% (2.0 MB) |",
        "| 2048 |  |  | 16% (2.0 MB) |",
    ]
    ends = [line.rpartition(": ")[2] for line in verdict(FOUND).splitlines()]
    assert ends == ["reached.", "not reached.", "reached."]
    draw(FOUND, tmp_path / "share.png", "shares")
    assert (tmp_path / "share.png").read_bytes().startswith(b"\x89PNG")


def test_a_ring_sends_all_but_its_part_twice() -> None:
    assert ring_bytes(rows=10, dim=3, workers=4) == 2 * 3 / 4 * 10 * 3 * 4


def test_all_ways_train_on_the_same_rows() -> None:
    settings = Settings((8,), 500, 16, 4, 1.1, 0.1, steps=3, warm=1, workers=2)

    ours, again, others = (
        Settings(**{**vars(settings), "rank": rank}).keys() for rank in (0, 0, 1)
    )

    assert len(ours) == 4
    for one, other in zip(ours, again, strict=True):
        np.testing.assert_array_equal(one, other)
        assert 0 < one.size <= 64
        assert (np.diff(one.astype(np.int64)) > 0).all()
    assert not np.array_equal(ours[0], others[0])


def test_where_namespaces_are_refused_the_refusal_is_shown(
    tmp_path: Path, environment: Environment
) -> None:
    for tool, text in (("unshare", "echo unshare failed: not permitted >&2; exit 1"), ("ip", ""),
                       ("tc", "")):  # fmt: skip
        (tmp_path / tool).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / tool).chmod(0o755)

    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick"],
        env=environment(PATH=f"{tmp_path}:/bin"),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert done.returncode == SKIPPED
    assert "skipped: no namespaces to be had: `unshare" in done.stderr
    assert "says: unshare failed: not permitted" in done.stderr


MARK = "PSLITE_TEST_OF_SYNC_SHARE"


def marked(mark: str) -> list[psutil.Process]:
    """Processes of one run that are there now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


@pytest.mark.slow
def test_a_quick_run_measures_all_three_and_leaves_nothing(
    tmp_path: Path, environment: Environment
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- sync_share: begin -->\n<!-- sync_share: end -->\nafter\n")

    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--markdown", str(page)],
        env=environment(**{MARK: str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    if done.returncode == SKIPPED:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows] == ["dimension", "---:", "16", "64"]
    assert all("MB" in cell for row in rows[2:] for cell in row[2:5])
    assert not marked(str(tmp_path))
    assert not list(Path("/run/netns").glob("worker*"))


@pytest.mark.slow
def test_after_a_kill_nothing_is_left(tmp_path: Path, environment: Environment) -> None:
    command, mark = [sys.executable, SCRIPT, "--quick", "--rate", "50"], str(tmp_path)
    env = environment(**{MARK: mark})
    bench = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert bench.stderr is not None
    begun = time.monotonic()
    while len(marked(mark)) < 4 and bench.poll() is None:  # with workers
        assert time.monotonic() - begun < LIMIT
        time.sleep(0.1)
    if bench.poll() == SKIPPED:
        pytest.skip(bench.stderr.read())

    bench.kill()
    bench.wait()

    while marked(mark):
        assert time.monotonic() - begun < LIMIT, marked(mark)
        time.sleep(0.1)
    bench.stderr.close()
    assert not list(Path("/run/netns").glob("worker*"))
