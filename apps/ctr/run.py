"""Run a training job: in one thread, in threads, or as a worker of a cluster of processes."""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import pslite
from apps.ctr.curve import draw_curve
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.errors import CtrError, DataError
from apps.ctr.job import RunFolder, TrainJob, read_train_job, write_json
from apps.ctr.models import network_class
from apps.ctr.parquet_source import WINDOW_ROWS
from apps.ctr.progress import Progress
from apps.ctr.savedmodel import save_model
from apps.ctr.trainer import TrainResult, train_together, train_worker
from kv.leases.ledger import Ledger
from kv.local import LocalCluster
from kv.protocols import Worker
from pslite import environ
from pslite.config import JobConfig
from pslite.repeating import fix_chance

Say = Callable[[str], None]

SHUFFLED_ROWS = 65_536  # rows within which a shuffle mixes, besides the order of row groups


def run_job(job: TrainJob, cluster: JobConfig, say: Say) -> dict[str, Any]:
    """Train, test, save the model, write the figures; returns what `metrics.json` holds.

    Args:
        cluster: settings of the processes of mode `cluster`.
        say: gets lines for people.
    Raises:
        PsliteError: the data, the settings, or a node of the cluster.
    """
    job.write()
    _warn_of_doubt(job)
    if job.mode == "cluster":
        _run_processes(job, cluster)
    else:
        fix_chance(cluster, rank=0)
        with fixed_torch(job):
            run_here = _run_threads if job.mode == "threads" else _run_in_turn
            run_here(job, say)
    metrics = read_metrics(job.run)
    draw_curve(job.run.intervals, metrics, job.run.curve)
    return metrics


def read_metrics(run: RunFolder) -> dict[str, Any]:
    """What the last run left in `metrics.json`.

    Raises:
        CtrError: nothing.
    """
    import json

    try:
        found: dict[str, Any] = json.loads(run.metrics.read_text(encoding="utf-8"))
    except OSError as error:
        raise CtrError(f"the run left no {run.metrics}: {error.strerror}") from error
    return found


def run_worker(run: RunFolder, say: Say) -> None:
    """Be one worker of a cluster of processes that works on the job in `run`."""
    job = read_train_job(run.path)
    checkpoint = environ.job_from_environ(environ.current()).checkpoint
    if checkpoint.dir:  # a launcher that begins the job again says from which one
        job = replace(job, checkpoint=checkpoint)
    with pslite.connect() as worker:
        data, test = open_datasets(job)
        with fixed_torch(job):
            _work(job, worker, data, test, say)


@contextlib.contextmanager
def fixed_torch(job: TrainJob) -> Iterator[None]:
    """torch with as many threads as the job says and, where it is to repeat, without chance.

    An operation that has no deterministic way raises then.
    """
    torch.set_num_threads(job.conf.train.threads)
    before = torch.are_deterministic_algorithms_enabled()
    if job.is_fixed:
        torch.manual_seed(job.seed)
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def open_datasets(job: TrainJob) -> tuple[Dataset, Dataset | None]:
    """Training and test data of a job, checked to have rows and the same features.

    Raises:
        DataError: a file cannot be used, or the two do not fit together.
    """
    blocks = network_class(job.conf.net.model).blocks
    is_read_again = job.conf.train.epoch > 1 or (job.mode != "cluster" and job.workers > 1)
    window_rows = SHUFFLED_ROWS if job.conf.train.shuffle else WINDOW_ROWS
    # What is no number is found where it does harm, so that samples may be left out.
    source = open_source(job.train, blocks, window_rows=window_rows, finite=False)
    data = Dataset(source, job.conf.train.cache if is_read_again else 0)
    if data.rows == 0 or not any(data.schema.widths().values()):  # the latter: text without lines
        raise DataError(job.train, "has no rows to train on")
    if job.test is None:
        return data, None
    test = Dataset(open_source(job.test, blocks))
    data.schema.check_same(test.schema, str(job.test), str(job.train))
    return data, test


def _warn_of_doubt(job: TrainJob) -> None:
    """Once for all workers: open the data, and say if nobody can tell that it fits together."""
    data, test = open_datasets(job)
    if test is not None:
        doubt = data.schema.doubt(test.schema, str(job.test), str(job.train))
        if doubt is not None:
            print(doubt, file=sys.stderr)


