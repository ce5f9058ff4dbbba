"""The command `pslite`. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import click

from pslite import __version__
from pslite.cli_bench import bench
from pslite.cli_checkpoint import checkpoint
from pslite.cli_ctl import ctl
from pslite.cli_jobs import config, local, node
from pslite.cli_keygen import keygen
from pslite.cli_looking import audit, metrics, status, table
from pslite.cli_simulate import simulate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pslite")
def main() -> None:
    """A parameter server for sparse models.

    \b
    Try it on this machine:
      pslite local conf/local.ini --servers 2 --workers 2 -- python examples/hello_ps.py
    """


for command in (
    local, node, config, bench, status, table, metrics, checkpoint, simulate, keygen, audit, ctl,
):  # fmt: skip
    main.add_command(command)
