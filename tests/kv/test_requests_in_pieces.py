"""Tables whose requests are cut small, named, coded and started ahead: the values stay the same."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kv.remote_worker
from kv.errors import KVError, MissingKeyError, NonFiniteError, SettingError, ValueShapeError
from kv.initializers import Zeros
from kv.keylists.sent import SentLists
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad
from kv.remote_worker import RemoteWorker
from pslite.local_nodes import LocalNodes
from pslite.session import local_cluster

SETTINGS = {
    "whole": {},
    "cut": {"piece": 300},
    "cut, coded": {"piece": 1000, "key_deltas": "on"},
    "no list remembered": {"piece": 500, "key_cache": 0},
    "few lists remembered": {"piece": 700, "key_cache": 3000, "key_deltas": "on"},
}


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key lists are remembered however short they are."""
    monkeypatch.setattr(kv.remote_worker, "SHORTEST_LIST", 1)


def start(servers: int, workers: int = 1, mode: str = "async", **chosen: object) -> LocalNodes:
    """A cluster whose workers have these settings."""
    nodes = local_cluster(servers=servers, workers=workers, mode=mode, seed=5)
    make = nodes._worker

    def worker(rank: int) -> RemoteWorker:
        made = make(rank)
        for name, value in chosen.items():
            setattr(made, f"_{name}", value)
        if "key_cache" in chosen:
            made._sent = SentLists(int(str(chosen["key_cache"])))
        return made

    nodes._worker = worker  # type: ignore[method-assign]
    return nodes


@pytest.fixture(scope="module", params=[1, 2, 3])
def clusters(request: pytest.FixtureRequest) -> Iterator[dict[str, RemoteWorker]]:
    """One worker of each kind of settings, each with servers of its own."""
    started = {name: start(request.param, **one).start() for name, one in SETTINGS.items()}
    yield {name: nodes.workers[0] for name, nodes in started.items()}
    for nodes in started.values():
        nodes.close()


NUMBERS = itertools.count()
LISTS = st.lists(st.integers(0, 400) | st.integers(0, 2**64 - 1), max_size=60)


@pytest.mark.usefixtures("short_lists")
@settings(max_examples=10)  # for each number of servers
@given(lists=st.lists(LISTS, min_size=1, max_size=3))
def test_any_settings_do_what_one_process_does(
    clusters: dict[str, RemoteWorker], lists: list[list[int]]
) -> None:
    workers = [*clusters.values(), LocalCluster(seed=5).worker(0)]
    name = f"t{next(NUMBERS)}"  # each example has tables of its own
    answers = [_use(worker, name, lists) for worker in workers]

    assert all(answer == answers[-1] for answer in answers)


def _use(worker: RemoteWorker, name: str, lists: list[list[int]]) -> list[bytes]:
    table = worker.sparse_table(name, 3, optimizer=Adagrad(lr=0.1))
    dense = worker.dense_table(f"{name} dense", (70, 200), optimizer=Adagrad(lr=0.1))
    seen = []
    for turn, keys in enumerate([*lists, *lists]):
        reads = [(table, keys), dense, (table, keys[::2])]
        worker.prefetch_many(reads if turn % 3 else [(table, keys)])
        rows, array, half = worker.pull_many(reads)
        seen += [rows.tobytes(), array.tobytes(), half.tobytes()]
        writes = [(table, keys, rows * 0.5 + 1), (dense, array + 1)]
        worker.wait(worker.push_many(writes, weight=2.0, priority=1))
    seen += [str(table.delete(lists[0][:3])).encode(), dense.pull().tobytes()]
    table.assign(lists[0], np.ones((len(lists[0]), 3)))
    return [*seen, table.pull(lists[0], create=False).tobytes(), str(len(table)).encode()]


def test_a_pull_and_the_push_of_the_same_keys_send_them_once() -> None:
    with start(2) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("once", 2, optimizer=SGD(lr=1), initializer=Zeros())
        keys = np.arange(0, 6000, 3)

        for _ in range(3):
            table.pull(keys)
            worker.wait(table.push(keys, np.ones((keys.size, 2))))
        rows = table.pull(keys)

    assert (rows == -3).all()
    assert worker.counts["lists_sent"] == 2  # one a server
    assert worker.counts["lists_named"] == 2 * 6
    assert worker.counts["key_bytes_saved"] == 6 * keys.nbytes
    assert worker.counts["lists_unknown"] == 0


