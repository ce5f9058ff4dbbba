"""A push and a pull in one request equal a push and then a pull, wherever the rows are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kv.errors import MissingKeyError, NonFiniteError, SettingError, ValueShapeError
from kv.initializers import Uniform, Zeros
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad
from kv.protocols import Worker
from pslite.session import local_cluster
from van.message import Message

MESSY = [9, 3, 2**64 - 1, 3, 0, 9]
Make = Callable[[str], Worker]


@pytest.fixture(params=["local", "1 server", "3 servers"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes the only worker of a job in a mode."""
    closing: list[Callable[[], None]] = []

    def new(mode: str = "async") -> Worker:
        if request.param == "local":
            return LocalCluster(1, mode=mode, seed=3).worker(0)
        nodes = local_cluster(servers=int(request.param[0]), workers=1, mode=mode, seed=3).start()
        closing.append(nodes.close)
        return nodes.workers[0]

    yield new
    for close in closing:
        close()


def grads_of(count: int, dim: int = 3) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, dim)).astype(np.float32)


def test_it_answers_what_a_pull_after_the_push_reads(make: Make) -> None:
    worker = make("async")
    one, two = (
        worker.sparse_table(name, 3, optimizer=Adagrad(lr=0.1), initializer=Zeros())
        for name in ("one", "two")
    )
    for step in range(5):
        grads = grads_of(6) * (step + 1)

        together = one.push_pull(MESSY, grads)

        worker.wait(two.push(MESSY, grads))
        np.testing.assert_array_equal(together, two.pull(MESSY))
    assert len(one) == 4


def test_many_keys_go_in_pieces_and_are_named_the_second_time(make: Make) -> None:
    worker = make("async")
    table = worker.sparse_table("wide", 64, optimizer=SGD(lr=1.0), initializer=Zeros())
    keys = np.arange(0, 3 * 40_000, 3)
    grads = grads_of(keys.size, 64)

    for times in (1, 2, 3):
        values = table.push_pull(keys, grads)

        np.testing.assert_allclose(values, -times * grads, rtol=1e-5, atol=1e-6)


def test_out_is_filled_and_returned(make: Make) -> None:
    table = make("async").sparse_table("filled", 3, optimizer=SGD(lr=1.0), initializer=Zeros())
    out = np.full((6, 3), 7, np.float32)

    assert table.push_pull(MESSY, np.ones((6, 3)), out=out) is out

    np.testing.assert_array_equal(out[:, 0], [-2, -2, -1, -2, -1, -2])


def test_dense_arrays_and_several_tables(make: Make) -> None:
    worker = make("async")
    dense = worker.dense_table("dense", (70, 90), optimizer=SGD(lr=0.5))
    sparse = worker.sparse_table("beside", 2, optimizer=SGD(lr=1.0), initializer=Zeros())

    alone = dense.push_pull(np.ones((70, 90)))
    rows, array = worker.push_pull_many(
        [(sparse, [4, 4], np.ones((2, 2))), (dense, np.ones((70, 90)))]
    )

    assert (alone == -0.5).all()
    assert (rows == -2).all()
    assert (array == -1).all()


def test_in_sync_mode_it_reads_the_rounds_that_are_complete(make: Make) -> None:
    worker = make("sync")
    table = worker.sparse_table("rounds", 3, optimizer=SGD(lr=1.0), initializer=Zeros())
    read = []
    for _ in range(3):
        read.append(table.push_pull([5], np.ones((1, 3)))[0, 0])
        worker.step()

    assert read == [0, -1, -2]
    assert table.pull([5])[0, 0] == -3


def test_a_reader_who_is_ahead_is_held_until_the_round_closes() -> None:
    with local_cluster(servers=2, workers=2, mode="sync", seed=1) as nodes:
        slow, fast = nodes.workers
        tables = [
            worker.sparse_table("held", 1, optimizer=SGD(lr=1.0), initializer=Zeros())
            for worker in nodes.workers
        ]
        keys, ones = np.arange(20), np.ones((20, 1), np.float32)
        tables[1].push_pull(keys, ones)
        fast.step()
        got: list[np.ndarray] = []
        waiting = threading.Thread(target=lambda: got.append(tables[1].push_pull(keys, ones)))
        waiting.start()
        assert (tables[0].push_pull(keys, ones) == 0).all()
        assert not got

        slow.step()

        waiting.join(60)
        assert (got[0] == -2).all()
        fast.step()
        slow.step()
        assert (tables[0].pull(keys) == -3).all()


@pytest.mark.parametrize(
    ("grads", "options", "error"),
    [
        (np.full((1, 3), np.nan), {}, NonFiniteError),
        (np.ones((2, 3)), {}, ValueShapeError),
        (np.ones((1, 3)), {"weight": -1.0}, SettingError),
        (np.ones((1, 3)), {"out": np.ones((1, 3), np.float64)}, ValueShapeError),
    ],
)
def test_what_is_refused_changes_nothing(
    make: Make, grads: np.ndarray, options: dict[str, object], error: type[Exception]
) -> None:
    table = make("async").sparse_table("kept", 3, optimizer=SGD(lr=1.0), initializer=Uniform())
    before = table.pull([7])

    with pytest.raises(error):
        table.push_pull([7], grads, **options)  # type: ignore[arg-type]

    np.testing.assert_array_equal(table.pull([7]), before)


def test_a_key_that_is_missing_is_an_error_of_the_whole(make: Make) -> None:
    table = make("async").sparse_table("strict", 3, optimizer=SGD(lr=1.0), missing="error")
    table.assign([1], np.ones((1, 3)))

    with pytest.raises(MissingKeyError, match="key 2 has no row"):
        table.push_pull([1, 2], np.ones((2, 3)))


def test_it_is_one_message_to_a_server(make: Make) -> None:
    worker = make("async")
    office = getattr(worker, "office", None)
    if office is None:
        pytest.skip("no network in one process")
    table = worker.sparse_table("counted", 3, optimizer=SGD(lr=1.0), initializer=Zeros())
    sent: list[Message] = []
    send = office.send
    office.send = lambda message: (sent.append(message), send(message))

    table.push_pull([1], np.ones((1, 3)))

    assert len(sent) == 1
