"""What goes wrong rarely, told event by event on the model cluster.

Where it says so, the story is told once more with the rule in question switched off, to show that
the rule is what saves it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kv.requests import Incoming, Outgoing, Windows
from tests.kv.requests.model import Cluster, Letter, Mood, Parts

PUSH = {"direct": True, "pull": False, "everywhere": False}
MERGED = {**PUSH, "direct": False}


def tell_of_a_lost_answer(cluster: Cluster) -> None:
    cluster.change_mood(8, Mood.HOLDING)
    cluster.push(9, {0: 1}, **PUSH)
    cluster.deliver(0)  # held
    cluster.tick(1.0)
    cluster.deliver(0)  # the repeat
    cluster.deliver(0)  # HELD
    cluster.change_mood(8, Mood.QUICK)
    cluster.intercept(9)  # the OK is lost
    cluster.settle()
    cluster.check_end()


class NeverReminds(Outgoing):
    def due(self, now):
        for pending in self._pending.values():
            for piece in pending.pieces.values():
                piece.due = now + 1.0 if piece.is_held else piece.due
        return super().due(now)


def test_the_lost_answer_to_a_held_push_is_fetched_by_a_reminder():
    tell_of_a_lost_answer(Cluster())
    with pytest.raises(AssertionError, match="wait for ever"):
        tell_of_a_lost_answer(Cluster(Parts(outgoing=NeverReminds)))


def merged_under_way(cluster: Cluster) -> Letter:
    """Worker 9's push is merged, and the merged one is under way to server 8."""
    cluster.push(9, {0: 1}, **MERGED)
    cluster.deliver(0)
    cluster.flush()
    [late] = cluster.intercept(8)
    return late


def tell_of_a_late_merge(cluster: Cluster) -> None:
    """Worker 9's push is merged; the dispatcher dies while the merged one is under way."""
    late = merged_under_way(cluster)
    cluster.kill_dispatcher(returns=False, haunts=False)
    cluster.learn(9)
    cluster.settle()  # the worker sends it itself
    cluster.push(9, {0: 5}, **PUSH)  # tells server 8 that the first has its answer
    cluster.settle()
    cluster.take(late)
    cluster.settle()
    cluster.check_end()


class NeverFences(Incoming):
    def _fence(self, view):
        pass


def test_a_merge_that_outlives_its_dispatcher_does_not_count_beside_its_pushes():
    tell_of_a_late_merge(Cluster())
    with pytest.raises(AssertionError, match="twice"):
        tell_of_a_late_merge(Cluster(Parts(incoming=NeverFences)))


def tell_of_a_server_without_news(cluster: Cluster) -> None:
    """As before, but server 8 has not heard of the death when the worker's own push comes."""
    late = merged_under_way(cluster)
    cluster.kill_dispatcher(returns=False, haunts=False)
    cluster.learn(9)
    cluster.deliver_all()
    cluster.push(9, {0: 5}, **PUSH)
    cluster.deliver_all()
    cluster.take(late)
    cluster.settle()
    cluster.check_end()


class LooksAtNewEpochs(Incoming):
    def receive(self, request):
        return super().receive(replace(request, epoch=0))


def test_a_server_fences_a_dispatcher_before_it_looks_at_its_workers_pushes():
    tell_of_a_server_without_news(Cluster())
    with pytest.raises(AssertionError, match="twice"):
        tell_of_a_server_without_news(Cluster(Parts(incoming=LooksAtNewEpochs)))


def tell_of_a_slot_that_brings_a_fence(cluster: Cluster) -> None:
    """Slot 0 moves, with the push that its worker sent itself, to a server without the news."""
    late = merged_under_way(cluster)
    cluster.move(0, 10)
    cluster.learn(10)  # the map, but not the death that follows
    cluster.kill_dispatcher(returns=False, haunts=False)
    for node in (8, 9):
        cluster.learn(node)
    cluster.give(8)
    cluster.arrive(0, again=False)
    assert cluster.servers[10].core.view.epoch == 1
    cluster.servers[10].core.view = replace(cluster.servers[10].core.view, epoch=2)
    cluster.deliver_all()
    cluster.push(9, {0: 5}, **PUSH)
    cluster.deliver_all()
    cluster.take(replace(late, message=replace(late.message, recipient=10)))
    cluster.settle()
    cluster.check_end()


class LeavesFencesBehind(Windows):
    def export(self, slot):
        return {**super().export(slot), "floors": []}


def test_a_slot_brings_the_fences_of_the_server_it_comes_from():
    tell_of_a_slot_that_brings_a_fence(Cluster())
    with pytest.raises(AssertionError, match="twice"):
        tell_of_a_slot_that_brings_a_fence(Cluster(Parts(windows=LeavesFencesBehind)))


def test_the_former_self_is_neither_confused_with_the_new_one_nor_heard_after_it():
    cluster = Cluster()
    cluster.push(9, {0: 1}, **PUSH)
    [late] = cluster.intercept(8)
    cluster.restart_worker(9, haunts=False)
    cluster.push(9, {0: 5}, **PUSH)  # request 0 again
    cluster.settle()

    cluster.take(late)

    assert cluster.totals[0] == 5
    cluster.check_end()


def test_a_push_follows_its_slot_over_two_moves_and_counts_once():
    cluster = Cluster()
    cluster.push(9, {0: 3}, **PUSH)
    cluster.deliver(0)  # applied at 8
    cluster.intercept(9)  # the answer is lost
    for old, new in ((8, 10), (10, 12)):
        cluster.move(0, new)
        cluster.learn(old)
        cluster.give(old)
        cluster.arrive(0, again=True)
        cluster.tick(5.0)

    cluster.settle()

    assert cluster.servers[12].counters[0] == 3
    cluster.check_end()


def test_an_acknowledged_merge_has_reached_every_server():
    cluster = Cluster()
    cluster.change_mood(10, Mood.SLOW)
    cluster.push(9, {0: 1}, **MERGED)
    cluster.push(11, {1: 2}, **MERGED)
    cluster.deliver(0)
    cluster.deliver(0)
    cluster.flush()
    cluster.deliver_all()
    assert not any(worker.issued[0].is_done for worker in cluster.workers.values())

    cluster.change_mood(10, Mood.QUICK)
    cluster.deliver_all()

    assert all(worker.issued[0].is_done for worker in cluster.workers.values())
