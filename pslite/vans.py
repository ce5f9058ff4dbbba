"""The van of one process' node: with its keys, where it listens, and a word about risks."""

from __future__ import annotations

import logging

from postoffice.node import Role
from pslite.addresses import is_loopback
from pslite.environ import NodeSettings
from pslite.keyring import curve_of
from van.config import SecurityConfig
from van.courier import ZmqVan
from van.errors import ConfigError

log = logging.getLogger(__name__)


def make_van(settings: NodeSettings, background: bool) -> ZmqVan:
    """A van for this node, not yet bound.

    Args:
        settings: of the node.
        background: whether a thread receives while nobody waits.
    Raises:
        ConfigError: its key is missing or damaged, or it would listen to strangers and must not.
    """
    security, cluster = settings.job.security, settings.job.cluster
    host = cluster.scheduler_host if settings.role is Role.SCHEDULER else cluster.advertised_host
    listen_on = cluster.listening_host(host)
    check_open(security, listen_on)
    curve = curve_of(security, settings.role.value, settings.rank)
    return ZmqVan(
        settings.job.van,
        background=background,
        curve=curve,
        listen_on=listen_on if listen_on != host else "",
    )


def check_open(security: SecurityConfig, host: str) -> None:
    """Warn of, or refuse, listening on `host` for anybody who can reach it.

    Raises:
        ConfigError: `[security] open = no`.
    """
    if security.curve or security.open == "yes" or is_loopback(host):
        return
    risk = (
        f"listens on {host} without keys: whoever reaches it can read and change the model; "
        f"set [security] curve = on (pslite keygen makes keys)"
    )
    if security.open == "no":
        raise ConfigError(f"no node {risk}", section="security", key="open")
    log.warning("this node %s, or open = yes if the network is trusted", risk)
