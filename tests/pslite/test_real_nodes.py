"""Clusters of real processes, started as users start them."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.jobs import LIMIT, free_port, node_of, run_here, start_here
from tests.seeds import slowly

RunJob = Callable[..., subprocess.CompletedProcess[str]]
Environment = Callable[..., dict[str, str]]

COUNT = """
    import numpy as np, pslite
    with pslite.connect() as worker:
        table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        keys = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)
        for _ in range(10):
            worker.wait(table.push(keys, np.ones((5, 2))))
        worker.barrier()
        assert (table.pull(keys) == -10 * worker.num_workers).all(), table.pull(keys)
        assert len(table) == 5
        print("rank", worker.rank, "is content")
"""


@pytest.mark.parametrize(
    ("servers", "workers"),
    [(1, 2), *slowly([(3, 1), (2, 2), (4, 4)])],
)
def test_pushes_of_all_workers_add_up_on_any_number_of_servers(
    run_job: RunJob, servers: int, workers: int
) -> None:
    result = run_job(COUNT, servers, workers)

    assert result.returncode == 0
    for rank in range(workers):
        assert f"[worker {rank}] rank {rank} is content" in result.stdout


@pytest.mark.slow
def test_sync_workers_as_processes_equal_one_process_to_the_bit(run_job: RunJob) -> None:
    program = """
        import hashlib, threading
        import numpy as np, pslite
        from kv.local import LocalCluster

        def train(worker):
            adam = pslite.Adam(lr=0.1)
            table = worker.sparse_table("emb", 2, optimizer=adam)
            dense = worker.dense_table("w", (3,), optimizer=adam)
            rng = np.random.default_rng(worker.rank)
            for _ in range(30):
                keys = rng.integers(0, 12, size=rng.integers(0, 9))
                rows, w = worker.pull_many([(table, keys), dense])
                grads = rows * 0.3 + rng.normal(size=rows.shape)
                worker.push_many([(table, keys, grads), (dense, w * 0.1 + 1)])
                worker.step()
            worker.barrier()
            values = worker.pull_many([(table, np.arange(12)), dense], create=False)
            return hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()

        with pslite.connect() as worker:
            print("digest", train(worker))
            if worker.rank == 0:
                local = LocalCluster(2, mode="sync", seed=9, threads=True)
                other = threading.Thread(target=train, args=[local.worker(1)])
                other.start()
                print("digest", train(local.worker(0)))
                other.join()
    """

    result = run_job(program, 2, 2, "--set", "param_sync.mode=sync")

    digests = [line.split()[-1] for line in result.stdout.splitlines() if " digest " in line]
    assert result.returncode == 0
    assert len(digests) == 3
    assert len(set(digests)) == 1


def test_the_users_own_server_code_answers_and_its_errors_arrive(
    run_job: RunJob, tmp_path: Path
) -> None:
    (tmp_path / "my_server.py").write_text(
        textwrap.dedent("""
            import pslite
            from kv.pairs import KVPairs

            def start(office):
                def handle(meta, pairs, server):
                    if meta.cmd == 13:
                        raise ValueError("unlucky")
                    server.response(meta, KVPairs(pairs.keys, pairs.vals * meta.cmd))
                pslite.KVServer(0, office).set_request_handle(handle)
        """)
    )
    program = """
        import numpy as np, pslite
        with pslite.connect() as worker:
            kv = pslite.KVWorker(0, 0, worker.office)
            keys = np.arange(4, dtype=np.uint64)
            print(kv.wait(kv.push_pull(keys, np.arange(4.0), cmd=3)).vals)
            try:
                kv.wait(kv.push(keys, np.arange(4.0), cmd=13))
            except pslite.RemoteError as error:
                print(error)
    """

    result = run_job(program, 2, 1, "--set", "server.app=my_server:start")

    assert result.returncode == 0
    assert "[0. 3. 6. 9.]" in result.stdout
    assert "ValueError: unlucky" in result.stdout


def test_a_server_app_that_cannot_be_loaded_ends_the_job_with_one_message(run_job: RunJob) -> None:
    result = run_job(COUNT, 1, 1, "--set", "server.app=no_such_module:start")

    assert result.returncode != 0
    assert "[server] app" in result.stdout + result.stderr
    assert "no_such_module" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_a_worker_that_raises_ends_the_job_with_its_code_and_last_lines(run_job: RunJob) -> None:
    program = """
        import pslite
        with pslite.connect() as worker:
            if worker.rank == 1:
                raise ValueError("this batch is bad")
            worker.barrier()
    """

    result = run_job(program, 1, 2)

    assert result.returncode == 1
    assert "the last lines of worker 1" in result.stderr
    assert "ValueError: this batch is bad" in result.stderr


# Each worker ends in another way, all of them well: out of the block that closes it, in a process
# that it has forked, without closing, and as the function ends that holds it.
WAYS_TO_END = """
    import os, sys
    import pslite

    def connected():
        worker = pslite.connect()
        worker.sparse_table("t", 1).pull([1])
        return worker

    def by_exit():
        with connected():
            sys.exit(0)

    def by_the_exit_of_a_child():
        with connected():
            pid = os.fork() or sys.exit(0)
            os.waitpid(pid, 0)

    def forgetting_to_close():
        global worker
        worker = connected()

    def in_a_function():
        worker = connected()

    ways = by_exit, by_the_exit_of_a_child, forgetting_to_close, in_a_function
    ways[int(os.environ["PSLITE_RANK"])]()
