"""The local launcher, with stand-ins for scheduler and servers (see doubles.py)."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kv.checkpoint.config import CheckpointConfig
from postoffice.config import ClusterConfig
from pslite.config import JobConfig
from pslite.environ import from_environ
from pslite.guard import GRACE
from pslite.launcher import LaunchOptions, check_size, resolve_command, run_local
from pslite.rundir import RunDirectory, how_ended, read_cluster
from tests.jobs import PROMISED, SLOWNESS
from van.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = [sys.executable, str(Path(__file__).with_name("doubles.py"))]
PATIENCE = 30.0  # seconds for what should take a moment


@dataclass
class Ended:
    """How a job ended, and what was said."""

    code: int
    out: str
    err: str

    def lines(self, node: str) -> list[str]:
        prefix = f"[{node}] "
        return [
            line.removeprefix(prefix) for line in self.out.splitlines() if line.startswith(prefix)
        ]


def launch(
    code: str,
    *,
    servers: int = 1,
    workers: int = 1,
    env: dict[str, str] | None = None,
    start_timeout: float = PATIENCE,
    job: JobConfig | None = None,
    **options: Any,
) -> Ended:
    """Run a job whose workers execute `code`."""
    cluster = ClusterConfig(servers=servers, workers=workers, start_timeout=start_timeout)
    job = job or JobConfig(cluster=cluster)
    out, err = io.StringIO(), io.StringIO()
    given = LaunchOptions(
        env={**os.environ, **(env or {})},
        out=out,
        err=err,
        **{"node_command": DOUBLE, "prepare": False, "finish_timeout": PATIENCE, **options},
    )
    return Ended(run_local(job, [*DOUBLE, code], given), out.getvalue(), err.getvalue())


# -- what the nodes print -----------------------------------------------------------------


def test_every_line_stands_under_role_and_rank() -> None:
    ended = launch("print('hello from', rank)", servers=2, workers=2)

    assert ended.code == 0
    assert ended.lines("worker 0") == ["hello from 0"]
    assert ended.lines("worker 1") == ["hello from 1"]
    assert ended.lines("scheduler")[0].startswith("pslite: scheduler listening on tcp://")
    assert re.search(r"job local done in [\d.]+ s \(2 servers, 2 workers\)", ended.err)


def test_lines_appear_while_the_worker_still_runs() -> None:
    with Launcher("print('ready'); signal.pause()") as job:
        job.read_until("[worker 0] ready")


def test_errors_of_nodes_are_shown_among_their_lines() -> None:
    ended = launch("print('one'); print('two', file=sys.stderr); print('three')")

    assert ended.lines("worker 0") == ["one", "two", "three"]


def test_a_last_line_without_end_is_shown() -> None:
    assert launch("sys.stdout.write('no newline')").lines("worker 0") == ["no newline"]


def test_bytes_that_are_no_text_are_shown_and_logged_unchanged(tmp_path: Path) -> None:
    ended = launch(r"os.write(1, b'\xff\xfe caf\xc3\xa9\n')", log_dir=tmp_path / "logs")

    assert ended.lines("worker 0") == [r"\xff\xfe café"]
    assert (tmp_path / "logs" / "worker-0.log").read_bytes() == b"\xff\xfe caf\xc3\xa9\n"


def test_there_is_one_log_for_each_node(tmp_path: Path) -> None:
    launch("print('x' * rank)", servers=2, workers=2, log_dir=tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "scheduler.log",
        "server-0.log",
        "server-1.log",
        "worker-0.log",
        "worker-1.log",
    ]
    assert (tmp_path / "worker-1.log").read_text() == "x\n"


def test_a_line_of_megabytes_comes_through_whole_in_pieces() -> None:
    ended = launch("print('x' * 3_000_000)")

    assert "".join(ended.lines("worker 0")) == "x" * 3_000_000


class Counter(io.TextIOBase):
    """A stream that only counts."""

    def __init__(self) -> None:
        self.characters = self.lines = 0

    def write(self, text: str) -> int:
        self.characters += len(text)
        self.lines += text.count("\n")
        return len(text)


def test_a_hundred_megabytes_from_two_workers_at_once_get_through(tmp_path: Path) -> None:
    out, code = Counter(), "line = 'y' * 99 + chr(10)\nfor _ in range(500): print(line * 1000)"
    job = JobConfig(cluster=ClusterConfig(workers=2))
    options = LaunchOptions(out=out, err=io.StringIO(), node_command=DOUBLE, prepare=False)

    assert run_local(job, [*DOUBLE, code], options) == 0

    assert out.lines == 2 * 500 * 1001 + 1  # and the scheduler's
    assert out.characters > 100_000_000


# -- how a job ends -----------------------------------------------------------------------


def test_the_first_failure_ends_the_job_with_its_exit_code_and_its_last_lines() -> None:
    code = (
        "print('first'); [print('line', i) for i in range(20)]\nif rank == 1: raise SystemExit(3)\n"
    )

    ended = launch(code + "signal.pause()", servers=2, workers=3)

    assert ended.code == 3
    assert ended.err.count("worker 1: exit code 3") == 1
    assert ended.err.count("    line 19\n") == 1
    assert "first" not in ended.err
    assert "line 10\n" in ended.err


def test_a_node_killed_by_a_signal_gives_128_and_the_signal() -> None:
    ended = launch("os.kill(os.getpid(), signal.SIGSEGV)")

    assert ended.code == 128 + signal.SIGSEGV
    assert "worker 0: killed by SIGSEGV" in ended.err


def test_a_server_that_fails_ends_the_job() -> None:
    dying = "if rank == 1: print('no room'); raise SystemExit(7)"

    ended = launch("signal.pause()", servers=2, env={"DOUBLE_SERVER": dying})

    assert ended.code == 7
    assert "server 1: exit code 7" in ended.err
    assert "    no room\n" in ended.err


def test_a_job_whose_only_rows_are_lost_begins_again_where_checkpoints_are(tmp_path: Path) -> None:
    once = f"import os, pathlib; mark = pathlib.Path({str(tmp_path / 'died')!r})\n"
    once += "if not mark.exists(): mark.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    job = JobConfig(
        cluster=ClusterConfig(workers=2, on_server_failure="restart"),
        checkpoint=CheckpointConfig(dir=str(tmp_path / "kept"), every=60.0),
    )

    ended = launch("print('worker', rank)", job=job, env={"DOUBLE_SERVER_START": once})

    assert ended.code == 0
    assert "server 0: killed by SIGKILL" in ended.err
    assert "begins again from its beginning, as there is no checkpoint of it" in ended.err
    assert "the job began again 1 time" in ended.err
    assert "worker 1" in ended.lines("worker 1")  # maybe twice: it may be quicker than the death


def test_without_checkpoints_a_job_whose_rows_are_lost_ends_and_says_why() -> None:
    job = JobConfig(cluster=ClusterConfig(on_server_failure="restart"))

    ended = launch("signal.pause()", job=job, env={"DOUBLE_SERVER_START": "raise SystemExit(3)"})

    assert ended.code == 3
    assert "no checkpoint: on_server_failure = restart goes on from one, but" in ended.err
    assert "[cluster] replicas = 1" in ended.err


def test_a_server_that_fails_after_the_last_worker_fails_the_job() -> None:
    ended = launch("pass", env={"DOUBLE_SERVER_END": "raise SystemExit(4)"})

    assert ended.code == 4


def test_a_worker_done_early_does_not_end_the_others() -> None:
    code = "if rank == 1:\n    print(sum(range(3_000_000)))\n"

    assert launch(code, workers=2).lines("worker 1") == ["4499998500000"]


def test_a_scheduler_that_dies_at_start_is_reported() -> None:
    dying = "print('address in use'); raise SystemExit(2)"

    ended = launch("pass", env={"DOUBLE_SCHEDULER": dying})

    assert ended.code == 2
    assert "scheduler: exit code 2" in ended.err
    assert "    address in use\n" in ended.err
    assert ended.lines("server 0") == []


def test_a_scheduler_that_ends_without_an_address_is_reported() -> None:
    ended = launch("pass", env={"DOUBLE_SCHEDULER": "raise SystemExit(0)"})

    assert ended.code == 1
    assert "scheduler: ended before it had printed its address" in ended.err


def test_a_silent_scheduler_is_waited_for_no_longer_than_the_ini_says() -> None:
    ended = launch("pass", env={"DOUBLE_SCHEDULER": "signal.pause()"}, start_timeout=0.3)

    assert ended.code == 1
    assert "scheduler: printed no address within [cluster] start_timeout" in ended.err


def test_servers_that_stay_after_the_last_worker_are_ended() -> None:
    ended = launch("pass", env={"DOUBLE_SERVER_END": "signal.pause()"}, finish_timeout=0.3)

    assert ended.code == 1
    assert "still running 0.3 s after the last worker had ended: server 0" in ended.err


def test_a_child_of_a_worker_that_holds_its_output_open_does_not_hold_up_the_job() -> None:
    code = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(child.pid)"
    )

    ended = launch(code)

    assert ended.code == 0
    assert not is_running(int(ended.lines("worker 0")[0]))


# -- before a job starts ------------------------------------------------------------------


def test_the_nodes_get_the_settings_of_the_job(tmp_path: Path) -> None:
    code = "print(dict(os.environ))"

    ended = launch(code, servers=2, workers=2, env={"PSLITE_CONF": "/absent.ini"})

    env = eval(ended.lines("worker 1")[0])
    node = from_environ(env)
    assert (str(node), node.job.cluster.servers, node.job.cluster.workers) == ("worker 1", 2, 2)
    assert node.job.cluster.scheduler_port > 0
    assert env["PYTHONUNBUFFERED"] == "1"


def test_a_leading_python_is_the_python_that_runs_this() -> None:
    assert resolve_command(["python", "a.py"], {}) == [sys.executable, "a.py"]
    assert resolve_command(["python3", "a.py"], {}) == [sys.executable, "a.py"]


def test_a_program_is_looked_up_in_the_path_given(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.write_text("#!/bin/sh\n")
    env = {"PATH": str(tmp_path)}

    with pytest.raises(ConfigError, match="'train' not found, or not executable"):
        resolve_command(["train"], env)
    program.chmod(0o755)
    assert resolve_command(["train", "-x"], env) == [str(program), "-x"]


def test_no_command_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="no worker program; give it after the ini file and --"):
        resolve_command([], {})


def test_a_program_that_cannot_be_run_ends_all_nodes(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/absent/interpreter\n")
    program.chmod(0o755)
    options = LaunchOptions(
        out=io.StringIO(), err=io.StringIO(), node_command=DOUBLE, prepare=False
    )

    with pytest.raises(ConfigError, match=r"worker 0: cannot run .*No such file"):
        run_local(JobConfig(), [str(program)], options)
    assert psutil.Process().children(recursive=True) == []


def test_more_processes_than_make_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 servers and 60000 workers are 60005 processes"):
        check_size(JobConfig(cluster=ClusterConfig(servers=5, workers=60_000)))


# -- cluster.json -------------------------------------------------------------------------


def test_a_running_job_can_be_found_by_its_folder(tmp_path: Path) -> None:
    code = f"print(open({str(tmp_path / 'cluster.json')!r}).read().replace(chr(10), ''))"

    ended = launch(code, servers=2, run_dir=tmp_path)

    state = json.loads(ended.lines("worker 0")[0])
    address = ended.lines("scheduler")[0].rpartition(" ")[2]
    assert state["scheduler"] == address
    assert state["state"] in ("starting", "running")
    assert state["launcher"] == os.getpid()
    assert [(n["role"], n["rank"]) for n in state["nodes"]] == [
        ("scheduler", 0),
        ("server", 0),
        ("server", 1),
        ("worker", 0),
    ]
    assert read_cluster(tmp_path)["state"] == "ended"
    assert read_cluster(tmp_path)["exit_code"] == 0


def test_two_jobs_cannot_have_one_folder(tmp_path: Path) -> None:
    with Launcher("print('ready'); signal.pause()", run_dir=tmp_path) as job:
        job.read_until("[worker 0] ready")

        with pytest.raises(ConfigError, match="another job is running in"):
            launch("pass", run_dir=tmp_path)

        other = launch("pass", run_dir=tmp_path, needs_run_dir=False)
        assert other.code == 0
        assert "this job has no cluster.json: another job is running in" in other.err

    assert launch("pass", run_dir=tmp_path).code == 0


def test_a_job_whose_launcher_was_killed_counts_as_ended(tmp_path: Path) -> None:
    with Launcher("print('ready'); signal.pause()", run_dir=tmp_path) as job:
        job.read_until("[worker 0] ready")
        before = read_cluster(tmp_path)

        job.process.kill()
        job.process.wait(timeout=PATIENCE)

        assert before["state"] in ("starting", "running")
        assert len(before["nodes"]) >= 3
        after = read_cluster(tmp_path)
        how = f"its launcher (process {job.process.pid}) is gone"
        assert how in after["lost"]
        assert after == {**before, "state": "ended", "nodes": [], "lost": after["lost"]}
        assert how in how_ended(tmp_path, after)
        until(lambda: json.loads((tmp_path / "cluster.json").read_text()) == after)  # its guard's


def test_a_job_that_could_not_begin_has_ended_and_not_without_a_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot run"):
        launch("pass", run_dir=tmp_path, node_command=["/dev/null"])

    state = read_cluster(tmp_path)
    assert state["state"] == "ended"
    assert "lost" not in state


def test_the_id_of_a_killed_launcher_may_be_another_process_by_now(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)  # holds the lock, as a child that was forked would
    path = tmp_path / "cluster.json"
    state = json.loads(path.read_text())
    assert read_cluster(tmp_path)["state"] == "starting"

    other = {**state["process"], "start": 1}
    path.write_text(json.dumps({**state, "process": other}))
    assert "without a word" in read_cluster(tmp_path)["lost"]
    path.write_text(json.dumps({**state, "process": {**other, "host": "elsewhere"}}))
    assert read_cluster(tmp_path)["state"] == "starting"
    directory.close()


def until(done: Callable[[], bool]) -> None:
    """Return when it is so."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- signals and sudden death -------------------------------------------------------------


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Launcher:
    """A launcher in a process of its own; leaving it ends the job by SIGTERM."""

    def __init__(
        self,
        code: str,
        *,
        servers: int = 2,
        workers: int = 2,
        run_dir: Path | None = None,
        before: Sequence[str] = (),
        grace: float = GRACE,
    ) -> None:
        program = (
            "from pathlib import Path; from postoffice.config import ClusterConfig\n"
            "from pslite.cli_options import leave; from pslite.config import JobConfig\n"
            "from pslite.launcher import LaunchOptions, run_local\n"
            f"job = JobConfig(cluster=ClusterConfig(servers={servers}, workers={workers}))\n"
            f"run_dir = {str(run_dir)!r}\n"
            f"options = LaunchOptions(node_command={DOUBLE!r}, prepare=False, grace={grace},\n"
            "    run_dir=None if run_dir == 'None' else Path(run_dir))\n"
            f"leave(run_local(job, {[*DOUBLE, code]!r}, options))"
        )
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", program],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.seen: list[str] = []

    def read_until(self, line: str) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.seen.append(text.rstrip("\n"))
            if self.seen[-1] == line:
                return
        pytest.fail(f"{line!r} did not appear among {self.seen}")

    def pids(self, word: str = "pid") -> list[psutil.Process]:
        """The processes that workers named by lines `pid N`."""
        found = [line.split(f"] {word} ")[1] for line in self.seen if f"] {word} " in line]
        return [psutil.Process(int(pid)) for pid in found]

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=PATIENCE)


