"""pyzmq alone: what the transport costs when nothing is done with the bytes.

A DEALER asks, a ROUTER answers. `ping` is a round trip of three small frames; `transfer` sends some
bytes and gets some back, both without copies; `dense_pull` and `dense_push` copy once at each end.
"""

import secrets
import subprocess
import sys

import numpy as np
import zmq

label = "bare pyzmq"
HEADER = b"h" * 64  # about the size of a header
ZERO_COPY_FROM = 65536  # below that copying is faster


def endpoint_of(transport: str) -> str:
    # @: a name that is in no folder, and so left behind in none
    return "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://@bench-{secrets.token_hex(8)}"


class Peer:
    """The asking side."""

    def __init__(self, transport: str = "tcp") -> None:
        self.transport = transport

    def start(self) -> None:
        command = [sys.executable, __file__, self.transport]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(self.server.stdout.readline().decode().strip())
        self.sent: dict[int, np.ndarray] = {}
        self.into: dict[int, np.ndarray] = {}

    def ping(self) -> None:
        """Header, an 8-byte key and a 64-byte row, in two multipart messages."""
        self.socket.send_multipart([b"ping", HEADER, b"k" * 8])
        self.socket.recv_multipart()

    def transfer(self, send: list[int], receive: int) -> None:
        """Send arrays of `send` bytes, get `receive` bytes, neither copied if large."""
        frames = [self._array(nbytes) for nbytes in send]
        self.socket.send(b"transfer", zmq.SNDMORE)
        self.socket.send(receive.to_bytes(8, "little"), zmq.SNDMORE if frames else 0)
        for place, frame in enumerate(frames, 1):
            more = zmq.SNDMORE if place < len(frames) else 0
            self.socket.send(frame, more, copy=frame.nbytes < ZERO_COPY_FROM)
        self.socket.recv(copy=receive < ZERO_COPY_FROM)

    def dense_pull(self, nbytes: int) -> None:
        """The server's snapshot of an array, copied into one of ours."""
        self.socket.send_multipart([b"dense_pull", nbytes.to_bytes(8, "little")])
        frame = self.socket.recv(copy=False)
        if nbytes not in self.into:
            self.into[nbytes] = np.zeros(nbytes, np.uint8)
        self.into[nbytes][:] = np.frombuffer(frame, np.uint8)

    def dense_push(self, nbytes: int) -> None:
        """A copy of our array, so that it might change; the server copies it into its own."""
        if nbytes not in self.into:
            self.into[nbytes] = np.zeros(nbytes, np.uint8)
        # the last one has arrived: its answer has, so its memory can be used again
        copy = self._array(nbytes)
        copy[:] = self.into[nbytes]
        self.socket.send(b"dense_push", zmq.SNDMORE)
        self.socket.send(copy, copy=False)
        self.socket.recv()

    def prepare_dense(self, nbytes: int) -> None:
        pass

    def _array(self, nbytes: int) -> np.ndarray:
        if nbytes not in self.sent:
            self.sent[nbytes] = np.ones(nbytes, np.uint8)
        return self.sent[nbytes]

    def close(self) -> None:
        self.socket.close(0)
        self.server.stdin.close()
        self.server.wait(20)


class Server:
    """The answering side; one request at a time, so one buffer a size is enough."""

    def __init__(self, socket: zmq.Socket) -> None:
        self.socket = socket
        self.arrays: dict[tuple[str, int], np.ndarray] = {}

    def serve(self, stop: int) -> None:
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.socket in ready:
                self.answer()
            elif stop in ready:
                return

    def answer(self) -> None:
        sender = self.socket.recv()
        kind = self.socket.recv()
        if kind == b"ping":
            self.socket.recv_multipart()
            self.socket.send_multipart([sender, HEADER, b"v" * 64])
        elif kind == b"dense_push":
            frame = self.socket.recv(copy=False)
            self._array("dense", len(frame.buffer))[:] = np.frombuffer(frame, np.uint8)
            self.socket.send_multipart([sender, b""])
        else:
            nbytes = int.from_bytes(self.socket.recv(), "little")
            while self.socket.getsockopt(zmq.RCVMORE):
                self.socket.recv(copy=False)
            answer = self._array("answer", nbytes)
            if kind == b"dense_pull":
                answer[:] = self._array("dense", nbytes)
            self.socket.send(sender, zmq.SNDMORE)
            self.socket.send(answer, copy=nbytes < ZERO_COPY_FROM)

    def _array(self, name: str, nbytes: int) -> np.ndarray:
        if (name, nbytes) not in self.arrays:
            self.arrays[name, nbytes] = np.ones(nbytes, np.uint8)
        return self.arrays[name, nbytes]


if __name__ == "__main__":
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(endpoint_of(sys.argv[1]))
    print(router.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    Server(router).serve(sys.stdin.fileno())  # readable when the asking side is gone
    router.close(0)
