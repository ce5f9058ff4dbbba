"""Train one number per key on a parameter server: pslite local conf/local.ini -- python ..."""

import numpy as np

import pslite

keys = np.array([3, 14, 15, 92], dtype=np.uint64)
targets = np.array([[0.3], [1.4], [1.5], [9.2]], dtype=np.float32)

with pslite.connect() as worker:
    table = worker.sparse_table("numbers", dim=1, optimizer=pslite.SGD(lr=0.1))
    for _ in range(50):
        rows = table.pull(keys)  # float32 (4, 1), in the order of keys
        request = table.push(keys, (rows - targets) / worker.num_workers)
        worker.wait(request)
    worker.barrier()
    print(f"worker {worker.rank} of {worker.num_workers}: {table.pull(keys).ravel().round(2)}")