STUBBORN = (  # heeds no SIGTERM and has a child in a session of its own
    "import subprocess\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP INT; sleep 1000 & wait'],"
    " start_new_session=True)\n"
    "print('pid', child.pid)\n"
    "print('ready')\n"
    "while True: signal.pause()"
)


@pytest.mark.parametrize(
    ("signum", "grace"), [(signal.SIGINT, GRACE), (signal.SIGTERM, 0.3), (signal.SIGHUP, 0.3)]
)
def test_a_signal_to_the_launcher_ends_every_process_within_five_seconds(
    signum: signal.Signals, grace: float
) -> None:
    with Launcher(STUBBORN, workers=1, grace=grace) as job:
        job.read_until("[worker 0] ready")
        family = job.family() + job.pids()
        begun = time.monotonic()

        job.process.send_signal(signum)
        code = job.process.wait(PATIENCE)

        assert code == 128 + signum
        assert time.monotonic() - begun < PROMISED * SLOWNESS
        assert [process for process in family if is_running(process.pid)] == []
        assert f"the launcher got {signum.name}" in (job.process.stdout or io.StringIO()).read()


def test_a_second_signal_kills_at_once() -> None:
    with Launcher(STUBBORN, workers=1, grace=2 * PATIENCE) as job:
        job.read_until("[worker 0] ready")

        job.process.send_signal(signal.SIGINT)
        job.process.send_signal(signal.SIGTERM)

        assert job.process.wait(PATIENCE) in (130, 143)


