"""A parameter server as a Ray actor, as in Ray's documentation.

The actor holds NumPy arrays; keys are row numbers, so nothing is looked up. Arrays go through Ray's
object store where they are large, which Ray decides.
"""

import os

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import ray

label = "Ray actor"

RATE, EPS = np.float32(0.01), np.float32(1e-10)


@ray.remote
class Server:
    """What lives in the actor's process."""

    def prepare(self, rows, dim, optimizer):
        rng = np.random.default_rng(1)
        self.weight = rng.uniform(-0.01, 0.01, (rows, dim)).astype(np.float32)
        self.squares = np.zeros_like(self.weight) if optimizer == "adagrad" else None

    def pull(self, rows):
        return self.weight[rows]

    def push(self, rows, grads):
        if self.squares is None:
            self.weight[rows] -= RATE * grads
        else:
            squares = self.squares[rows] + grads * grads
            self.squares[rows] = squares
            self.weight[rows] -= RATE * grads / (np.sqrt(squares) + EPS)

    def push_pull(self, rows, grads):
        self.push(rows, grads)
        return self.weight[rows]


class Peer:
    """The worker's side."""

    def start(self) -> None:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        self.server = Server.remote()

    def prepare(self, rows, dim, optimizer):
        ray.get(self.server.prepare.remote(rows, dim, optimizer))

    def keys(self, positions):
        return positions

    def pull(self, rows):
        return ray.get(self.server.pull.remote(rows))

    def push(self, rows, grads):
        ray.get(self.server.push.remote(rows, grads))

    def push_pull(self, rows, grads):
        return ray.get(self.server.push_pull.remote(rows, grads))

    def close(self) -> None:
        ray.shutdown()
