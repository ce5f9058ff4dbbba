"""What a node's failure means, as a job's settings have it."""

from pathlib import Path

import pytest

from postoffice.node import Role
from pslite.config import parse_job
from pslite.kept import note_place
from pslite.launcher import JOURNAL, with_journal
from pslite.lifecycle import NodeName
from pslite.recovery import Recovery, tolerance_of
from tests.kv.checkpoint.jobs import Job


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


def test_the_last_checkpoint_is_named_wherever_the_program_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server, run = NodeName(Role.SERVER, 1), tmp_path / "run"
    run.mkdir()

    def advice(settings: str = "") -> list[str]:
        job = parse_job(f"[cluster]\nservers = 2\n[checkpoint]\n{settings}")
        return Recovery(job, run).advice(server)

    (text,) = advice()
    assert text.startswith("no checkpoint: [checkpoint] dir is not set")
    assert "replicas = 1 would have kept" in text
    copied = parse_job("[cluster]\nservers = 2\nreplicas = 1\n")
    assert "replicas" not in Recovery(copied, run).advice(server)[0]
    note_place(run, "own")
    assert advice() == ["no checkpoint in own yet, so the job can only begin anew"]
    name = Job("own").save()
    (text,) = advice("dir = kept\n")
    assert f"{name} in own; the job goes on from it where its program calls resume()" in text
    (text,) = advice("dir = ./own/\n")
    assert f"{name} in ./own/; the job goes on from it when it is started with" in text
    Job("kept").save()
    assert len(advice("dir = kept\n")) == 2
    note_place(run, "s33://x")
    assert len(advice("dir = kept\n")) == 2
    assert Recovery(parse_job(""), run).advice(NodeName(Role.WORKER, 0)) == []


def test_servers_are_started_again_where_another_has_their_rows_or_a_checkpoint_may() -> None:
    copied = parse_job("[cluster]\nservers = 2\nreplicas = 1\n")
    frail = parse_job("[cluster]\non_server_failure = restart\n")
    saved = parse_job("[cluster]\non_server_failure = restart\n[checkpoint]\ndir = saved\n")

    assert [tolerance_of(job).server for job in (copied, frail, saved)] == [
        "restart",
        "stop",
        "again",
    ]