def test_a_hangup_that_was_ignored_from_the_start_stays_ignored() -> None:
    with Launcher("print('ready'); sys.stdout.flush(); signal.pause()", before=["nohup"]) as job:
        job.read_until("[worker 0] ready")

        job.process.send_signal(signal.SIGHUP)
        job.process.send_signal(signal.SIGTERM)

        assert job.process.wait(PATIENCE) == 143


def test_no_process_outlives_a_killed_launcher() -> None:
    with Launcher(STUBBORN, workers=1) as job:
        job.read_until("[worker 0] ready")
        family = job.family() + job.pids()
        assert len(family) >= 6  # guard, scheduler, two servers, a worker and its children

        job.process.kill()

        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert [process for process in alive if is_running(process.pid)] == []


@pytest.mark.parametrize("hook", ["DOUBLE_SCHEDULER", "DOUBLE_SERVER"])
def test_no_process_outlives_a_launcher_killed_between_two_starts(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_OF", str(tmp_path))
    monkeypatch.setenv(hook, "import os; os.kill(os.getppid(), signal.SIGKILL); signal.pause()")

    with Launcher("signal.pause()", servers=8, workers=8) as job:
        assert job.process.wait(PATIENCE) == -signal.SIGKILL

    started = [process for process in psutil.process_iter() if is_of(process, tmp_path)]
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    assert [process for process in alive if is_running(process.pid)] == []


def is_of(process: psutil.Process, test: Path) -> bool:
    """Other tests may run at the same time."""
    try:
        return process.environ().get("DOUBLE_OF") == str(test)
    except psutil.Error:
        return False


def test_a_reader_who_pauses_does_not_keep_a_signal_from_ending_the_job() -> None:
    with Launcher("print('ready')\nwhile True: print('x' * 10_000)") as job:
        job.read_until("[worker 0] ready")
        family = job.family()

        job.process.send_signal(signal.SIGTERM)  # and nobody reads the flood

        assert job.process.wait(PATIENCE) == 143
        assert [process for process in family if is_running(process.pid)] == []


def test_a_reader_that_goes_away_ends_the_job() -> None:
    with Launcher("print('ready')\nwhile True: print('more')") as job:
        job.read_until("[worker 0] ready")
        family = job.family()
        assert job.process.stdout is not None

        job.process.stdout.close()

        assert job.process.wait(PATIENCE) == 128 + signal.SIGPIPE
        assert [process for process in family if is_running(process.pid)] == []
        job.process.stdout = None
