"""What follows when a server of a local job fails, and from which checkpoint the job may go on.

replicas = 1                    another server has its rows: its process is started again, empty
replicas = 0, restart           the rows are lost, so the whole job begins again from the last
                                checkpoint
replicas = 0, stop              the job ends, and says which checkpoint is the last
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from kv.checkpoint import last_good
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.errors import CheckpointError
from postoffice.errors import JournalError
from postoffice.etcd import Etcd, forget
from postoffice.node import Role
from pslite.config import JobConfig
from pslite.kept import places_of, same_place
from pslite.lifecycle import NodeName, Tolerance

log = logging.getLogger(__name__)

_LESS_FRAIL = "[cluster] replicas = 1 would have kept its rows on another server"


def tolerance_of(job: JobConfig) -> Tolerance:
    """What a node's failure means in `job`."""
    cluster = job.cluster
    if cluster.replicas:
        server = "restart"
    elif cluster.on_server_failure == "restart" and job.checkpoint.dir:
        server = "again"
    else:
        server = "stop"
    return Tolerance(
        worker=cluster.on_worker_failure,
        server=server,
        dispatcher=cluster.on_dispatcher_failure,
        scheduler="restart" if cluster.journal else "stop",  # else it would know nobody
        restarts=cluster.max_restarts,
    )


class Recovery:
    """The checkpoints of one job as its launcher sees them.

    Args:
        job: with its settings; a checkpoint that lies there already is a former job's.
        run: its folder, where servers note the places that its program has chosen.
    """

    def __init__(self, job: JobConfig, run: Path | None = None) -> None:
        self._job, self._run = job, run
        needs_former = tolerance_of(job).server == "again" and job.checkpoint.resume != "auto"
        self._former = _last_good(job.checkpoint) if needs_former else None

    def job_again(self) -> tuple[JobConfig, str]:
        """The job as it begins again, and the checkpoint that it goes on from in words.

        Without a checkpoint of its own it begins as it did at first. A journal must not remember
        nodes that were ended.
        """
        job, config = self._job, self._job.checkpoint
        found = _last_good(config)
        if job.cluster.journal:
            Path(job.cluster.journal).unlink(missing_ok=True)
        if job.cluster.etcd:  # where a standby may read it before the job's own scheduler is there
            try:
                forget(Etcd(job.cluster.etcd), job.run.name)
            except JournalError as error:
                log.warning("what the nodes that were ended kept is not removed: %s", error)
        if found is None or found == self._former:
            return job, f"from its beginning, as there is no checkpoint of it in {config.dir} yet"
        again = replace(job, checkpoint=replace(config, resume=found))
        return again, f"from checkpoint {found} in {config.dir}"

    def advice(self, node: NodeName | None) -> list[str]:
        """What to say when the failure of `node` has ended the job; nothing if it is no server."""
        if node is None or node.role != Role.SERVER:
            return []
        if self._job.run.record or self._job.run.replay:
            return []  # such a job has no checkpoints
        places = self._places()
        if not places:
            return [self._without_place()]
        found, told = [], []
        for url in places:
            try:
                name = last_good(url)
            except CheckpointError as error:
                told.append(f"the last checkpoint is not known: {error}")
                continue
            if name is not None:
                found.append(self._going_on(url, name))
            else:
                told.append(f"no checkpoint in {url} yet, so the job can only begin anew")
        return found or told

    def _places(self) -> list[str]:
        """Where the job keeps checkpoints, by its settings and by its program's own doing."""
        config, noted = self._job.checkpoint, {} if self._run is None else places_of(self._run)
        ours = {same_place(config.dir): config.dir} if config.dir else {}
        return list((noted | ours).values())

    def _going_on(self, url: str, name: str) -> str:
        config = self._job.checkpoint
        text = f"the last good checkpoint is {name} in {url}"
        if config.dir and same_place(config.dir) == same_place(url):
            how = f"when it is started with [checkpoint] resume = {name}, or auto"
        else:
            how = "where its program calls resume()"
        return f"{text}; the job goes on from it {how}"

    def _without_place(self) -> str:
        wanted = self._job.cluster.on_server_failure == "restart"
        why = "on_server_failure = restart goes on from one, but " if wanted else ""
        return (
            f"no checkpoint: {why}[checkpoint] dir is not set; with it and every the job could go "
            f"on{self._less_frail()}"
        )

    def _less_frail(self) -> str:
        return "" if self._job.cluster.replicas else f", and {_LESS_FRAIL}"


def _last_good(config: CheckpointConfig) -> str | None:
    """As `last_good`; a place that cannot be reached has none."""
    try:
        return last_good(config.dir)
    except CheckpointError:
        return None
