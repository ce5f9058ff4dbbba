"""A table whose requests were played through compiles nothing when the real ones come."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json
import numpy as np
from kv import optimizers
from kv.engine import Engine
from kv.initializers import Normal
from kv.kernels.warmup import signatures
from kv.rehearsal import Rehearsal
from kv.spec import TableSpec

def frame(array):
    array.flags.writeable = False
    return array

specs = [
    TableSpec.sparse("a", 5, optimizer=optimizers.Adagrad(), initializer=Normal(), mode="async"),
    TableSpec.sparse("b", 16, optimizer=optimizers.Adam(), missing="zeros", mode="sync"),
    TableSpec.sparse("c", 3, missing="error", storage="float16", mode="async"),
    TableSpec.dense("d", (130, 70), optimizer=optimizers.Momentum(), mode="async"),
]
found = []
for parts in (1, 2):
    engine = Engine(1, parts=parts)
    rehearsal = Rehearsal(parts)
    for spec in specs:
        rehearsal.play(spec.resolved("async", 1))
    before = signatures()
    for spec in specs:
        table = engine.define(spec)
        if spec.kind == "dense":
            blocks = frame(np.ones((3, 4096), np.float32))
            engine.assign(table, None, blocks)
            engine.push(table, 0, parts, None, blocks)
            engine.pull(table)
            continue
        keys = frame(np.arange(10000, dtype=np.uint64))
        values = frame(np.ones((10000, spec.dim), np.float32))
        engine.assign(table, keys, values)
        for some in (keys, keys[:1], keys[5:40]):
            engine.push(table, 0, parts, some, values[: some.size])
            engine.pull(table, some)
            engine.pull(table, some, create=False)
        engine.delete(table, keys[7:9])
        engine.scan(table, 0)
    engine.step(0, parts)
    found.append([before, signatures()])
print(json.dumps(found))
"""


def test_a_rehearsed_table_needs_no_further_kernel() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr

    for before, after in json.loads(result.stdout):
        assert {name: count for name, count in after.items() if count != before[name]} == {}
