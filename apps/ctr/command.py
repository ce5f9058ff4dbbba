"""What `pslite-ctr train` does: settings, data, run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apps.ctr.errors import DataError, ModelError
from apps.ctr.inifile import parse_override, suggestion
from apps.ctr.inputs import DataFiles, extract_features, find_data, keep_description
from apps.ctr.job import RunFolder, TrainJob
from apps.ctr.learner import build_network
from apps.ctr.modelconf import SECTIONS, ModelConfig, load_model_config
from apps.ctr.models import network_class
from apps.ctr.replacing import staging, start_afresh
from apps.ctr.run import open_datasets, run_job
from apps.ctr.tables import dense_optimizer, embedding_initializer, embedding_optimizer
from feature_extract.conf import KNOWN_SECTIONS
from feature_extract.schema import IndexKind
from kv.consistency.settings import Sync
from kv.pipelining import problem_of
from pslite.config import JobConfig, RunConfig, own_sections, read_job
from pslite.launcher import check_size
from pslite.repeating import check_repeatable, with_record
from van.errors import ConfigError

Origin = Callable[..., str]
logger = logging.getLogger(__name__)


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
    record: Path | None = None,
    replay: Path | None = None,
    min_freq: int,
    index: IndexKind | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train as the options say; returns the figures of `metrics.json`.

    What can be wrong with settings or data is found before anything in the run folder changes.

    Raises:
        PsliteError, FeatureError: settings, data or cluster.
    """
    warnings: list[str] = []

    def warn(text: str) -> None:
        logger.warning("%s", text)
        warnings.append(text)

    model_overrides, cluster_overrides, feature_overrides = split_overrides(overrides)
    settings = load_model_config(conf, model_overrides, warn)
    overridden = {f"{section}.{key}" for section, key, _ in map(parse_override, model_overrides)}

    def origin(*places: str) -> str:
        return "--set" if overridden & set(places) else str(conf)

    check_model(settings, origin)
    records = {"run.record": record, "run.replay": replay}
    cluster_overrides += [f"{key}={folder}" for key, folder in records.items() if folder]
    job_config = cluster_config(cluster, cluster_overrides, servers, workers, sync)
    job_config = named_after(out, job_config)
    job_config.checkpoint.require_times()
    for key in job_config.param_sync.unused:
        warn(f"[param_sync] {key} is set, but mode {job_config.param_sync.mode} does not use it")
    check_pipeline(settings, job_config, origin, mode)
    if mode == "local" and job_config.compression.said:
        warn("[compression] is set, but in mode local nothing is sent")
    if mode == "cluster":
        check_size(job_config)
        check_failures(job_config, cluster)
    check_fixed(job_config, settings, mode, origin)
    run = RunFolder(path=out)
    inis = read_inis({"model.ini": conf, "cluster.ini": cluster})
    files = find_data(data)
    check_feature_overrides(files, feature_overrides)
    with staging(run) as scratch:
        found = files
        if not files.final:
            how: dict[str, Any] = {"min_freq": min_freq, "index": index}
            found, doubts = extract_features(
                files, scratch, features, settings=feature_overrides, **how
            )
            for doubt in doubts:
                warn(doubt)
        job = TrainJob(
            run=run,
            train=found.train.resolve(),
            test=found.test and found.test.resolve(),
            conf=settings,
            mode=mode,
            servers=0 if mode == "local" else job_config.cluster.servers,
            workers=job_config.cluster.workers,
            consistency=job_config.param_sync.consistency,
            seed=job_config.run.seed,
            checkpoint=job_config.checkpoint,
            is_fixed=job_config.run.is_fixed,
            compression=job_config.compression,
            warnings=tuple(warnings),
        )
        check_network(job, origin)
        start_afresh(run, scratch, files.train, inis)
    if not files.final:
        job = replace(
            job,
            train=run.features.resolve() / job.train.name,
            test=job.test and run.features.resolve() / job.test.name,
        )
    keep_description(job.train.parent, run)
    test = "no test data" if job.test is None else f"test {job.test}"
    say(f"mode {mode}, {job.consistency}, {job.workers} workers, seed {job.seed}")
    say(f"train {job.train}, {test}")
    return run_job(job, job_config, say)


