"""The van of one process' node: with its keys, where it listens, the network that it is to heed,
and a word about risks.
"""

from __future__ import annotations

import logging

from postoffice.node import Role, node_name
from postoffice.resending import Resend
from pslite.addresses import is_loopback
from pslite.environ import NodeSettings
from pslite.keyring import curve_of
from pslite.simulate.links import Links
from van.config import SecurityConfig, VanConfig
from van.courier import ZmqVan
from van.errors import ConfigError
from van.linked import LinkedVan
from van.van import Van
from van.wires import BITS

log = logging.getLogger(__name__)


MOST_NODES = 1 << 32  # ids above are of peers outside the cluster
_SHARERS = 4  # messages that may have a slow line at once


def make_van(settings: NodeSettings, background: bool) -> Van:
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
    van = ZmqVan(
        settings.job.van,
        background=background,
        curve=curve,
        listen_on=listen_on if listen_on != host else "",
    )
    simulate, name = settings.job.simulate, name_of_line(settings.role, settings.rank)
    return in_network(van, simulate.imposed, name, settings.job.van, simulate.seed)


def in_network(van: Van, links: Links | None, name: str, config: VanConfig, seed: int) -> Van:
    """`van`, or what lets its messages take their time where there is a network to simulate.

    Args:
        van: moves the messages.
        links: of the network; None: messages travel as they do.
        name: of this node's line.
        config: habits of `van`.
        seed: of what is lost.
    """
    return van if links is None else LinkedVan(van, links, name, _name_of_node, config, seed)


def name_of_line(role: Role, rank: int | None) -> str:
    """How a simulated network calls a node; one that is still to get a rank is known by its role.

    >>> name_of_line(Role.WORKER, 3), name_of_line(Role.SCHEDULER, 0)
    ('worker 3', 'scheduler')
    """
    return role.value if role is Role.SCHEDULER or rank is None else f"{role} {rank}"


def _name_of_node(node: int) -> str | None:
    return node_name(node) if node < MOST_NODES else None


def patience(timeout: float, links: Links | None) -> Resend:
    """When messages are sent again: later where a simulated network is slow.

    Args:
        timeout: seconds, as `[van] resend_timeout`.
        links: of the network, if one is simulated.
    """
    usual = Resend(timeout=timeout)
    if links is None:
        return usual
    slow = links.slowest / BITS / _SHARERS
    rate = min(usual.nbytes_per_second, slow) if slow else usual.nbytes_per_second
    return Resend(timeout=timeout + 2 * links.longest, nbytes_per_second=rate)


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
