"""Workers share the reading of data and may die over it.

    pslite local conf/local.ini --workers 3 --set cluster.on_worker_failure=restart \
        -- python examples/shared_data.py
    pslite audit run

Kill a worker meanwhile (`pslite status` shows them): it is started again, what it had not done is
done by whoever asks next, and `pslite audit` finds every record counted once.
"""

import numpy as np

import pslite

RECORDS, BATCH = 20_000, 100
# Every worker could read a file instead; here all make the same data.
rng = np.random.default_rng(0)
ids = rng.integers(0, 50, RECORDS).astype(np.uint64)
values = (1 + ids % 7).astype(np.float32)

with pslite.connect() as worker:
    table = worker.sparse_table("means", dim=1, optimizer=pslite.Adagrad(lr=0.5))
    shards = worker.shards("records", RECORDS, epochs=2, unit=BATCH)
    for piece in shards:
        for start in range(piece.start, piece.stop, BATCH):
            stop = min(start + BATCH, piece.stop)
            rows = table.pull(ids[start:stop])
            table.push(ids[start:stop], (rows - values[start:stop, None]) / BATCH)
            worker.step()
            shards.seen(stop - piece.start)  # how far the model has seen this piece
    worker.barrier()  # all of it is read
    if worker.rank == 0:
        print(f"means of ids 0 to 8: {table.pull(np.arange(9)).ravel().round(1)}")