def check_model(settings: ModelConfig, origin: Origin) -> None:
    """Find out what is wrong with a model ini before an hour of extraction, not after it.

    Args:
        origin: what gave the settings `section.key`, for messages.
    Raises:
        ConfigError: an unknown network, or settings that no table takes.
    """
    try:
        network_class(settings.net.model)
        for check in (dense_optimizer, embedding_optimizer, embedding_initializer):
            check(settings)
    except ModelError as error:
        raise ConfigError(str(error), file=origin("net.model")) from error
    except ConfigError as error:
        where = {"section": error.section, "key": error.key}
        file = error.file or origin(f"{error.section}.{error.key}")
        raise ConfigError(error.problem, file=file, **where) from error


def check_pipeline(settings: ModelConfig, job: JobConfig, origin: Origin, mode: str) -> None:
    """Refuse a pipeline that is deeper than the consistency mode can do with.

    Raises:
        ConfigError: gradients would be staler by it than servers take, or than they can compensate.
    """
    sync = job.param_sync
    bound = sync.max_staleness if mode == "cluster" else None
    problem = problem_of(settings.train.pipeline_depth, sync.consistency, bound)
    if problem:
        where = {"section": "train", "key": "pipeline_depth"}
        raise ConfigError(problem, file=origin("train.pipeline_depth"), **where)


def check_failures(job: JobConfig, file: Path | None) -> None:
    """Refuse to go on without a worker where the others cannot.

    Raises:
        ConfigError: `sync`, and a worker's death would not stop the job; or another mode that
            counts steps, and a worker would be started again.
    """
    wanted, mode = job.cluster.on_worker_failure, job.param_sync.consistency
    if wanted == "stop" or not mode.counts_steps:
        return
    if isinstance(mode, Sync):
        problem = (
            f"{wanted} needs async mode: in sync each step needs every worker's part of its batch, "
            f"and a worker that is started again has lost count of the steps; use stop"
        )
    elif wanted == "restart":
        problem = (
            f"restart needs async or dc_async mode: {mode.name} counts steps, and a worker that is "
            f"started again has lost count of them; use continue or stop"
        )
    else:
        return
    where = {"section": "cluster", "key": "on_worker_failure"}
    raise ConfigError(problem, file=None if file is None else str(file), **where)


def check_fixed(job: JobConfig, settings: ModelConfig, mode: str, origin: Origin) -> None:
    """Refuse what a run that is to repeat cannot have, and records that do not fit it.

    Raises:
        ConfigError, RecordError: says what, and why.
    """
    run = job.run
    if not run.is_fixed:
        return
    if (run.record or run.replay) and mode != "cluster":
        key = "record" if run.record else "replay"
        problem = f"mode {mode} has no servers in processes of their own; use --mode cluster"
        raise ConfigError(problem, section="run", key=key)
    if settings.train.threads != 1:
        problem = "expected 1: a run that is to repeat has one thread, since more change last bits"
        where = {"section": "train", "key": "threads"}
        raise ConfigError(problem, file=origin("train.threads"), **where)
    if mode == "local":
        return  # one thread takes all steps in turn
    check_repeatable(job)
    with_record(job)
    if mode == "threads" and job.cluster.workers > 1 and ":" in settings.net.model:
        problem = (
            "a network of one's own may draw random numbers, for which threads of one process "
            "would take turns by chance; use --mode cluster for a run that is to repeat"
        )
        raise ConfigError(problem, file=origin("net.model"), section="net", key="model")


def check_network(job: TrainJob, origin: Origin) -> None:
    """Open the data and build the network once.

    Raises:
        DataError: a file cannot be used, or training and test data differ.
        ConfigError: the network does not fit its layers, its loss or the data.
    """
    data, _ = open_datasets(job)
    try:
        build_network(job.conf, data.schema)
    except ModelError as error:
        file = origin("net.layers", "net.model", "loss.loss")
        raise ConfigError(str(error), file=file) from error


def check_feature_overrides(files: DataFiles, overrides: Sequence[str]) -> None:
    """Refuse overrides that nothing would read.

    Raises:
        DataError: overrides of a feature ini where features need no extraction.
    """
    if files.final and overrides:
        problem = f"holds final features; --set {overrides[0]} is for the extraction of samples"
        raise DataError(files.train, problem)


def named_after(out: Path, job: JobConfig) -> JobConfig:
    """The job under the name of its run folder, unless the cluster ini names it."""
    name = " ".join(out.resolve().name.split()).lstrip("#; ")
    if job.run.name != RunConfig().name or not name:
        return job
    return replace(job, run=replace(job.run, name=name))


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


def read_inis(files: dict[str, Path | None]) -> dict[str, bytes]:
    """The ini files as they are.

    Raises:
        ConfigError: one cannot be read.
    """
    try:
        return {name: path.read_bytes() for name, path in files.items() if path is not None}
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(error.filename)) from error
