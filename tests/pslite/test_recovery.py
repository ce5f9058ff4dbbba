"""What a node's failure means, as a job's settings have it."""

from pathlib import Path

import pytest

from pslite.config import parse_job
from pslite.launcher import JOURNAL, with_journal
from pslite.recovery import tolerance_of


@pytest.mark.parametrize(
    "setting", ["on_worker_failure = continue", "on_server_failure = restart", "replicas = 1"]
)
def test_where_a_failure_does_not_stop_the_job_the_scheduler_is_started_again(
    setting: str, tmp_path: Path
) -> None:
    job = parse_job(f"[cluster]\nservers = 2\n{setting}\n")

    lasting = with_journal(job, tmp_path)

    assert lasting.cluster.journal == str(tmp_path / JOURNAL)
    assert tolerance_of(lasting).scheduler == "restart"


def test_where_any_failure_stops_the_job_the_scheduler_is_not_started_again(
    tmp_path: Path,
) -> None:
    job = parse_job("[cluster]\nservers = 2\n")

    assert with_journal(job, tmp_path) == job
    assert tolerance_of(job).scheduler == "stop"


def test_servers_are_started_again_where_another_has_their_rows_or_a_checkpoint_may() -> None:
    copied = parse_job("[cluster]\nservers = 2\nreplicas = 1\n")
    frail = parse_job("[cluster]\non_server_failure = restart\n")
    saved = parse_job("[cluster]\non_server_failure = restart\n[checkpoint]\ndir = saved\n")

    assert [tolerance_of(job).server for job in (copied, frail, saved)] == [
        "restart",
        "stop",
        "again",
    ]
