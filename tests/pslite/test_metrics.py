"""`pslite metrics`: what nodes measure, as Prometheus reads it."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from urllib.error import HTTPError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from postoffice.errors import ObserverError
from postoffice.metrics import Histogram, Metrics
from postoffice.observer import Observer
from pslite.looking import status
from pslite.metrics import CONTENT_TYPE, exporter, exposition, gather
from tests.kv.dispatcher.tier import Tier
from van.errors import ConfigError


@given(st.lists(st.floats(0, 20)))
def test_a_histogram_counts_values_up_to_each_bound(values: list[float]) -> None:
    bounds = (0.5, 1.0, 10.0)
    histogram = Histogram(bounds)

    for value in values:
        histogram.observe(value)

    packed = histogram.pack()
    assert packed["buckets"] == [[b, sum(v <= b for v in values)] for b in bounds]
    assert (packed["count"], packed["sum"]) == (len(values), pytest.approx(sum(values)))


def test_the_text_has_families_once_with_the_node_of_each_value() -> None:
    histogram, metrics = Histogram((0.1, 2.0)), Metrics()
    histogram.observe(0.1)
    histogram.observe(3)
    metrics.offer("pslite_wait_seconds", "histogram", "Waits.", lambda: [({}, histogram)])
    metrics.offer("pslite_rows", "gauge", "Rows\nhere.", lambda: [({"table": 'a"b\\'}, 7)])

    text = exposition({"server 0": metrics.facts(), "server 1": metrics.facts()[1:]})

    assert text == (
        "# HELP pslite_rows Rows\\nhere.\n"
        "# TYPE pslite_rows gauge\n"
        'pslite_rows{node="server 0",table="a\\"b\\\\"} 7\n'
        'pslite_rows{node="server 1",table="a\\"b\\\\"} 7\n'
        "# HELP pslite_wait_seconds Waits.\n"
        "# TYPE pslite_wait_seconds histogram\n"
        'pslite_wait_seconds_bucket{node="server 0",le="0.1"} 1\n'
        'pslite_wait_seconds_bucket{node="server 0",le="2.0"} 1\n'
        'pslite_wait_seconds_bucket{node="server 0",le="+Inf"} 2\n'
        'pslite_wait_seconds_sum{node="server 0"} 3.1\n'
        'pslite_wait_seconds_count{node="server 0"} 2\n'
    )


def test_all_nodes_of_a_job_tell_what_they_measure() -> None:
    tier = Tier(0, workers=2, dispatchers=1)
    texts: list[str] = []

    def look() -> None:
        tier.wait(lambda: tier.counts.get("merges", 0) > 2)
        with Observer(tier.network.van(), "scheduler", bind="looker") as observer:
            texts.extend([exposition(gather(observer)), status(observer)])

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None)
        while not texts:
            worker.wait(table.push(np.arange(20), np.ones((20, 1))))

    tier.meddle(look)
    tier.train(program)

    text, shown = texts
    sums = re.search(r'latency_seconds_count\{node="dispatcher 0",table="t"\} (\d+)', text)
    assert sums is not None
    assert int(sums[1]) >= 1
    assert 'pslite_dispatcher_queue{node="dispatcher 0",table="t"}' in text
    nodes = ["scheduler", "server 0", "server 1", "dispatcher 0", "worker 0", "worker 1"]
    for node in nodes:
        sent = re.search(rf'pslite_network_tx_bytes{{node="{node}"}} (\d+)', text)
        assert sent is not None
        assert f'pslite_up{{node="{node}"}} 1' in text
        assert node == "scheduler" or int(sent[1]) > 0
    assert "summed in" in shown


def test_prometheus_is_answered_or_told_why_not() -> None:
    answers = iter(["pslite_up 1\n"])

    def read() -> str:
        for answer in answers:
            return answer
        raise ObserverError("the scheduler did not answer")

    with exporter("127.0.0.1", 0, read) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_address[1]}"
            with urllib.request.urlopen(f"{place}/metrics", timeout=30) as answer:
                assert answer.read() == b"pslite_up 1\n"
                assert answer.headers["Content-Type"] == CONTENT_TYPE
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(f"{place}/metrics", timeout=30)
            assert refused.value.code == 503
            assert b"did not answer" in refused.value.read()
            with pytest.raises(HTTPError, match="404"):
                urllib.request.urlopen(f"{place}/other", timeout=30)
            with pytest.raises(ConfigError, match="cannot listen"):
                exporter("127.0.0.1", server.server_address[1], read)
        finally:
            server.shutdown()
            thread.join()


def test_nobody_waits_for_one_who_connects_and_says_nothing() -> None:
    with exporter("127.0.0.1", 0, lambda: "pslite_up 1\n") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = ("127.0.0.1", int(server.server_address[1]))
            url = f"http://127.0.0.1:{place[1]}/metrics"
            with (
                socket.create_connection(place),
                urllib.request.urlopen(url, timeout=5) as answer,
            ):
                assert answer.read() == b"pslite_up 1\n"
        finally:
            server.shutdown()
            thread.join()
