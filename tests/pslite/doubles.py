"""Stand-ins for the nodes of a cluster, for tests of the launcher alone.

    python doubles.py            a scheduler or server, as DMLC_ROLE says
    python doubles.py CODE       a worker that joins, runs CODE and leaves

Real processes over a real socket, with the habits that the launcher relies on: the scheduler prints
its address, and scheduler and servers end when the last worker's connection has closed. No pslite
is imported, so that a node is up in some twenty milliseconds.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

READY = "pslite: scheduler listening on tcp://127.0.0.1:{}"


def scheduler() -> None:
    hook("DOUBLE_SCHEDULER")
    workers = int(os.environ["DMLC_NUM_WORKER"])
    nodes = workers + int(os.environ["DMLC_NUM_SERVER"])
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        print(READY.format(listener.getsockname()[1]))
        joined = [listener.accept()[0] for _ in range(nodes)]
        of_workers = [peer for peer in joined if peer.recv(1) == b"w"]
        for peer in of_workers:
            peer.sendall(b"!")  # all are there
        for peer in of_workers:
            peer.recv(1)  # until it closes
        for peer in joined:
            peer.close()


def join() -> socket.socket:
    place = (os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]))
    peer = socket.create_connection(place)
    peer.sendall(os.environ["DMLC_ROLE"][0].encode())
    return peer


def server() -> None:
    hook("DOUBLE_SERVER")
    peer = join()
    hook("DOUBLE_SERVER_START")
    peer.recv(1)  # until the scheduler closes it
    hook("DOUBLE_SERVER_END")


def worker(code: str) -> None:
    peer = join()
    peer.recv(1)  # until all are there
    exec(code, {"rank": int(os.environ["PSLITE_RANK"]), "os": os, "sys": sys, "signal": signal})
    sys.stdout.flush()


def hook(variable: str) -> None:
    """Code that a test wants run at this point."""
    exec(os.environ.get(variable, ""), {"rank": int(os.environ["PSLITE_RANK"]), "signal": signal})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1])
    else:
        {"scheduler": scheduler, "server": server}[os.environ["DMLC_ROLE"]]()
