"""How many processes a machine can run in any useful way."""

from __future__ import annotations

import os

from pslite.config import JobConfig
from van.errors import ConfigError

PROCESSES_PER_CORE = 32


def check_size(job: JobConfig) -> None:
    """Refuse more processes than this machine could run in any useful way.

    Raises:
        ConfigError: too many servers and workers for the number of cores.
    """
    cores = os.cpu_count() or 1
    servers, workers = job.cluster.servers, job.cluster.workers
    if servers + workers > cores * PROCESSES_PER_CORE:
        raise ConfigError(
            f"{servers} servers and {workers} workers are {servers + workers} processes; at most "
            f"{cores * PROCESSES_PER_CORE} are started on the {cores} cores here",
            section="cluster",
        )