def test_keys_that_a_server_has_dropped_are_sent_again_without_notice() -> None:
    with local_cluster(servers=2, server_app=_forgetful) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("dropped", 2, optimizer=SGD(lr=1), initializer=Zeros())
        keys = np.arange(5000)

        for _ in range(3):
            worker.wait(table.push(keys, np.ones((keys.size, 2))))
        rows = table.pull(keys)

    assert (rows == -3).all()
    assert worker.counts["lists_unknown"] == worker.counts["lists_named"] == 6


def _forgetful(office) -> None:
    """Make the table server of `office` forget every list at once."""
    office._customers[(1 << 32, 0)].handle_request.__self__.lists._limit = 0


def test_a_push_that_must_be_sent_again_still_counts_in_its_round() -> None:
    with local_cluster(servers=2, mode="sync", server_app=_forgetful) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("round", 1, optimizer=SGD(lr=1), initializer=Zeros())
        keys = np.arange(2000)

        for _ in range(4):
            table.push(keys, np.ones((keys.size, 1)))
            worker.step()

        assert (table.pull(keys) == -4).all()
        assert worker.counts["lists_unknown"] > 0


def test_short_lists_are_not_remembered() -> None:
    with start(1) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("short", 2)
        table.pull(np.arange(100))
        table.pull(np.arange(100))

    assert worker.counts["lists_sent"] == worker.counts["lists_named"] == 0


def test_a_push_in_pieces_is_one_step_of_its_table() -> None:
    with start(1, piece=1000) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("steps", 4)
        keys = np.arange(3000)
        sent = worker.office.van.counts["sent"]
        for _ in range(2):
            worker.wait(table.push(keys, np.ones((keys.size, 4))))

        assert worker.office.van.counts["sent"] - sent > 20
        assert _clocks(nodes, "steps") == [2]


def _clocks(nodes: LocalNodes, table: str) -> list[int]:
    """The table's clocks as the answers to a pull of one row say."""
    seen: list[int] = []
    (worker,) = nodes.workers
    customer, take = worker._customer, worker._customer.take_answer

    def spy(message) -> None:
        seen.extend(clock for _, clock, _ in message.meta.clocks)
        take(message)

    customer.take_answer = spy  # type: ignore[method-assign]
    worker.sparse_table(table, 4).pull([1])
    customer.take_answer = take  # type: ignore[method-assign]
    return seen


def test_a_refused_push_in_a_table_that_makes_no_rows_changes_nothing() -> None:
    with start(1, piece=1000) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("strict", 4, missing="error", optimizer=SGD(lr=1))
        keys = np.arange(1000)
        table.assign(keys[:-1], np.zeros((999, 4)))

        with pytest.raises(MissingKeyError, match="key 999"):
            worker.wait(table.push(keys, np.ones((1000, 4))))

        assert not table.pull(keys[:-1]).any()


def test_a_number_that_is_not_finite_refuses_all_pieces() -> None:
    with start(2, piece=1000) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("finite", 4, initializer=Zeros())
        dense = worker.dense_table("finite dense", (20_000,))
        grads = np.ones((1000, 4), np.float32)
        grads[777, 2] = -np.inf

        with pytest.raises(NonFiniteError, match="of key 777 is -inf"):
            worker.push_many([(dense, np.ones(20_000)), (table, np.arange(1000), grads)])
        with pytest.raises(NonFiniteError, match="table finite: value of key 777"):
            table.assign(np.arange(1000), grads)

        assert not dense.pull().any()
        assert len(table) == 0


# -- where answers go ---------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 3])
def test_answers_fill_the_callers_arrays(servers: int) -> None:
    with start(servers, piece=900) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("out", 4)
        dense = worker.dense_table("out dense", (9000, 2))
        dense.assign(np.arange(18_000).reshape(9000, 2))
        for keys in (np.arange(500), [5, 3, 5], []):
            wanted, out = table.pull(keys), np.full((len(keys), 4), 9, np.float32)
            assert table.pull(keys, out=out) is out
            np.testing.assert_array_equal(out, wanted)
            table.prefetch(keys)
            out[:] = 9
            assert table.pull(keys, out=out) is out
            np.testing.assert_array_equal(out, wanted)
        array = np.empty((9000, 2), np.float32)
        assert dense.pull(out=array) is array

    np.testing.assert_array_equal(array.reshape(-1), np.arange(18_000))


