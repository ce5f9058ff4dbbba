"""What `pslite-ctr train` does: settings, data, run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apps.ctr.inifile import parse_override, suggestion
from apps.ctr.inputs import find_data, prepare_features
from apps.ctr.job import RunFolder, TrainJob
from apps.ctr.modelconf import SECTIONS, load_model_config
from apps.ctr.run import run_job
from apps.ctr.tables import dense_optimizer, embedding_initializer, embedding_optimizer
from feature_extract.schema import IndexKind
from pslite.config import JobConfig, own_sections, read_job
from van.errors import ConfigError


def train_command(
    *,
    conf: Path,
    features: Path | None,
    cluster: Path | None,
    data: Path,
    mode: str,
    servers: int | None,
    workers: int | None,
    sync: bool | None,
    out: Path,
    overrides: Sequence[str],
    min_freq: int,
    index: IndexKind | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train as the options say; returns the figures of `metrics.json`.

    Raises:
        PsliteError, FeatureError: settings, data or cluster.
    """
    model_overrides, cluster_overrides = split_overrides(overrides)
    settings = load_model_config(conf, model_overrides)
    for check in (dense_optimizer, embedding_optimizer, embedding_initializer):
        check(settings)  # before an hour of extraction, not after it
    job_config = cluster_config(cluster, cluster_overrides, servers, workers, sync)
    run = RunFolder(path=out)
    copy_inis(run, {"model.ini": conf, "cluster.ini": cluster})
    found = prepare_features(find_data(data), run, features, min_freq=min_freq, index=index)
    job = TrainJob(
        run=run,
        train=found.train.resolve(),
        test=found.test and found.test.resolve(),
        conf=settings,
        mode=mode,
        servers=job_config.cluster.servers if mode == "cluster" else 1,
        workers=job_config.cluster.workers,
        sync=job_config.param_sync.mode == "sync",
        seed=job_config.run.seed,
    )
    test = "no test data" if job.test is None else f"test {job.test}"
    say(f"mode {mode}, {job.table_mode}, {job.workers} workers, seed {job.seed}")
    say(f"train {job.train}, {test}")
    return run_job(job, job_config, say)


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the model ini and those of the cluster ini, told apart by their section.

    Raises:
        ConfigError: a section of neither.
    """
    known = [*SECTIONS, *own_sections()]
    model: list[str] = []
    cluster: list[str] = []
    for text in overrides:
        section, key, _ = parse_override(text)
        if section not in known:
            problem = f"no section [{section}]{suggestion(section, known)}"
            raise ConfigError(problem, file="--set", section=section, key=key)
        (model if section in SECTIONS else cluster).append(text)
    return model, cluster


def cluster_config(
    path: Path | None,
    overrides: Sequence[str],
    servers: int | None,
    workers: int | None,
    sync: bool | None,
) -> JobConfig:
    """The cluster ini with what the command line says otherwise."""
    mode = None if sync is None else "sync" if sync else "async"
    options = {
        "cluster.servers": servers,
        "cluster.workers": workers,
        "param_sync.mode": mode,
    }
    given = [f"{place}={value}" for place, value in options.items() if value is not None]
    return read_job(path, [*overrides, *given])


def copy_inis(run: RunFolder, files: dict[str, Path | None]) -> None:
    """Keep the ini files as they were.

    Raises:
        ConfigError: the run folder cannot be written.
    """
    try:
        run.conf.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            if path is not None:
                shutil.copyfile(path, run.conf / name)
    except OSError as error:
        raise ConfigError(f"run folder {run.path} cannot be written: {error}") from error
