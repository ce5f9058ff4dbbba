"""KVWorker and KVServer: ps-lite's low-level API, on clusters within one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv.errors import KeyValueShapeError, RemoteError, UnsortedKeysError
from kv.pairs import KVMeta, KVPairs, require_increasing
from kv.remote_worker import RemoteWorker
from kv.server import KVServer, KVServerDefaultHandle
from kv.worker import KVWorker, slot_slicer
from pslite.session import local_cluster
from van.errors import CodecError

APP = 3
LAST = 2**64 - 1


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def serve(handle: Any) -> Callable[[Any], None]:
    def start(office: Any) -> None:
        KVServer(APP, office).set_request_handle(handle)

    return start


def serve_sums(office: Any) -> None:
    KVServer(APP, office).set_request_handle(KVServerDefaultHandle())


def use(worker: RemoteWorker) -> KVWorker:
    return KVWorker(APP, 0, worker.office)


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_what_is_pushed_is_pulled_whatever_the_number_of_servers(servers: int) -> None:
    wanted = keys(0, 1, 2, 3, 50, 2**63, LAST - 1, LAST)
    vals = np.arange(16, dtype=np.float32)
    with local_cluster(servers=servers, server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)

        for _ in range(3):
            kv.wait(kv.push(wanted, vals))
        pulled = kv.wait(kv.pull(wanted))

    assert pulled is not None
    np.testing.assert_array_equal(pulled.keys, wanted)
    np.testing.assert_array_equal(pulled.vals, 3 * vals)


def test_a_handler_in_a_thread_of_its_own_keeps_nobody_else_waiting() -> None:
    arrived, opened = threading.Event(), threading.Event()
    handle, order = KVServerDefaultHandle(), list[int]()

    def slow(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
        order.append(meta.timestamp)
        if len(order) == 1:
            arrived.set()
            assert opened.wait(60)
        handle(meta, pairs, server)

    def start(office: Any) -> None:
        KVServer(APP, office, own_thread=True).set_request_handle(slow)

    with local_cluster(server_app=start) as cluster:
        (worker,) = cluster.workers
        kv = use(worker)
        requests = [kv.push(keys(1), np.ones(1, np.float32)) for _ in range(3)]
        assert arrived.wait(60)

        rows = worker.sparse_table("t", 2).pull([1, 2, 3])  # answered by the same server meanwhile

        assert rows.shape == (3, 2)
        opened.set()
        for request in requests:
            kv.wait(request)
        pulled = kv.wait(kv.pull(keys(1)))
    assert pulled is not None
    assert pulled.vals.tolist() == [3]
    assert order == sorted(order)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(f"pslite app {APP}")]


def test_values_of_different_length_keep_their_lens() -> None:
    wanted, lens = keys(4, 7, 9, 11), np.array([1, 0, 3, 2], np.int32)
    vals = np.arange(6, dtype=np.float64)
    with local_cluster(servers=3, server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)

        kv.wait(kv.push(wanted, vals, lens))
        pulled = kv.wait(kv.pull(wanted))
        both = kv.wait(kv.push_pull(wanted, vals, lens=lens))

    assert pulled is not None
    assert both is not None
    np.testing.assert_array_equal(pulled.lens, lens)
    np.testing.assert_array_equal(pulled.vals, vals)
    np.testing.assert_array_equal(both.vals, 2 * vals)


def test_pulled_values_fill_the_callers_arrays_before_the_callback() -> None:
    wanted = keys(1, 5, 6)
    seen: list[np.ndarray] = []
    with local_cluster(servers=2, server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        kv.wait(kv.push(wanted, np.array([1, 2, 3], np.float32)))
        out = np.zeros(3, np.float32)

        kv.wait(kv.pull(wanted, vals=out, callback=lambda: seen.append(out.copy())))

    np.testing.assert_array_equal(seen, [[1, 2, 3]])


def test_an_empty_request_is_done_at_once() -> None:
    with local_cluster(servers=2, server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)

        kv.wait(kv.push(keys(), np.empty(0, np.float32)))
        pulled = kv.wait(kv.pull(keys()))

    assert pulled is not None
    assert pulled.keys.size == 0


@pytest.mark.parametrize("wrong", [(3, 3), (3, 2), (1, 5, 4)])
def test_unsorted_keys_are_refused_with_their_position(wrong: tuple[int, ...]) -> None:
    with local_cluster(server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        with pytest.raises(UnsortedKeysError) as caught:
            kv.push(keys(*wrong), np.zeros(len(wrong), np.float32))

    assert caught.value.position == len(wrong) - 1


@pytest.mark.parametrize(
    ("count", "lens"), [(5, None), (4, [1, 2, 3]), (4, [-1, 5]), (0, [1, 1]), (4, [2])]
)
def test_values_that_do_not_fit_the_keys_are_refused(count: int, lens: list[int] | None) -> None:
    pairs = KVPairs(keys(1, 2), np.zeros(count), None if lens is None else np.array(lens, np.int32))

    with pytest.raises(KeyValueShapeError):
        pairs.check()


def test_an_exception_in_a_handler_reaches_the_wait_with_node_and_text() -> None:
    def fail(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
        raise ValueError(f"no room for key {pairs.keys[0]}")

    with local_cluster(servers=2, server_app=serve(fail)) as cluster:
        (kv,) = map(use, cluster.workers)
        with pytest.raises(RemoteError, match=r"server [01]: ValueError: no room for key 7"):
            kv.wait(kv.push(keys(7), np.ones(1)))
        with pytest.raises(RemoteError):
            kv.wait(kv.pull(keys(8)))


def test_an_exception_in_a_callback_reaches_the_wait() -> None:
    def fail() -> None:
        raise ZeroDivisionError("callback")

    with local_cluster(server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        timestamp = kv.push(keys(7), np.ones(1), callback=fail)
        with pytest.raises(ZeroDivisionError):
            kv.wait(timestamp)


def test_a_user_slicer_decides_which_server_gets_what() -> None:
    seen: list[tuple[str, list[int]]] = []

    def start(office: Any) -> None:
        sums = KVServerDefaultHandle()

        def handle(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
            seen.append((office.name, pairs.keys.tolist()))
            sums(meta, pairs, server)

        KVServer(APP, office).set_request_handle(handle)

    def odd_to_the_last(pairs: KVPairs, servers: int) -> list[KVPairs | None]:
        is_odd = pairs.keys % np.uint64(2) == 1
        parts: list[KVPairs | None] = [None] * servers
        parts[0] = pairs.take(np.flatnonzero(~is_odd))
        parts[-1] = pairs.take(np.flatnonzero(is_odd))
        return parts

    with local_cluster(servers=3, server_app=start) as cluster:
        (kv,) = map(use, cluster.workers)
        kv.set_slicer(odd_to_the_last)
        kv.wait(kv.push(keys(1, 2, 3, 4), np.array([1, 2, 3, 4], np.float32)))
        pulled = kv.wait(kv.pull(keys(1, 2, 3, 4)))

    assert sorted(seen[:2]) == [("server 0", [2, 4]), ("server 2", [1, 3])]
    assert pulled is not None
    np.testing.assert_array_equal(pulled.vals, [1, 2, 3, 4])


def test_a_handler_may_answer_later_and_num_response_counts() -> None:
    kept: list[tuple[KVMeta, KVServer]] = []

    def answer_the_second(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
        kept.append((meta, server))
        if len(kept) == 2:
            for waiting, where in kept:
                where.response(waiting)

    with local_cluster(servers=1, server_app=serve(answer_the_second)) as cluster:
        (kv,) = map(use, cluster.workers)
        first = kv.push(keys(1), np.ones(1))
        assert kv.num_response(first) == 0
        second = kv.push(keys(1), np.ones(1))
        kv.wait(second)
        kv.wait(first)
        answered = kv.num_response(first), kv.num_response(second)

    assert len(kept) == 2
    assert answered == (1, 1)


def test_lists_are_taken_as_well_as_arrays() -> None:
    with local_cluster(server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        kv.wait(kv.push([1, LAST], [1.0, 2.0], lens=[1, 1]))
        pulled = kv.wait(kv.pull([1, LAST]))
        for wrong in ([-1], ["x"], [2**64], [None]):
            with pytest.raises(KeyValueShapeError, match="integers from 0"):
                kv.pull(wrong)

    assert pulled is not None
    assert pulled.vals.tolist() == [1, 2]


def test_two_customers_of_one_worker_do_not_mix() -> None:
    with local_cluster(server_app=serve_sums) as cluster:
        (worker,) = cluster.workers
        one, two = KVWorker(APP, 0, worker.office), KVWorker(APP, 1, worker.office)
        a, b = one.push(keys(1), np.ones(1)), two.push(keys(1), np.ones(1))
        one.wait(a)
        two.wait(b)
        pulled = two.wait(two.pull(keys(1)))

    assert pulled is not None
    assert pulled.vals.tolist() == [2]


def test_an_app_that_no_server_has_is_an_error_not_a_hang() -> None:
    with local_cluster() as cluster:
        (worker,) = cluster.workers
        kv = KVWorker(77, 0, worker.office)
        with pytest.raises(RemoteError, match="server 0 has no app 77"):
            kv.wait(kv.push(keys(1), np.ones(1)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, LAST), unique=True, max_size=30).map(sorted),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_slicing_gives_each_key_to_one_server_with_its_values(
    listed: list[int], servers: int, width: int
) -> None:
    pairs = KVPairs(keys(*listed), np.arange(len(listed) * width, dtype=np.float32))
    lens = np.arange(len(listed), dtype=np.int32) % 3
    ragged = KVPairs(keys(*listed), np.arange(int(lens.sum()), dtype=np.float32), lens)

    for original in (pairs, ragged):
        parts = [part for part in slot_slicer(original, servers) if part is not None]
        for part in parts:
            part.check()
            require_increasing(part.keys)
        together = {
            int(key): vals.tolist()
            for part in parts
            for key, vals in zip(part.keys, np.split(part.vals, part.ends()[:-1]), strict=True)
        }
        split = np.split(original.vals, original.ends()[:-1]) if listed else []
        assert together == {k: v.tolist() for k, v in zip(listed, split, strict=True)}


def one_short(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
    server.response(meta, pairs.take(np.arange(pairs.keys.size - 1)))


def shifted(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
    server.response(meta, KVPairs(pairs.keys + np.uint64(1), pairs.keys.astype(np.float32)))


def no_pairs(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
    server.response(meta)


@pytest.mark.parametrize("handle", [one_short, shifted, no_pairs])
def test_an_answer_with_other_keys_is_refused(handle: Any) -> None:
    with local_cluster(servers=2, server_app=serve(handle)) as cluster:
        (kv,) = map(use, cluster.workers)
        with pytest.raises(KeyValueShapeError, match="the servers answered with"):
            kv.wait(kv.pull([1, 2, 3, 4]))


def test_a_slicer_that_loses_or_repeats_keys_is_refused() -> None:
    with local_cluster(servers=2, server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        for wrong in (lambda p, n: [p, p], lambda p, n: [None, None], lambda p, n: [p]):
            kv.set_slicer(wrong)
            with pytest.raises(KeyValueShapeError, match="the slicer"):
                kv.pull([1, 2])


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def object_values(server: KVServer, meta: KVMeta, pairs: KVPairs) -> None:
    server.response(meta, KVPairs(pairs.keys, np.array([{}] * pairs.keys.size)))


def raises(error: BaseException) -> Callable[[KVServer, KVMeta, KVPairs], None]:
    def act(server: KVServer, meta: KVMeta, pairs: KVPairs) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (object_values, "do not travel"),
        (raises(UnspeakableError()), "UnspeakableError"),
        (raises(ValueError("x" * 50_000_000)), "50000000 characters"),
        (raises(ValueError("a\ud800")), "ValueError"),
        (raises(SystemExit(0)), "SystemExit"),
    ],
)
def test_whatever_goes_wrong_in_a_handler_is_answered(act: Any, text: str) -> None:
    def handle(meta: KVMeta, pairs: KVPairs, server: KVServer) -> None:
        act(server, meta, pairs)

    with local_cluster(server_app=serve(handle)) as cluster:
        (kv,) = map(use, cluster.workers)
        with pytest.raises(RemoteError, match=text) as caught:
            kv.wait(kv.pull([1, 2]))

    assert len(str(caught.value)) < 10_000


def test_a_command_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    with local_cluster(server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        with pytest.raises(CodecError, match="must fit 32 bits"):
            kv.push([1], [1.0], cmd=2**40)


def test_what_one_server_gets_is_the_callers_memory_and_what_is_pulled_is_its_own() -> None:
    wanted, vals = keys(1, 5, 6), np.array([1, 2, 3], np.float32)
    with local_cluster(server_app=serve_sums) as cluster:
        (kv,) = map(use, cluster.workers)
        (part,) = slot_slicer(KVPairs(wanted, vals), 1)
        kv.wait(kv.push(wanted, vals))
        out = np.empty(3, np.float32)

        first = kv.wait(kv.pull(wanted))
        filled = kv.wait(kv.pull(wanted, vals=out))

    assert part is not None
    assert part.vals is vals
    assert first is not None
    assert filled is not None
    assert filled.vals is out
    first.vals += 1  # no view of a frame
    np.testing.assert_array_equal(out, vals)