def _run_in_turn(job: TrainJob, say: Say) -> None:
    data, test = open_datasets(job)
    ledger = Ledger(job.run.ledger, secrets.token_hex(8), time.time)
    cluster = LocalCluster(job.workers, job.consistency, job.seed, record=ledger.record)
    workers: list[Worker] = [cluster.worker(rank) for rank in range(job.workers)]
    progress = _progress(job, data, say)
    try:
        result = train_together(
            workers,
            job.conf,
            data,
            test,
            sync=job.sync,
            listener=progress,
            checkpoint=job.checkpoint,
        )
    finally:
        progress.close()
        ledger.close()
    finish(job, data, result)


def _run_threads(job: TrainJob, say: Say) -> None:
    data, test = open_datasets(job)
    nodes = pslite.local_cluster(
        job.servers,
        job.workers,
        job.consistency,
        job.seed,
        run_dir=job.run.path,
        compression=job.compression,
    )
    with nodes as cluster:
        cluster.run(lambda worker: _work(job, worker, data, test, say))


def _run_processes(job: TrainJob, cluster: JobConfig) -> None:
    from pslite.launcher import LaunchOptions, run_local

    command = [sys.executable, "-m", "apps.ctr", "worker", "--run", str(job.run.path)]
    code = run_local(cluster, command, LaunchOptions(run_dir=job.run.path))
    if code:
        raise CtrError(f"the cluster ended with exit code {code}; see what its nodes said above")


def _work(job: TrainJob, worker: Worker, data: Dataset, test: Dataset | None, say: Say) -> None:
    progress = _progress(job, data, say) if worker.rank == 0 else None
    try:
        result = train_worker(
            worker,
            job.conf,
            data,
            test,
            sync=job.sync,
            listener=progress,
            checkpoint=job.checkpoint,
        )
    finally:
        if progress is not None:
            progress.close()
    if result is not None:
        finish(job, data, result, _compression_of(worker))


def _compression_of(worker: Worker) -> dict[str, Any]:
    """What a worker of a cluster has sent compressed, by table and link."""
    encoders = getattr(worker, "encoders", None)
    return {} if encoders is None else encoders.stats()


def _progress(job: TrainJob, data: Dataset, say: Say) -> Progress:
    """Reports of rank 0; how far its pieces lie in the data says how far the job is."""
    total = data.count() * job.conf.train.epoch
    return Progress(job.conf.debug.interval, job.run.intervals, say, total)


def finish(
    job: TrainJob, data: Dataset, result: TrainResult, compression: dict[str, Any] | None = None
) -> None:
    """Save the model and write `metrics.json`."""
    save_model(job.run.model, result.snapshot, job.conf, data.schema, job.seed)
    figures = metrics_of(job, result)
    write_json(job.run.metrics, figures | ({"compression": compression} if compression else {}))


def metrics_of(job: TrainJob, result: TrainResult) -> dict[str, Any]:
    """The final figures: of the run, of training, of the test (None where undefined).

    Where values travelled compressed, `compression` tells what worker 0 has saved by that.
    `seconds` is the training loop of the slowest worker, `step_seconds` a list by rank for each
    part of a step, `test_calibration` the mean prediction over the mean label.
    """
    test = result.test
    remarks = [result.remark, test.remark if test else "no test data"]
    return {
        "mode": job.mode,
        "param_sync": job.consistency.name,
        "servers": job.servers,
        "workers": job.workers,
        "model": job.conf.net.model,
        "seed": job.seed,
        "resumed_from": result.resumed_from,
        "train_samples": result.train_samples,
        "skipped_samples": result.skipped_samples,
        "clipped": {"rows": result.clipped_rows, "steps": result.clipped_steps},
        "staleness": result.staleness,
        "train_logloss": result.train_logloss,
        "seconds": result.seconds,
        "samples_per_second": result.samples_per_second,
        "step_seconds": result.step_seconds,
        "test_rows": test.rows if test else 0,
        "test_auc": test.auc if test else None,
        "test_logloss": test.logloss if test else None,
        "test_calibration": test.calibration if test else None,
        "remark": "; ".join(filter(None, remarks)),
        "warnings": list(job.warnings),
        "embedding_rows": len(result.snapshot.keys),
        "digest": result.digest,
    }
