"""One contract for every mode, and what each mode adds to it.

A `Table` here is a mode with a dictionary of rows behind it, so that a test can say what became of
every gradient.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kv.consistency.base import Context, Mode, Update
from kv.consistency.modes import mode_of
from kv.consistency.position import Position
from kv.consistency.progress import Progress
from kv.consistency.seen import SeenValues
from kv.consistency.semi_sync import SemiSynchronous
from kv.consistency.settings import (
    SSP,
    Async,
    Consistency,
    DCAsync,
    SemiSync,
    Sync,
    ceil_of,
)
from kv.errors import LatePushError, SettingError
from kv.kernels.delay import compensate
from kv.kernels.jit import frozen

ALL = [
    Async(),
    Async(lr_by_staleness=1),
    DCAsync(),
    SSP(0),
    SSP(3),
    Sync(),
    SemiSync(0.5),
    SemiSync(2, window=5.0),
    SemiSync(backup_workers=1),
]
F = np.float32


class Table:
    """A mode and what it has applied: the sum of all gradients of each key."""

    def __init__(self, mode: Consistency, workers: int, aggregator: str = "sum") -> None:
        self.now, self.progress = 0.0, Progress(workers)
        self.mode: Mode = mode_of(
            Context("t", self.progress, aggregator, mode, now=lambda: self.now)
        )
        self.positions = [Position() for _ in range(workers)]
        for position in self.positions:
            position.add(0)
        self.pulled = [-1] * workers  # clocks
        self.applied: Counter[int] = Counter()
        self.clocks = [self.mode.clock]

    def push(self, rank: int, keys: list[int], value: float = 1.0, base: int = -1) -> None:
        step = self.progress.completed[rank]
        self.mode.check_push(rank, step)
        grads = np.full((len(keys), 1), value, F)
        update = Update(np.array(keys, np.uint64), grads, base=base)
        self.apply(self.mode.on_push(rank, step, update))

    def step(self, rank: int) -> None:
        position = self.positions[rank]
        said = position.step([(0, self.pulled[rank])], lambda: None)
        if self.progress.step(rank, self.progress.completed[rank], said):
            self.settle()
        position.hear(self.mode.clock)

    def finish(self, rank: int) -> None:
        self.progress.finish(rank)
        self.settle()

    def settle(self) -> None:
        self.apply([self.mode.total(due) for due in self.mode.due()])
        self.mode.settled()
        self.mode.validate()
        self.clocks.append(self.mode.clock)

    def apply(self, updates: list[Update]) -> None:
        for update in updates:
            for key, grad in zip(update.keys.tolist(), update.grads[:, 0].tolist(), strict=True):
                self.applied[key] += grad

    def may_pull(self, rank: int) -> bool:
        may = self.mode.may_pull(rank, self.progress.completed[rank])
        if may:
            self.pulled[rank] = self.mode.clock
        return may


@pytest.fixture(params=ALL, ids=repr)
def settings_of(request: pytest.FixtureRequest) -> Consistency:
    assert isinstance(request.param, Consistency)
    return request.param


# -- the contract ------------------------------------------------------------------------------


def test_workers_in_step_never_wait_and_lose_nothing(settings_of: Consistency) -> None:
    table = Table(settings_of, 4)

    for _ in range(3):
        for rank in range(4):
            assert table.may_pull(rank)
            table.push(rank, [7, rank])
        for rank in range(4):
            table.step(rank)

    for rank in range(4):
        table.finish(rank)
    dropped = getattr(table.mode, "dropped", 0)
    assert table.applied[7] == 12 - dropped
    assert sum(table.applied.values()) == 24 - 2 * dropped
    assert table.clocks == sorted(table.clocks)


def test_a_worker_that_has_finished_or_died_holds_nobody_up(settings_of: Consistency) -> None:
    table = Table(settings_of, 3)
    table.push(2, [1])

    table.finish(2)  # in the midst of its step
    for _ in range(20):
        for rank in (0, 1):
            assert table.may_pull(rank)
            table.push(rank, [5])
            table.step(rank)
    for rank in (0, 1):
        table.finish(rank)

    assert table.applied[1] == 1
    assert table.applied[5] == 40 - getattr(table.mode, "dropped", 0)


def test_an_empty_push_is_a_push(settings_of: Consistency) -> None:
    table = Table(settings_of, 2)

    for rank in range(2):
        table.push(rank, [])
        table.step(rank)

    assert table.clocks[-1] > 0 or not settings_of.holds
    assert all(table.may_pull(rank) for rank in range(2))
    assert table.applied == {}


def test_a_step_said_twice_counts_once(settings_of: Consistency) -> None:
    table = Table(settings_of, 2)
    for rank in range(2):
        table.push(rank, [3])
        table.step(rank)
    before = table.mode.clock, table.applied.copy()

    for rank in range(2):
        assert not table.progress.step(rank, 0)
    table.settle()

    assert (table.mode.clock, table.applied) == before


def test_the_slowest_worker_is_never_blocked(settings_of: Consistency) -> None:
    table = Table(settings_of, 4)
    for rank in (0, 1, 2):
        for _ in range(5):
            if table.may_pull(rank):
                table.step(rank)

    assert table.may_pull(3)
    table.push(3, [1])
    table.step(3)


def test_only_modes_with_rounds_refuse_what_is_late(settings_of: Consistency) -> None:
    table = Table(settings_of, 2)
    table.step(0)

    if settings_of.holds:
        with pytest.raises(LatePushError, match="worker 0 pushed for step 0, but it has ended"):
            table.mode.check_push(0, 0)
    else:
        table.mode.check_push(0, 0)


def test_who_is_waited_for_is_somebody_else_and_active(settings_of: Consistency) -> None:
    table = Table(settings_of, 4)
    table.finish(3)
    for _ in range(8):
        if table.may_pull(0):
            table.push(0, [1])
            table.step(0)

    waited = table.mode.waits_for(0, table.progress.completed[0])

    assert bool(waited) == (not table.may_pull(0))
    assert set(waited) <= {1, 2}


class AnyOrder(RuleBasedStateMachine):
    """Workers of unequal speed: somebody may always go on, and every gradient is accounted for."""

    @initialize(mode=st.sampled_from(ALL), workers=st.integers(1, 5))
    def start(self, mode: Consistency, workers: int) -> None:
        self.table, self.pushed = Table(mode, workers), 0

    def active(self, choice: int) -> int | None:
        ranks = [r for r, done in enumerate(self.table.progress.finished) if not done]
        able = [rank for rank in ranks if self.table.may_pull(rank)]
        assert able or not ranks or self.waits_for_time(), "nobody may go on"
        return able[choice % len(able)] if able else None

    def waits_for_time(self) -> bool:
        return self.table.mode.due_at is not None

    @rule(choice=st.integers(0, 9), key=st.integers(0, 3), ends=st.booleans())
    def work(self, choice: int, key: int, ends: bool) -> None:
        rank = self.active(choice)
        if rank is not None:
            self.table.push(rank, [key])
            self.pushed += 1
            if ends:
                self.table.step(rank)

    @rule(choice=st.integers(0, 9))
    def step(self, choice: int) -> None:
        rank = self.active(choice)
        if rank is not None:
            self.table.step(rank)

    @rule(choice=st.integers(0, 9))
    def finish(self, choice: int) -> None:
        ranks = [r for r, done in enumerate(self.table.progress.finished) if not done]
        if ranks:
            self.table.finish(ranks[choice % len(ranks)])

    @rule()
    def time_passes(self) -> None:
        self.table.now += 2.0
        if self.table.mode.due_at is not None and self.table.now >= self.table.mode.due_at:
            self.table.settle()

    @invariant()
    def nothing_is_applied_twice(self) -> None:
        assert sum(self.table.applied.values()) <= self.pushed

    @invariant()
    def nothing_is_lost_in_the_end(self) -> None:
        if self.table.progress.slowest() is None:
            dropped = getattr(self.table.mode, "dropped", 0)
            assert sum(self.table.applied.values()) == self.pushed - dropped
            assert self.table.mode.held == 0


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_any_order_of_work = AnyOrder.TestCase


# -- bounded staleness -------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_the_fastest_worker_leads_by_the_bound_and_no_more(bound: int) -> None:
    table = Table(SSP(bound), 2)
    for _ in range(bound + 3):
        if table.may_pull(0):
            table.push(0, [1])
            table.step(0)

    assert table.progress.completed[0] == bound + 1  # the step in hand is the bound-th ahead
    assert not table.may_pull(0)
    assert table.mode.waits_for(0, bound + 1) == [1]
    table.step(1)
    assert table.may_pull(0)


def test_pulls_are_let_go_when_the_slowest_has_moved() -> None:
    table = Table(SSP(0), 2)
    table.progress.step(0, 0)
    assert not table.mode.settled()

    table.progress.step(1, 0)

    assert table.mode.settled()
    assert not table.mode.settled()


# -- semi-synchronous rounds -------------------------------------------------------------------


def test_a_round_closes_with_a_quorum_and_the_late_join_the_next() -> None:
    table = Table(SemiSync(2), 3)
    for rank in (0, 1):
        table.push(rank, [1])
        table.step(rank)
    assert table.applied == {1: 2}
    assert table.mode.clock == 1

    table.push(2, [1], 10.0)  # meant for round 0
    table.step(2)
    table.push(0, [1])
    table.step(0)
    assert table.applied == {1: 2}
    assert table.may_pull(2)  # its step was that of a round that is over
    table.step(2)

    assert table.applied == {1: 13}  # what came late counts in round 1
    assert table.mode.clock == 2
    assert isinstance(table.mode, SemiSynchronous)
    assert (table.mode.late, table.mode.dropped) == (1, 0)
    assert table.may_pull(2)


def test_two_that_were_late_once_make_no_quorum_impossible() -> None:
    table = Table(SemiSync(3), 4)
    for late in (3, 2, 3, 2, 1, 0):
        for rank in (r for r in range(4) if r != late):
            if table.may_pull(rank):
                table.push(rank, [1])
                table.step(rank)
        table.push(late, [1])
        table.step(late)

    assert table.mode.clock >= 4
    able = [rank for rank in range(4) if table.may_pull(rank)]
    assert able


def test_backup_workers_are_dropped_and_start_again_with_the_open_round() -> None:
    table = Table(SemiSync(backup_workers=1), 3)
    for rank in (0, 1):
        table.push(rank, [1])
        table.step(rank)
    assert table.mode.clock == 1

    table.push(2, [1], 10.0)
    table.step(2)
    table.push(2, [1])
    table.step(2)
    table.push(0, [1])
    table.step(0)

    assert table.applied == {1: 4}
    assert table.mode.clock == 2
    assert isinstance(table.mode, SemiSynchronous)
    assert (table.mode.late, table.mode.dropped) == (1, 1)


def test_a_window_closes_a_round_without_a_quorum() -> None:
    table = Table(SemiSync(3, window=5.0), 3)
    assert table.mode.due_at is None
    table.now = 1.0
    table.push(0, [1])
    table.step(0)
    assert table.mode.due_at == 6.0
    assert not table.may_pull(0)

    table.now = 6.0
    table.settle()

    assert table.may_pull(0)
    assert table.applied == {1: 1}
    assert table.mode.due_at is None  # nobody has ended a step in round 1


def test_mean_of_a_round_is_over_those_that_are_in_it() -> None:
    table = Table(SemiSync(2), 3, "mean")
    for rank, value in ((0, 2.0), (1, 4.0)):
        table.push(rank, [1], value)
        table.step(rank)

    assert table.applied == {1: 3}


@given(st.integers(1, 50), st.integers(1, 99))
def test_a_quorum_is_rounded_up_and_within_the_workers(active: int, percent: int) -> None:
    needed = SemiSync(percent / 100).needed(active)

    assert needed == max(1, -(-percent * active // 100))
    assert ceil_of(1.0, active) == active
    assert SemiSync(200).needed(active) == active


# -- delay ------------------------------------------------------------------------------------


def test_a_stale_gradient_steps_less_far() -> None:
    mode = mode_of(Context("t", Progress(1), settings=Async(lr_by_staleness=1)))
    update = Update(np.array([1], np.uint64), np.ones((1, 1), F), base=0)

    rates = [mode.on_push(0, 0, update)[0].rate for _ in range(4)]

    assert rates == [1.0, 1.0, 0.5, 1 / 3]
    assert mode.on_push(0, 0, update._replace(base=-1))[0].rate == 1.0


@given(n=st.integers(0, 9), dim=st.integers(1, 20), seed=st.integers(0, 2**32 - 1))
def test_compensation_is_its_formula(n: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, rows = rng.standard_normal((20, dim + 3)).astype(F), rng.permutation(20)[:n]
    grads, seen = rng.standard_normal((2, n, dim)).astype(F)
    unknown = rng.random((n, dim)) < 0.2
    seen[unknown] = np.nan
    out = np.empty((n, dim), F)

    compensate(data, dim, rows, frozen(grads), frozen(seen), F(0.3), out)

    moved = np.where(unknown, 0, data[rows, :dim] - seen)
    np.testing.assert_allclose(out, grads + F(0.3) * grads**2 * moved, rtol=1e-5, atol=1e-6)


def test_compiled_and_plain_compensation_agree() -> None:
    rng = np.random.default_rng(0)
    data, rows = rng.standard_normal((5, 4)).astype(F), np.array([3, 1])
    grads, seen = rng.standard_normal((2, 2, 4)).astype(F)
    outs = np.empty((2, 2, 4), F)

    compensate(data, 4, rows, frozen(grads), frozen(seen), F(0.1), outs[0])
    compensate.py_func(data, 4, rows, grads, seen, F(0.1), outs[1])

    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-6)


def test_what_a_worker_saw_last_is_found_by_key() -> None:
    seen = SeenValues(2, 2)
    for keys, value in (([1, 5, 9], 1.0), ([5, 7], 2.0)):
        seen.note(0, 0, np.array(keys, np.uint64), np.full((len(keys), 2), value, F))

    found, unknown = seen.find(0, -1, np.array([1, 5, 8, 9], np.uint64), 2)

    assert found[:, 0].tolist()[:2] == [1.0, 2.0]
    assert np.isnan(found[2]).all()
    assert found[3].tolist() == [1.0, 1.0]
    assert unknown == 1
    assert seen.find(1, -1, np.array([5], np.uint64), 2)[1] == 1


def test_old_pulls_and_those_of_who_has_gone_are_forgotten() -> None:
    seen = SeenValues(1, 1)
    for key in (1, 2):
        seen.note(0, 0, np.array([key], np.uint64), np.ones((1, 1), F))
    assert seen.find(0, -1, np.array([1], np.uint64), 1)[1] == 1
    assert seen.nbytes == 12

    seen.forget(0)

    assert seen.nbytes == 0


def test_a_compensated_push_carries_what_its_worker_saw() -> None:
    mode = mode_of(Context("t", Progress(1), settings=DCAsync(0.5)))
    keys = np.array([3, 4], np.uint64)
    mode.on_pull(0, keys, np.full((2, 1), 7.0, F))

    (due,) = mode.on_push(0, 0, Update(keys, np.ones((2, 1), F)))

    assert due.seen is not None
    assert due.seen.tolist() == [[7.0], [7.0]]
    assert due.lam == F(0.5)


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("ssp", {"staleness": -1}, "staleness must be a whole number"),
        ("ssp", {"staleness": 1.5}, "staleness must be a whole number"),
        ("semi_sync", {"quorum": 0}, "quorum must be a fraction above 0 and below 1"),
        ("semi_sync", {"quorum": 1.5}, "quorum must be a fraction above 0 and below 1"),
        ("semi_sync", {"window": -1}, "window must be 0 to 86400 seconds"),
        ("semi_sync", {"backup_workers": 0.5}, "backup_workers must be a whole number"),
        ("dc_async", {"lam": -1}, "lam must be 0 or more"),
        ("dc_async", {"memory": 0}, "memory must be a whole number"),
        ("async", {"lr_by_staleness": 2}, "lr_by_staleness must be 0 or 1"),
        ("synch", {}, "did you mean sync"),
    ],
)
def test_wrong_settings_say_what_is_right(name: str, values: dict[str, float], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        Consistency.by_name(name, **values)


@pytest.mark.parametrize("mode", ALL, ids=repr)
def test_settings_survive_the_way_to_a_server(mode: Consistency) -> None:
    assert Consistency.from_dict(mode.to_dict()) == mode
    assert Consistency.of(mode) is mode
    assert Consistency.of(mode.name).name == mode.name
