"""Which of this machine's addresses others can reach it by."""

from __future__ import annotations

import ipaddress
import socket
import struct

from van.errors import ConfigError

SIOCGIFADDR = 0x8915  # Linux, netdevice(7): the IPv4 address of an interface


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine to itself only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_towards(host: str) -> str:
    """The address from which packets to `host` leave; none is sent.

    Raises:
        ConfigError: `host` is unknown or no route leads there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        problem = f"no way to the scheduler's host {host}: {error.strerror}"
        raise ConfigError(problem, key="DMLC_PS_ROOT_URI") from None


def address_of_interface(name: str) -> str:
    """The IPv4 address of the network interface `name` (Linux).

    Raises:
        ConfigError: there is no such interface, or it has no IPv4 address.
    """
    import fcntl  # not on every system

    known = ", ".join(interface for _, interface in socket.if_nameindex())
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError as error:
            problem = f"no IPv4 address on interface {name!r}: {error.strerror}; there are {known}"
            raise ConfigError(problem, key="DMLC_INTERFACE") from None
    return socket.inet_ntoa(answer[20:24])