"""


@pytest.mark.slow
def test_workers_say_goodbye_in_whatever_way_they_end(run_job: RunJob) -> None:
    assert run_job(WAYS_TO_END, 1, 4).returncode == 0


@pytest.mark.slow
def test_a_worker_ends_as_its_program_says(run_job: RunJob) -> None:
    program = """
        import sys
        import pslite
        with pslite.connect() as worker:
            worker.sparse_table("t", 1).pull([1])
            sys.exit(3)
    """

    assert run_job(program, 1, 1).returncode == 3


@pytest.mark.slow
def test_a_failed_push_nobody_waited_for_fails_its_worker(run_job: RunJob) -> None:
    program = """
        import pslite
        worker = pslite.connect()
        table = worker.sparse_table("t", 1)
        table.push([1], [[float("nan")]])
    """

    result = run_job(program, 1, 1)

    assert result.returncode == 1
    assert "worker 0" in result.stderr
    assert "NonFiniteError: table t" in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "text"),
    [("sys:exit", "wants to end the process"), ("os:getpid", "is called with")],
)
def test_a_server_app_that_is_none_is_told_in_a_line(run_job: RunJob, app: str, text: str) -> None:
    result = run_job("import pslite; pslite.connect()", 1, 1, "--set", f"server.app={app}")

    assert result.returncode == 2
    assert text in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_one_program_plays_every_role_as_with_ps_lite(
    tmp_path: Path, environment: Environment
) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(COUNT))
    shared = {
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }
    roles = ["worker", "worker", "server", "scheduler"]
    command = [sys.executable, str(program)]
    nodes = [start_here(tmp_path, command, environment(DMLC_ROLE=role, **shared)) for role in roles]
    outputs = [node.communicate(timeout=LIMIT)[0] for node in nodes]

    assert [node.returncode for node in nodes] == [0] * 4, outputs
    assert sum("is content" in output for output in outputs) == 2


@pytest.mark.parametrize(
    "victim",
    ["scheduler", *slowly(["server", "worker"])],
)
def test_a_killed_node_ends_the_job_and_leaves_no_process(victim: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        textwrap.dedent("""
            import numpy as np, pslite
            with pslite.connect() as worker:
                table = worker.sparse_table("t", 2)
                print("working", flush=True)
                while True:
                    worker.wait(table.push([1], np.ones((1, 2))))
        """)
    )
    (tmp_path / "local.ini").write_text("")
    command = [sys.executable, "-m", "pslite", "local", "local.ini", "--run", "run"]
    command += ["--servers", "1", "--workers", "2", "--", "python", "worker.py"]
    launcher = start_here(tmp_path, command)
    assert launcher.stdout is not None
    working = 0
    while working < 2:
        line = launcher.stdout.readline()
        assert line, "the job ended early"
        working += "working" in line
    family = psutil.Process(launcher.pid).children(recursive=True)

    node_of(launcher.pid, victim).send_signal(signal.SIGKILL)
    rest, _ = launcher.communicate(timeout=LIMIT)

    assert launcher.returncode == 128 + signal.SIGKILL, rest
    assert f"{victim}" in rest
    _, alive = psutil.wait_procs(family, timeout=LIMIT)
    assert not alive


def test_outside_any_cluster_connect_says_what_to_do(tmp_path: Path) -> None:
    result = run_here(tmp_path, [sys.executable, "-c", "import pslite; pslite.connect()"])

    assert result.returncode == 1
    assert "pslite.connect(local=True)" in result.stderr


@pytest.mark.slow
def test_bounded_workers_as_processes_wait_for_the_slowest_and_count_how_stale_they_are(
    run_job: RunJob,
) -> None:
    program = """
        import time
        import numpy as np, pslite

        with pslite.connect() as worker:
            table = worker.sparse_table("t", 1, optimizer=pslite.SGD(lr=1),
                                        initializer=pslite.Zeros())
            for step in range(12 + worker.rank):
                if worker.rank == 0:
                    time.sleep(0.01)  # slower than the other
                mine = float(table.pull([0])[0, 0])
                if worker.rank == 1:  # the other has pushed in each step but the last two
                    assert mine >= step + min(12, step - 1), (step, mine)
                worker.wait(table.push([0], -np.ones((1, 1))))
                worker.step()
            worker.finish()
            worker.barrier()
            assert table.pull([0])[0, 0] == 25
            assert sum(worker.staleness(table).values()) == 25
            print("spec", table.spec.mode)
    """

    result = run_job(
        program, 1, 2, "--set", "param_sync.mode=ssp", "--set", "param_sync.staleness=1"
    )

    assert result.returncode == 0
    assert "[worker 1] spec ssp(staleness=1)" in result.stdout
