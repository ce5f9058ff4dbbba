"""Learn one number per key: pslite local conf/local.ini -- python examples/hello_ps.py"""

import numpy as np

import pslite

keys = np.array([3, 14, 15, 2**64 - 1], dtype=np.uint64)
targets = np.array([[0.3], [1.4], [1.5], [9.2]], dtype=np.float32)

with pslite.connect() as worker:
    table = worker.sparse_table("numbers", dim=1, optimizer=pslite.Adagrad(lr=1.0))
    for _ in range(200):
        rows = table.pull(keys)  # float32, shape (4, 1), in the order of keys
        worker.wait(table.push(keys, rows - targets))
        worker.step()  # ends this step: mode sync waits for it, async does not care
    worker.barrier()
    print(f"worker {worker.rank} of {worker.num_workers}: {table.pull(keys).ravel().round(2)}")
