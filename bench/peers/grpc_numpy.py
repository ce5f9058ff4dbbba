"""A parameter server over gRPC, whose rows are NumPy arrays.

Generic handlers move bytes, so that no message class copies the arrays once more; keys are row
numbers, so nothing is looked up; rows are read and updated by fancy indexing. A request is the
number of rows (8 bytes), the row numbers, and for a push the gradients.
"""

import subprocess
import sys
from concurrent import futures

import grpc
import numpy as np

label = "gRPC + NumPy"

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SERVICE = "ParameterServer"
RATE, EPS = np.float32(0.01), np.float32(1e-10)


class Server:
    """What lives in the server process."""

    def prepare(self, request: bytes, context) -> bytes:
        rows, dim, optimizer = request.decode().split()
        rng = np.random.default_rng(1)
        self.weight = rng.uniform(-0.01, 0.01, (int(rows), int(dim))).astype(np.float32)
        self.squares = np.zeros_like(self.weight) if optimizer == "adagrad" else None
        return b""

    def pull(self, request: bytes, context) -> bytes:
        return self.weight[self._rows(request)].tobytes()

    def push(self, request: bytes, context) -> bytes:
        self._step(request)
        return b""

    def push_pull(self, request: bytes, context) -> bytes:
        return self.weight[self._step(request)].tobytes()

    def _rows(self, request: bytes) -> np.ndarray:
        count = int.from_bytes(request[:8], "little")
        return np.frombuffer(request, np.int64, count, offset=8)

    def _step(self, request: bytes) -> np.ndarray:
        rows = self._rows(request)
        grads = np.frombuffer(request, np.float32, offset=8 + rows.nbytes)
        grads = grads.reshape(rows.size, -1)
        if self.squares is None:
            self.weight[rows] -= RATE * grads
        else:
            squares = self.squares[rows] + grads * grads
            self.squares[rows] = squares
            self.weight[rows] -= RATE * grads / (np.sqrt(squares) + EPS)
        return rows


class Peer:
    """The worker's side."""

    def start(self) -> None:
        command = [sys.executable, __file__]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        port = int(self.server.stdout.readline())
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED)
        names = ("prepare", "pull", "push", "push_pull")
        self.call = {name: self.channel.unary_unary(f"/{SERVICE}/{name}") for name in names}

    def prepare(self, rows: int, dim: int, optimizer: str) -> None:
        self.dim = dim
        self.call["prepare"](f"{rows} {dim} {optimizer}".encode())

    def keys(self, positions):
        return positions

    def pull(self, rows):
        answer = self.call["pull"](self._header(rows) + rows.tobytes())
        return np.frombuffer(answer, np.float32).reshape(rows.size, self.dim)

    def push(self, rows, grads):
        self.call["push"](b"".join([self._header(rows), rows.data, grads.data]))

    def push_pull(self, rows, grads):
        answer = self.call["push_pull"](b"".join([self._header(rows), rows.data, grads.data]))
        return np.frombuffer(answer, np.float32).reshape(rows.size, self.dim)

    @staticmethod
    def _header(rows) -> bytes:
        return rows.size.to_bytes(8, "little")

    def close(self) -> None:
        self.channel.close()
        self.server.stdin.close()
        self.server.wait(20)


if __name__ == "__main__":
    state = Server()
    methods = {
        name: grpc.unary_unary_rpc_method_handler(getattr(state, name))
        for name in ("prepare", "pull", "push", "push_pull")
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), options=UNLIMITED)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()  # until the worker closes it or is gone
    server.stop(0).wait()
