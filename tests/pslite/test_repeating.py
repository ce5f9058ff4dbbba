"""Runs that repeat: what is refused, what processes get, and records with threads and processes."""

from __future__ import annotations

import hashlib
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kv.consistency.settings import SSP, Async, Consistency, DCAsync, SemiSync, Sync
from kv.errors import SettingError
from kv.optimizers import Adagrad, Adam
from kv.policies import AfterSightings, ByAge
from kv.protocols import Worker
from kv.replay.errors import RecordError
from kv.replay.rules import checking
from kv.spec import TableSpec
from pslite import local_cluster, ordering, repeating
from pslite.config import parse_job
from pslite.growth import Growth
from van.errors import ConfigError, PsliteError

RunJob = Callable[..., subprocess.CompletedProcess[str]]
FIXED = "[run]\ndeterministic = yes\n[cluster]\nworkers = 2\n"
RECORD = "[run]\nrecord = order\n[cluster]\nworkers = 2\nservers = 2\n"
SYNC = "[param_sync]\nmode = sync\n"


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[param_sync]\nmode = semi_sync\nwindow = 1s\n[chaos]\nplan = drop 2%\n",
        FIXED + SYNC,
        "[run]\ndeterministic = yes\n[param_sync]\nmode = dc_async\n",  # one worker
        FIXED.replace("yes\n", "yes\nreplay = order\n") + SYNC,
        FIXED + "replicas = 1\nservers = 2\n" + SYNC,
        FIXED + SYNC + "[checkpoint]\ndir = c\n",
        RECORD + "[param_sync]\nmode = semi_sync\n",
        RECORD + "[param_sync]\nmode = async\nlr_by_staleness = yes\nmax_staleness = 3\n",
    ],
)
def test_a_job_that_can_be_repeated_is_taken(text: str) -> None:
    repeating.check_repeatable(parse_job(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            FIXED,
            r"\[param_sync\] mode: in mode async .* Possible are sync, or one worker; .*record",
        ),
        (FIXED + "[param_sync]\nmode = ssp\n", r"mode ssp .*\(--record DIR\).*\(--replay DIR\)"),
        (FIXED + SYNC + "[chaos]\nplan = drop 2%\n", r"\[chaos\] plan: .*\[run\] deterministic"),
        (FIXED + "on_worker_failure = continue\n" + SYNC, r"on_worker_failure: expected stop"),
        (FIXED + "on_server_failure = restart\n" + SYNC, r"on_server_failure: expected stop"),
        (FIXED + SYNC + "[server]\napp = a:b\n", r"\[server\] app"),
        (FIXED + SYNC + "[checkpoint]\ndir = c\nkind = fuzzy\n", r"\[checkpoint\] kind"),
        (RECORD + "replicas = 1\n", r"\[cluster\] replicas: expected 0"),
        (RECORD + "[checkpoint]\ndir = c\n", r"\[checkpoint\] dir: expected none"),
        (RECORD + "[param_sync]\nmode = semi_sync\nwindow = 1s\n", r"window: .*expected 0s"),
        (RECORD + "[chaos]\nplan = kill worker@3s\n", r"\[chaos\] plan: .*\[run\] record"),
    ],
)
def test_a_job_that_cannot_be_repeated_is_refused_and_says_why(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        repeating.check_repeatable(parse_job(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[run]\nrecord = a\nreplay = b\n", "recorded or replayed, not both"),
        ("[run]\nreplay_limit = 0s\n", "expected above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_they_are_read(
    text: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_job(text)


def table(**settings: Any) -> TableSpec:
    return TableSpec.sparse("t", 2, **settings).resolved("sync", 1)


@pytest.mark.parametrize(
    ("settings", "is_fine_alone", "is_fine_in_order"),
    [
        ({}, True, True),
        ({"mode": "async"}, True, True),
        ({"mode": SSP(2)}, True, True),
        ({"mode": SemiSync(0.5)}, True, True),
        ({"mode": SemiSync(0.5, window=1.0)}, False, False),
        ({"expiry": ByAge(60)}, False, False),
        ({"when_full": "evict", "memory_limit": 1 << 20}, True, True),
        ({"when_full": "spill", "memory_limit": 1 << 20}, True, True),
        ({"admission": AfterSightings(2)}, True, True),
    ],
    ids=str,
)
def test_tables_are_refused_where_neither_rounds_nor_a_record_fix_them(
    settings: dict[str, Any], is_fine_alone: bool, is_fine_in_order: bool
) -> None:
    spec = table(**settings)
    is_in_rounds = settings.get("mode") is None and settings.get("when_full") != "evict"

    for workers, has_order, is_fine in (
        (1, False, is_fine_alone),
        (2, True, is_fine_in_order),
        (2, False, is_fine_alone and is_in_rounds),
    ):
        check = checking(workers, has_order=has_order)
        if is_fine:
            check(spec)
        else:
            with pytest.raises(SettingError, match="table t"):
                check(spec)


def test_what_dispatchers_keep_back_depends_on_timing() -> None:
    merged = table(compression="topk:0.1")
    plain = table(compression={"worker-dispatcher": "topk:0.1", "dispatcher-server": "zstd"})

    checking(2, has_order=False)(merged)
    checking(2, has_order=False, dispatchers=1)(plain)
    with pytest.raises(SettingError, match="t@dispatcher-server = none"):
        checking(2, has_order=False, dispatchers=1)(merged)


def test_a_job_that_is_to_repeat_keeps_its_servers() -> None:
    grows = Growth(parse_job(FIXED + SYNC), False, lambda rank: True, lambda: True)

    with pytest.raises(ConfigError, match=r"cannot be scaled: .*\[run\] deterministic"):
        grows.handle({"do": "scale", "servers": 3})


# -- chance -------------------------------------------------------------------------------------


def test_processes_of_a_job_that_is_to_repeat_have_seeded_hashes_and_one_thread() -> None:
    env = {"PATH": "/bin", "PYTHONHASHSEED": "random", "OMP_NUM_THREADS": "2"}
    fixed = repeating.fixed_environ(parse_job("[run]\nseed = 5\ndeterministic = yes\n"), env)

    assert repeating.fixed_environ(parse_job(""), env) == env
    assert fixed["PYTHONHASHSEED"] == "5"
    assert (fixed["OMP_NUM_THREADS"], fixed["MKL_NUM_THREADS"]) == ("2", "1")


def test_a_worker_draws_the_same_in_each_run_and_others_draw_otherwise() -> None:
    job = parse_job("[run]\nseed = 5\nrecord = r\n")
    before = random.getstate(), np.random.get_state()

    def drawn(rank: int) -> tuple[float, float]:
        repeating.fix_chance(job, rank)
        return random.random(), float(np.random.random())

    try:
        assert drawn(0) == drawn(0) != drawn(1)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def test_a_worker_whose_hashes_are_by_chance_is_refused() -> None:
    job = parse_job(FIXED + SYNC)

    with pytest.raises(ConfigError, match="PYTHONHASHSEED: expected a number"):
        repeating.check_hashes(job, {"PYTHONHASHSEED": "random"})
    repeating.check_hashes(job, {"PYTHONHASHSEED": "7"})
    repeating.check_hashes(parse_job(""), {})


# -- threads ------------------------------------------------------------------------------------

MANY = 60_000  # keys of a request that takes turns in the threads of two servers


def train(worker: Worker) -> list[str]:
    """Small and large requests, with pauses that differ from run to run; what this worker saw."""
    small = worker.sparse_table("small", 3, optimizer=Adam(lr=0.1))
    large = worker.sparse_table("large", 8, optimizer=Adagrad(lr=0.1))
    dense = worker.dense_table("dense", (9000,), optimizer=Adam(lr=0.1))
    rng, pauses, seen = np.random.default_rng(worker.rank), random.Random(), hashlib.sha256()
    for step in range(12):
        keys = rng.integers(0, 30, size=8)
        rows, w = worker.pull_many([(small, keys), dense])
        time.sleep(pauses.random() * 0.004)
        noise = rng.normal(size=rows.shape)
        worker.push_many([(small, keys, rows * 0.3 + noise), (dense, w * 0.1 + noise[0, 0])])
        if step % 3 == 0:  # all of them at about the same time
            many = np.sort(rng.choice(MANY + MANY // 2, MANY, replace=False))
            seen.update(large.pull(many).tobytes())
            big = large.push_pull(many, np.full((MANY, 8), noise[0, 1]))
            seen.update(big.tobytes())
        seen.update(rows.tobytes() + w.tobytes())
        worker.step()
    worker.finish()
    worker.barrier()
    final = [
        large.pull(np.arange(MANY + MANY // 2), create=False),
        small.pull(np.arange(30)),
        dense.pull(),
    ]
    return [seen.hexdigest(), *(hashlib.sha256(v.tobytes()).hexdigest() for v in final)]


@pytest.mark.parametrize("mode", [Async(lr_by_staleness=1), DCAsync(), SSP(1)], ids=str)
def test_servers_with_threads_are_replayed_to_the_same_bits(
    tmp_path: Path, mode: Consistency
) -> None:
    with local_cluster(2, 3, mode, server_threads=3, record=tmp_path) as cluster:
        first = cluster.run(train)

    with local_cluster(2, 3, mode, replay=tmp_path) as cluster:
        assert cluster.run(train) == first


@pytest.mark.parametrize("mode", [Async(), SSP(1)], ids=str)
def test_pieces_of_data_go_to_the_workers_that_had_them(tmp_path: Path, mode: Consistency) -> None:
    def read(worker: Worker) -> list[tuple[int, int]]:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        pieces, pauses = [], random.Random()
        for piece in worker.shards("d", 600, unit=5, epochs=2):
            pieces.append((piece.epoch, piece.start))
            for _ in range(piece.start, piece.stop, 20):
                table.push([1, 2], table.pull([1, 2]) * 0.3 + worker.rank)
                time.sleep(pauses.random() * 0.002)
                worker.step()
        worker.finish()
        worker.barrier()
        return [*pieces, *table.pull([1, 2]).ravel().tolist()]

    with local_cluster(1, 3, mode, record=tmp_path) as cluster:
        first = cluster.run(read)

    with local_cluster(1, 3, mode, replay=tmp_path) as cluster:
        assert cluster.run(read) == first


def test_a_replay_that_does_something_else_ends_and_says_what(tmp_path: Path) -> None:
    def program(worker: Worker, value: float) -> None:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        table.push([1], [[value, 0.0]])
        worker.barrier()

    with local_cluster(1, 2, record=tmp_path) as cluster:
        cluster.run(lambda worker: program(worker, 1.0))

    with (
        pytest.raises(PsliteError, match=r"the push of worker 1 .* is another one than it was"),
        local_cluster(1, 2, replay=tmp_path) as cluster,
    ):
        cluster.run(lambda worker: program(worker, 1.0 + worker.rank))


def test_records_of_another_cluster_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with local_cluster(1, 1, record=tmp_path):
        pass

    with pytest.raises(RecordError, match="workers = 2 where it was 1"):
        local_cluster(1, 2, replay=tmp_path).start()
    with pytest.raises(RecordError, match="mode = ssp where it was async"):
        local_cluster(1, 1, "ssp", replay=tmp_path).start()
    with pytest.raises(RecordError, match="there is one already"):
        local_cluster(1, 1, record=tmp_path).start()
    with pytest.raises(ConfigError, match="replicas"):
        local_cluster(2, 1, replicas=1, record=tmp_path)


def test_the_launcher_looks_at_records_before_it_starts_a_process(tmp_path: Path) -> None:
    with local_cluster(1, 1, record=tmp_path / "r"):
        pass
    replay = f"[run]\nreplay = {tmp_path}/r\n"
    job = repeating.with_record(parse_job(replay))

    assert job.run.replay == str(tmp_path / "r")
    with pytest.raises(ConfigError, match="holds a record"):
        repeating.with_record(parse_job(f"[run]\nrecord = {tmp_path}/r\n"))
    with pytest.raises(ConfigError, match=r"there is no record in .*server-0\.record is missing"):
        repeating.with_record(parse_job(f"[run]\nreplay = {tmp_path}\n"))
    for other, problem in (
        ("[cluster]\nservers = 2\n", "servers = 2 where it was 1"),
        ("deterministic = yes\n", "deterministic = True where it was False"),
        ("seed = 2\n", "seed = 2 where it was 1"),
    ):
        with pytest.raises(RecordError, match=problem):
            repeating.with_record(parse_job(replay + other))
    (tmp_path / "r" / "leases.record").write_bytes(b"PSLREC1\n")
    with pytest.raises(RecordError, match=r"leases\.record: is not complete"):
        repeating.with_record(job)


def test_a_server_started_by_hand_needs_a_rank_to_be_recorded() -> None:
    from postoffice.node import Role
    from pslite.environ import NodeSettings

    settings = NodeSettings(role=Role.SERVER, job=parse_job(RECORD))

    with pytest.raises(ConfigError, match="PSLITE_RANK"):
        ordering.order_of(settings)


def test_what_was_recorded_in_mode_sync_comes_again_without_the_record(tmp_path: Path) -> None:
    with local_cluster(2, 2, Sync(), record=tmp_path) as cluster:
        first = cluster.run(train)

    with local_cluster(2, 2, Sync()) as cluster:
        assert cluster.run(train) == first


# -- processes ----------------------------------------------------------------------------------

PROGRAM = """
    import hashlib, random, sys
    import numpy as np, pslite
    with pslite.connect() as worker:
        emb = worker.sparse_table("emb", 4, optimizer=pslite.Adam(lr=0.1))
        w = worker.dense_table("w", (3,), optimizer=pslite.Adagrad(lr=0.1))
        seen = hashlib.sha256(str(list({"a", "b", "c", "d"})).encode())
        for piece in worker.shards("data", 3000, unit=10):
            for start in range(piece.start, piece.stop, 10):
                keys = np.random.randint(0, 50, size=20)
                rows, v = worker.pull_many([(emb, keys), w])
                seen.update(rows.tobytes())
                grads = rows * float(sys.argv[1]) + np.random.normal(size=rows.shape)
                worker.push_many([(emb, keys, grads), (w, v * 0.1 + random.random())])
                worker.step()
        worker.finish()
        worker.barrier()
        for value in (emb.pull(np.arange(50), create=False), w.pull()):
            seen.update(value.tobytes())
        print("digest", worker.rank, seen.hexdigest())
"""


def digests_of(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert result.returncode == 0
    return sorted(line.split(" ", 2)[2] for line in result.stdout.splitlines() if "digest" in line)


def test_processes_are_replayed_to_the_same_bits(run_job: RunJob, tmp_path: Path) -> None:
    first = run_job(PROGRAM, 2, 2, "--record", "order", args=("0.3",))
    again = run_job(PROGRAM, 2, 2, "--replay", "order", args=("0.3",))

    assert len(digests_of(first)) == 2
    assert digests_of(first) == digests_of(again)
    assert {path.name for path in (tmp_path / "order").iterdir()} == {
        "server-0.record",
        "server-1.record",
        "leases.record",
    }


@pytest.mark.slow
def test_processes_that_do_something_else_end_with_what_was_expected(
    run_job: RunJob, tmp_path: Path
) -> None:
    run_job(PROGRAM, 2, 2, "--record", "order", args=("0.3",))

    other = run_job(PROGRAM, 2, 2, "--replay", "order", args=("0.31",))
    alone = run_job(PROGRAM, 2, 1, "--replay", "order", args=("0.3",))

    assert other.returncode == 2
    assert "the run is not the recorded one: the push of worker" in other.stderr
    assert "is another one than it was" in other.stderr
    assert alone.returncode == 2
    assert "workers = 1 where it was 2" in alone.stderr


@pytest.mark.slow
def test_a_run_that_failed_is_replayed_up_to_its_failure(run_job: RunJob, tmp_path: Path) -> None:
    program = PROGRAM + "        assert worker.rank, 'worker 0 fails'\n"
    first = run_job(program, 2, 2, "--record", "order", args=("0.3",))
    again = run_job(program, 2, 2, "--replay", "order", args=("0.3",))

    for result in (first, again):
        assert result.returncode == 1
        assert "AssertionError: worker 0 fails" in result.stderr + result.stdout
    assert "is not complete" not in again.stderr


@pytest.mark.slow
def test_deterministic_processes_repeat_and_share_data_by_rank(
    run_job: RunJob, tmp_path: Path
) -> None:
    options = ("--set", "run.deterministic=yes", "--set", "param_sync.mode=sync")
    runs = [run_job(PROGRAM, 2, 2, *options, args=("0.3",)) for _ in range(2)]

    assert digests_of(runs[0]) == digests_of(runs[1])
