"""After the warm-up nothing is compiled any more, whatever users pass."""

from __future__ import annotations

import json
import subprocess
import sys

WARM = """
from kv import optimizers
from kv.compression.rehearsal import play_all
from kv.kernels.warmup import signatures, warm_up

for optimizer in optimizers.Optimizer.members.values():
    warm_up(3, optimizer())
play_all()
warm = signatures()
"""

USE = """
import json
import numpy as np
from kv.initializers import Normal
from kv.local import LocalCluster
from kv.placement import SlotMap
from kv.routing import split

rng = np.random.default_rng(0)
cluster = LocalCluster(2, "sync")
kinds = [
    *((kind(), "float32", "sum") for kind in optimizers.Optimizer.members.values()),
    (optimizers.RMSprop(momentum=0.9), "float16", "max_norm"),
    (optimizers.Adagrad(weight_decay=0.1, clip_norm=1.0, clip_value=1.0), "float32", "mean"),
    (optimizers.SGD(), "float16", "weighted_mean"),
]
for place, (optimizer, storage, aggregator) in enumerate(kinds):
    for missing in ("init", "zeros"):
        tables = [cluster.worker(rank).sparse_table(f"{place} {missing}", 5, optimizer=optimizer,
                  initializer=Normal(), missing=missing, storage=storage, aggregator=aggregator)
                  for rank in (0, 1)]
        sorted_keys = np.arange(0, 3000, dtype=np.uint64)
        frame = np.frombuffer(sorted_keys.tobytes(), np.uint64)
        crowded = rng.integers(2**63 - 50, 2**63 + 50, 500, dtype=np.uint64)
        for keys in ([], [5], [2**64 - 1, 0, 5, 5], sorted_keys, frame, frame[::2], crowded,
                     rng.integers(0, 9, 40), rng.integers(0, 2**64, 999, dtype=np.uint64)):
            grads = rng.standard_normal((len(keys), 5))
            for table in tables:
                for given in (grads, grads.astype("f4"), grads.astype("f4")[:, ::-1]):
                    table.push(keys, given)
                table.pull(keys, create=False)
                table.pull(keys)
            for rank in (0, 1):
                cluster.worker(rank).step()
        table.assign([9, 1, 9], np.ones((3, 5)))
        list(table.items())
        table.delete([1, 77, 9])
    dense = cluster.worker(0).dense_table(str(place), (130, 70), optimizer=optimizer,
                                          mode="async", storage=storage)
    dense.push(np.ones((130, 70)))
    dense.pull()
    dense.assign(np.zeros((130, 70)))
cluster.engine.validate()
for servers in (1, 3):
    split(SlotMap.from_bytes(SlotMap.even(servers).to_bytes()), frame)
from kv.compression.coding import NAMED, OUTRIGHT, WHOLE, decode
from kv.compression.encoder import Encoder
from kv.compression.kept import KeptBlocks, KeptRows
from kv.compression.schemes import Chain
for text in ("fp16", "bf16", "int8", "onebit", "topk:0.3", "topk:0.01+int8", "topk:0.3+onebit",
             "topk:0.3:rows=1", "selective:1+bf16", "delta+int8", "selective:1+delta+onebit"):
    for dim in (1, 8, 40):
        for kept in (KeptRows("t", dim, 4000), KeptBlocks(64, dim), None):
            encoder = Encoder(Chain.parse(text), dim, kept, kept is None, 4000)
            for count in (0, 1, 50):
                names = np.arange(count, dtype=np.uint64)
                for values in (np.ones((count, dim), np.float32),
                               rng.standard_normal((dim, count)).astype("f4").T):
                    for absent in (NAMED, OUTRIGHT, WHOLE):
                        coded = encoder.encode(names, values, absent)
                        encoder.give_back(names, values, coded)
print(json.dumps([warm, signatures()]))
"""


def test_production_adds_no_signatures_to_a_warm_kernel() -> None:
    # once before, so that a kernel which others call for other types comes out of the cache
    subprocess.run([sys.executable, "-c", WARM], timeout=200, check=True)

    result = subprocess.run(
        [sys.executable, "-c", WARM + USE], capture_output=True, text=True, timeout=200, check=False
    )

    assert result.returncode == 0, result.stderr
    warm, used = json.loads(result.stdout)

    assert sum(warm.values()) > 20
    assert max(warm.values()) == 1  # and 0 for those that only other kernels call
    assert used == warm
