"""What `pslite-ctr train` does: settings, data, run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from apps.ctr.inifile import parse_override, suggestion
from apps.ctr.inputs import extract_features, find_data, keep_description
from apps.ctr.job import RunFolder, TrainJob
from apps.ctr.modelconf import SECTIONS, load_model_config
from apps.ctr.run import run_job
from apps.ctr.tables import dense_optimizer, embedding_initializer, embedding_optimizer
from feature_extract.conf import KNOWN_SECTIONS
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
    model_overrides, cluster_overrides, feature_overrides = split_overrides(overrides)
    settings = load_model_config(conf, model_overrides)
    for check in (dense_optimizer, embedding_optimizer, embedding_initializer):
        check(settings)  # before an hour of extraction, not after it
    job_config = cluster_config(cluster, cluster_overrides, servers, workers, sync)
    run = RunFolder(path=out)
    copy_inis(run, {"model.ini": conf, "cluster.ini": cluster})
    files = find_data(data)
    if not files.final:
        files = extract_features(
            files, run, features, settings=feature_overrides, min_freq=min_freq, index=index
        )
    else:
        keep_description(files.train.parent, run)
    job = TrainJob(
        run=run,
        train=files.train.resolve(),
        test=files.test and files.test.resolve(),
        conf=settings,
        mode=mode,
        servers=0 if mode == "local" else job_config.cluster.servers,
        workers=job_config.cluster.workers,
        sync=job_config.param_sync.mode == "sync",
        seed=job_config.run.seed,
    )
    test = "no test data" if job.test is None else f"test {job.test}"
    say(f"mode {mode}, {job.table_mode}, {job.workers} workers, seed {job.seed}")
    say(f"train {job.train}, {test}")
    return run_job(job, job_config, say)


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Those of the model, the cluster and the feature ini, told apart by their section.

    Raises:
        ConfigError: a section of none of them.
    """
    files: list[Collection[str]] = [SECTIONS, own_sections(), KNOWN_SECTIONS]
    known = [section for sections in files for section in sections]
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for text in overrides:
        section, key, _ = parse_override(text)
        if section not in known:
            problem = f"no section [{section}]{suggestion(section, known)}"
            raise ConfigError(problem, file="--set", section=section, key=key)
        owner = next(i for i, sections in enumerate(files) if section in sections)
        found[owner].append(text)
    return found


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
