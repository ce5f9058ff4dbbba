"""The modes by themselves: no rows, only what they say is to be applied and answered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kv.consistency.asynchronous import Asynchronous
from kv.consistency.base import Context, Mode, Update
from kv.consistency.modes import MODES, mode_of
from kv.consistency.progress import Progress
from kv.consistency.settings import Async, Consistency, Sync
from kv.consistency.sync import Synchronous
from kv.errors import LatePushError, RankError


def update(keys: list[int], value: float = 1.0) -> Update:
    return Update(np.array(keys, np.uint64), np.full((len(keys), 1), value, np.float32))


def as_dict(applied: Update) -> dict[int, float]:
    return dict(zip(applied.keys.tolist(), applied.grads[:, 0].tolist(), strict=True))


def sync(workers: int) -> tuple[Progress, Synchronous]:
    progress = Progress(workers)
    return progress, Synchronous(Context("t", progress, settings=Sync()))


def test_every_mode_of_a_definition_exists() -> None:
    assert set(MODES) == set(Consistency.members)
    for name in MODES:
        settings = Consistency.by_name(name)
        mode = mode_of(Context("t", Progress(1), settings=settings))
        assert (mode.name, mode.holds) == (name, settings.holds)


def test_async_applies_each_push_at_once_and_never_holds_a_pull() -> None:
    mode = Asynchronous(Context("t", Progress(2), settings=Async()))

    mode.check_push(1, 7)
    (applied,) = mode.on_push(1, 7, update([3]))

    assert as_dict(applied) == {3: 1.0}
    assert mode.clock == 1
    assert mode.may_pull(0, 99)
    assert list(mode.close()) == list(mode.close()) == []


def test_a_round_closes_when_the_last_active_worker_has_ended_its_step() -> None:
    progress, mode = sync(3)
    mode.on_push(2, 0, update([5], 2.0))
    mode.on_push(0, 0, update([5, 6], 1.0))

    for rank in (2, 0):
        progress.step(rank, 0)
        assert list(mode.close()) == []
        assert not mode.may_pull(rank, 1)
    assert mode.may_pull(1, 0)
    assert mode.waits_for(0, 1) == [1]
    progress.step(1, 0)
    (applied,) = mode.close()

    assert as_dict(applied) == {5: 3.0, 6: 1.0}
    assert mode.clock == 1
    assert all(mode.may_pull(rank, 1) for rank in range(3))


def test_a_round_without_pushes_closes_without_an_update() -> None:
    progress, mode = sync(1)
    mode.on_push(0, 0, update([]))

    progress.step(0, 0)

    assert list(mode.close()) == []
    assert mode.clock == 1


def test_pushes_of_one_step_add_up_per_worker_before_workers_are_added() -> None:
    big, small = 2.0**24, 1.0  # float32: big + small == big, big + 2 small != big
    progress, mode = sync(2)
    mode.on_push(1, 0, update([1], small))
    mode.on_push(1, 0, update([1], small))
    mode.on_push(0, 0, update([1], big))
    for rank in range(2):
        progress.step(rank, 0)

    (applied,) = mode.close()

    assert as_dict(applied) == {1: big + 2 * small}


def test_a_push_for_a_step_that_has_ended_is_late() -> None:
    progress, mode = sync(2)
    progress.step(0, 0)

    with pytest.raises(LatePushError, match="worker 0 pushed for step 0, but it has ended"):
        mode.check_push(0, 0)
    mode.check_push(0, 1)
    mode.check_push(1, 0)


def test_a_push_that_runs_ahead_waits_for_its_own_round() -> None:
    progress, mode = sync(2)
    mode.on_push(0, 1, update([1], 10.0))
    mode.on_push(0, 0, update([1], 1.0))

    for rank in range(2):
        progress.step(rank, 0)
    assert [as_dict(u) for u in mode.close()] == [{1: 1.0}]
    for rank in range(2):
        progress.step(rank, 1)
    assert [as_dict(u) for u in mode.close()] == [{1: 10.0}]


def test_a_finished_worker_is_waited_for_no_more() -> None:
    progress, mode = sync(2)
    mode.on_push(0, 0, update([1]))
    progress.step(0, 0)
    mode.on_push(1, 0, update([1]))  # pushed, then gone without ending the step

    progress.finish(1)
    (applied,) = mode.close()

    assert as_dict(applied) == {1: 2.0}
    assert mode.clock == 1


def test_what_the_last_worker_leaves_is_applied() -> None:
    progress, mode = sync(2)
    progress.finish(1)
    mode.close()
    mode.on_push(0, 0, update([1]))

    progress.finish(0)

    assert [as_dict(u) for u in mode.close()] == [{1: 1.0}]
    assert mode.clock == 1


def test_a_worker_that_skips_very_far_costs_nothing() -> None:
    progress, mode = sync(1)
    mode.on_push(0, 3, update([1]))

    progress.step(0, 10**15)

    assert [as_dict(u) for u in mode.close()] == [{1: 1.0}]
    assert mode.clock == 10**15 + 1


def test_a_table_defined_late_starts_at_the_workers_round() -> None:
    progress = Progress(2)
    for rank in range(2):
        progress.step(rank, 4)

    assert Synchronous(Context("t", progress, settings=Sync())).clock == 5


def test_progress_knows_its_ranks() -> None:
    progress = Progress(2)

    for wrong in (-1, 2):
        with pytest.raises(RankError, match=f"no worker {wrong}; this job has 0 to 1"):
            progress.check_rank(wrong)
    with pytest.raises(RankError, match="1 or more workers"):
        Progress(0)


def test_a_finished_worker_steps_no_more_but_may_repeat_itself() -> None:
    progress = Progress(1)
    progress.step(0, 0)
    progress.finish(0)

    assert not progress.step(0, 0)
    assert not progress.finish(0)
    with pytest.raises(RankError, match="worker 0 has finished"):
        progress.step(0, 1)


class Rounds(RuleBasedStateMachine):
    """Workers of unequal length push, step and finish in any order; nothing blocks or is lost."""

    @initialize(workers=st.integers(1, 4))
    def start(self, workers: int) -> None:
        self.progress, self.mode = sync(workers)
        self.pushed: dict[int, dict[int, list[float]]] = {}
        self.applied: list[dict[int, float]] = []
        self.rng = np.random.default_rng(workers)

    def take(self, updates: list[Update]) -> None:
        self.applied += [as_dict(u) for u in updates]

    def active(self, choice: int) -> int | None:
        left = [r for r, done in enumerate(self.progress.finished) if not done]
        return left[choice % len(left)] if left else None

    @rule(choice=st.integers(0, 9), key=st.integers(0, 2))
    def push(self, choice: int, key: int) -> None:
        rank = self.active(choice)
        if rank is None:
            return
        step, value = self.progress.completed[rank], float(self.rng.integers(1, 100))
        self.mode.check_push(rank, step)
        assert list(self.mode.on_push(rank, step, update([key], value))) == []
        self.pushed.setdefault(step, {}).setdefault(key, []).append(value)

    @rule(choice=st.integers(0, 9), is_repeated=st.booleans())
    def step(self, choice: int, is_repeated: bool) -> None:
        rank = self.active(choice)
        if rank is None:
            return
        number = self.progress.completed[rank]
        assert self.progress.step(rank, number)
        if is_repeated:
            assert not self.progress.step(rank, number)
        self.take(list(self.mode.close()))

    @rule(choice=st.integers(0, 9))
    def finish(self, choice: int) -> None:
        rank = self.active(choice)
        if rank is not None:
            self.progress.finish(rank)
            self.take(list(self.mode.close()))

    @invariant()
    def closed_rounds_are_applied_whole_and_open_ones_not_at_all(self) -> None:
        self.mode.validate()
        closed = [self.pushed[r] for r in sorted(self.pushed) if r < self.mode.clock]
        assert self.applied == [{k: sum(v) for k, v in r.items()} for r in closed]

    @invariant()
    def the_slowest_active_worker_is_never_blocked(self) -> None:
        for rank, completed in enumerate(self.progress.completed):
            if completed == self.progress.slowest():
                assert self.mode.may_pull(rank, completed)
        if self.progress.slowest() is None:
            assert not self.mode.rounds


Rounds.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_rounds_of_unequal_workers = Rounds.TestCase


@pytest.mark.parametrize("kind", MODES.values(), ids=lambda kind: kind.name)
def test_clocks_only_grow(kind: type[Mode]) -> None:
    progress = Progress(2)
    settings = Consistency.by_name(kind.name)
    mode, clocks = kind(Context("t", progress, settings=settings)), []
    for step in range(3):
        for rank in range(2):
            mode.check_push(rank, step)
            mode.on_push(rank, step, update([rank]))
            clocks.append(mode.clock)
            progress.step(rank, step)
            mode.close()
            clocks.append(mode.clock)

    assert clocks == sorted(clocks)
    assert clocks[-1] > 0
