"""torch.nn.Embedding(sparse=True) in one process: no server, nothing is sent.

Not a parameter server, and not compared as one: it shows what moving the rows costs.
"""

import torch

label = "nn.Embedding, no server"


class Peer:
    """The whole of it."""

    def start(self) -> None:
        pass

    def prepare(self, rows: int, dim: int, optimizer: str) -> None:
        self.embedding = torch.nn.Embedding(rows, dim, sparse=True)
        kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
        self.optimizer = kinds[optimizer](self.embedding.parameters(), lr=0.01)

    def keys(self, positions):
        return torch.from_numpy(positions)

    def pull(self, rows):
        with torch.no_grad():
            return self.embedding(rows)

    def push(self, rows, grads):
        weight = self.embedding.weight
        weight.grad = torch.sparse_coo_tensor(
            rows[None],
            torch.from_numpy(grads),
            weight.shape,
            check_invariants=False,
            is_coalesced=True,
        )
        self.optimizer.step()

    def push_pull(self, rows, grads):
        self.push(rows, grads)
        return self.pull(rows)

    def close(self) -> None:
        pass