@pytest.mark.parametrize("local", [False, True])
def test_arrays_that_cannot_take_an_answer_are_refused(local: bool) -> None:
    with start(1) as nodes:
        worker = LocalCluster().worker(0) if local else nodes.workers[0]
        table, dense = worker.sparse_table("out", 4), worker.dense_table("d", (3,))
        read_only = np.empty((2, 4), np.float32)
        read_only.flags.writeable = False
        for out in (
            np.empty((2, 4)),
            np.empty((3, 4), np.float32),
            np.empty((2, 8), np.float32)[:, ::2],
            read_only,
            [[0.0] * 4] * 2,
        ):
            with pytest.raises(ValueShapeError, match="out must be a writable C-contiguous"):
                table.pull([1, 2], out=out)
        with pytest.raises(ValueShapeError, match="shape"):
            dense.pull(out=np.empty(4, np.float32))


@pytest.mark.parametrize("servers", [1, 2])
def test_pulled_values_are_the_callers_to_keep_and_write(servers: int) -> None:
    with start(servers) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("kept", 16, initializer=Zeros())
        dense = worker.dense_table("kept dense", (70_000,))
        keys = np.arange(20_000)

        for pull in (lambda: table.pull(keys), lambda: table.pull(keys[::-1]), dense.pull):
            first = pull()
            first += 1
            assert not pull().any()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_dense_gradient_may_change_after_the_push(mode: str) -> None:
    with start(2, mode=mode) as nodes:
        (worker,) = nodes.workers
        dense = worker.dense_table("dense", (70_000,), optimizer=SGD(lr=1))
        grad = np.ones(70_000, np.float32)
        for _ in range(3):
            dense.push(grad)
            grad[:] = 7
            dense.push(-grad)
            grad[:] = 1
            worker.step()

        assert (dense.pull() == 3 * 6).all()


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("local", [False, True])
def test_weights_that_are_none_are_refused(weight: float, local: bool) -> None:
    with start(1) as nodes:
        worker = LocalCluster().worker(0) if local else nodes.workers[0]
        table = worker.sparse_table("weighted", 1)

        with pytest.raises(SettingError, match="weight"):
            table.push([1], [[1.0]], weight=weight)


@pytest.mark.parametrize("local", [False, True])
def test_the_learning_rate_can_be_set_on_all_servers(local: bool) -> None:
    with start(2) as nodes:
        worker = LocalCluster().worker(0) if local else nodes.workers[0]
        table = worker.sparse_table("rates", 1, optimizer=SGD(lr=1), initializer=Zeros())
        keys = np.arange(100)

        worker.set_lr(table, 0.25)
        worker.wait(table.push(keys, np.ones((100, 1))))

        assert (table.pull(keys) == -0.25).all()
        with pytest.raises(SettingError):
            worker.set_lr(table, -1)


# -- prefetch -----------------------------------------------------------------------------


def test_a_prefetch_answers_the_next_pull_of_these_keys_in_any_order() -> None:
    with start(2, piece=500) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("ahead", 2, optimizer=SGD(lr=1), initializer=Zeros())
        keys = np.arange(300)
        table.prefetch(keys)
        keys += 1_000_000  # the list is the caller's own again
        worker.wait(table.push(np.arange(300), np.ones((300, 2))))

        stale = table.pull([*range(299, -1, -1), 7])
        fresh = table.pull(np.arange(300))

    assert stale.shape == (301, 2)
    assert not stale.any() or (stale == -1).any()  # before or after the push, as it came
    assert (fresh == -1).all()
    assert worker.counts["prefetch_used"] == 1


