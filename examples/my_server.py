"""A server of one's own: keeps the largest value pushed for each key.

    pslite local conf/local.ini --servers 2 --workers 2 \
        --set server.app=examples.my_server:start -- python examples/my_server.py
"""

import numpy as np

import pslite

APP = 0  # number of the application, the same on both sides


def start(office):
    """Called on each server before it joins the cluster."""
    largest = {}

    def handle(meta, pairs, server):
        keys = pairs.keys.tolist()
        if meta.push:
            for key, value in zip(keys, pairs.vals, strict=True):
                largest[key] = max(value, largest.get(key, value))
        found = np.array([largest.get(key, 0) for key in keys], np.float32)
        server.response(meta, pslite.KVPairs(pairs.keys, found) if meta.pull else None)

    pslite.KVServer(APP, office).set_request_handle(handle)


if __name__ == "__main__":
    with pslite.connect() as worker:
        kv = pslite.KVWorker(APP, 0, worker.office)
        kv.wait(kv.push([1, 2, 3], np.arange(3) + worker.rank * 10))
        worker.barrier()
        print(f"worker {worker.rank}:", kv.wait(kv.pull([1, 2, 3])).vals)
