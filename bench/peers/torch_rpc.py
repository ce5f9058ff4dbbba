"""A parameter server over torch.distributed.rpc, as its tutorial builds one.

The server holds the rows as a tensor; the worker sends row numbers, so nothing is looked up. A push
makes a sparse gradient and lets torch.optim take a step.
"""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed.rpc as rpc

label = "torch rpc"
spins = True  # the reactor of TensorPipe's shared memory polls without end, idle or not


class Server:
    """What lives in the server process."""

    weight: torch.nn.Parameter
    optimizer: torch.optim.Optimizer

    @classmethod
    def prepare(cls, rows: int, dim: int, optimizer: str) -> None:
        cls.weight = torch.nn.Parameter(torch.empty(rows, dim).uniform_(-0.01, 0.01))
        kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
        cls.optimizer = kinds[optimizer]([cls.weight], lr=0.01)

    @classmethod
    def pull(cls, rows: torch.Tensor) -> torch.Tensor:
        return cls.weight.detach().index_select(0, rows)

    @classmethod
    def push(cls, rows: torch.Tensor, grads: torch.Tensor) -> None:
        # the rows are increasing, and said to be, so that torch need not sort and add them
        cls.weight.grad = torch.sparse_coo_tensor(
            rows[None], grads, cls.weight.shape, check_invariants=False, is_coalesced=True
        )
        cls.optimizer.step()

    @classmethod
    def push_pull(cls, rows: torch.Tensor, grads: torch.Tensor) -> torch.Tensor:
        cls.push(rows, grads)
        return cls.pull(rows)


class Peer:
    """The worker's side."""

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(environ)
        self.server = subprocess.Popen([sys.executable, __file__], env=environ)
        rpc.init_rpc("worker", rank=1, world_size=2)

    def prepare(self, rows: int, dim: int, optimizer: str) -> None:
        rpc.rpc_sync("server", Server.prepare, args=(rows, dim, optimizer))

    def keys(self, positions):
        return torch.from_numpy(positions)

    def pull(self, rows):
        return rpc.rpc_sync("server", Server.pull, args=(rows,)).numpy()

    def push(self, rows, grads):
        rpc.rpc_sync("server", Server.push, args=(rows, torch.from_numpy(grads)))

    def push_pull(self, rows, grads):
        return rpc.rpc_sync(
            "server", Server.push_pull, args=(rows, torch.from_numpy(grads))
        ).numpy()

    def close(self) -> None:
        rpc.shutdown()
        self.server.wait(20)


if __name__ == "__main__":
    # the worker names the functions of this file as those of the module `torch_rpc`
    sys.modules["torch_rpc"] = sys.modules["__main__"]
    rpc.init_rpc("server", rank=0, world_size=2)
    rpc.shutdown()  # returns when all have called it