def test_values_of_a_prefetch_that_was_answered_do_not_see_later_pushes() -> None:
    with start(1) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("stale", 1, optimizer=SGD(lr=1), initializer=Zeros())
        dense = worker.dense_table("stale dense", (5,), optimizer=SGD(lr=1))
        worker.prefetch_many([(table, [4]), dense])
        worker.wait(table.push([], np.empty((0, 1))))
        worker.wait(table.push([9], [[1.0]]))  # answered after the prefetch was
        worker.wait(worker.push_many([(table, [4], [[1.0]]), (dense, np.ones(5))]))

        rows, array = worker.pull_many([(table, [4, 4]), dense])

        assert rows.tolist() == [[0.0], [0.0]]
        assert array.tolist() == [0.0] * 5
        assert table.pull([4]).tolist() == [[-1.0]]


def test_a_pull_of_other_keys_leaves_a_prefetch_alone_and_the_fifth_is_dropped() -> None:
    with start(1) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("bounded", 1)
        for first in range(6):
            table.prefetch([first, first + 1])
        table.prefetch([5, 6])  # again: takes the place of the former

        table.pull([0, 1])
        table.pull([5])
        table.pull([5, 6], create=False)
        worker.barrier()
        assert worker.counts["prefetch_used"] == 0
        table.pull([6, 5])

    assert worker.counts["prefetch_used"] == 1
    assert worker.counts["prefetch_dropped"] == 3


def test_the_error_of_a_prefetch_is_raised_by_the_pull() -> None:
    with start(2) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("strict", 1, missing="error")
        table.prefetch([4])
        worker.step()
        worker.barrier()

        with pytest.raises(MissingKeyError, match="key 4"):
            table.pull([4])
        with pytest.raises(MissingKeyError, match="key 4"):
            table.pull([4])
        table.assign([4], [[1.0]])
        assert table.pull([4]).tolist() == [[1.0]]


def test_prefetches_in_rounds_hold_nobody_up_and_are_of_their_step() -> None:
    with start(2, workers=2, mode="sync") as nodes:

        def program(worker: RemoteWorker) -> list[float]:
            table = worker.sparse_table("rounds", 1, optimizer=SGD(lr=1), initializer=Zeros())
            seen = []
            for _ in range(4):
                table.prefetch([1])
                table.push([1], [[1.0]])
                worker.step()
                seen.append(float(table.pull([1])[0, 0]))
            return seen

        results = nodes.run(program)

    assert results == [[0.0, -2.0, -4.0, -6.0]] * 2


def test_an_unused_prefetch_does_not_hold_up_the_end() -> None:
    done = threading.Event()

    def program(nodes: LocalNodes) -> None:
        with nodes:
            table = nodes.workers[0].sparse_table("end", 1)
            table.prefetch(np.arange(1000))
        done.set()

    _with_a_limit(lambda: program(start(2)))

    assert done.is_set()


def _with_a_limit(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)


def test_lists_that_were_cut_in_another_way_are_not_confused() -> None:
    with start(1, piece=2000) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("cuts", 1, optimizer=SGD(lr=1), initializer=Zeros())
        dense = worker.dense_table("cuts dense", (300,))
        keys = np.arange(2000)
        grads = np.arange(2000, dtype=np.float32).reshape(-1, 1)

        for _ in range(2):
            worker.wait(worker.push_many([(dense, np.ones(300)), (table, keys, grads)]))
            worker.wait(worker.push_many([(table, keys, grads), (dense, np.ones(300))]))
            worker.wait(table.push(keys, grads))
            worker._piece = 3000

        np.testing.assert_array_equal(table.pull(keys), -6 * grads)


@pytest.mark.usefixtures("short_lists")
def test_gradients_that_do_not_fit_a_named_list_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv.remote_worker, "signature_of", lambda lists, seed: 7)
    monkeypatch.setattr("kv.composing.part_of", lambda signature, ranges: 7)  # as if alike
    with start(1) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("fit", 2, initializer=Zeros())
        table.pull(np.arange(1000))

        with pytest.raises(ValueShapeError, match=r"gradients have shape \(900, 2\), not \(1000"):
            worker.wait(table.push(np.arange(900), np.ones((900, 2))))
        with pytest.raises(KVError, match=r"of shape \(1000, 2\) instead of float32 \(900, 2\)"):
            table.pull(np.arange(900))

        assert not table.pull(np.arange(1000)).any()
