"""Everything that can happen to the model cluster, as rules for hypothesis to string together.

A run begins with a storm, which brings the cluster into a state worth a look, and goes on with
single rules, by which a failure can be shrunk to what it takes.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.kv.requests.model import DISPATCHER, SERVERS, SLOTS, WORKERS, Cluster, Mood, Parts
from tests.kv.requests.storm import storm

servers = st.sampled_from(SERVERS)
workers = st.sampled_from(WORKERS)
some_slots = st.sets(st.integers(0, SLOTS - 1), min_size=1)
some_nodes = st.sets(st.sampled_from([*SERVERS, *WORKERS, DISPATCHER]))
values = st.dictionaries(st.integers(0, SLOTS - 1), st.integers(1, 9))
seeds = st.integers(0, 2**32 - 1)
moods = st.sampled_from(Mood)
rarely = st.sampled_from([False, False, False, True])


class Requests(RuleBasedStateMachine):
    """3 servers, 2 workers, 1 dispatcher; subclasses plant bugs in `parts`."""

    parts = Parts()

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(self.parts)

    @initialize(moods=st.tuples(moods, moods, moods))
    def begin(self, moods):
        for node, mood in zip(SERVERS, moods, strict=True):
            self.cluster.change_mood(node, mood)

    @initialize(seed=seeds, events=st.integers(0, 60))
    def begin_with_a_storm(self, seed, events):
        storm(self.cluster, Random(seed), events)

    @rule(seed=seeds, events=st.integers(1, 20))
    def storm(self, seed, events):
        storm(self.cluster, Random(seed), events)

    @rule(node=workers, values=values, direct=st.booleans(), pull=rarely, all_=rarely)
    def push(self, node, values, direct, pull, all_):
        self.cluster.push(node, values, direct=direct, pull=pull, everywhere=all_)

    @rule(node=workers, slots=some_slots)
    def pull(self, node, slots):
        self.cluster.pull(node, slots)

    @rule(node=workers)
    def abandon(self, node):
        self.cluster.abandon(node)

    @precondition(lambda self: self.cluster.letters)
    @rule(
        at=st.sampled_from(["oldest", "youngest", "middle"]),
        count=st.integers(1, 12),
        flush=st.booleans(),
    )
    def deliver(self, at, count, flush):
        for _ in range(min(count, len(self.cluster.letters))):
            middle = len(self.cluster.letters) // 2
            self.cluster.deliver({"oldest": 0, "youngest": -1, "middle": middle}[at])
        if flush:
            self.cluster.flush()

    @precondition(lambda self: self.cluster.letters)
    @rule(node=st.sampled_from([*SERVERS, *WORKERS, DISPATCHER]), takes=st.booleans())
    def take_or_lose_what_comes_to(self, node, takes):
        letters = self.cluster.intercept(node)
        for letter in letters if takes else []:
            self.cluster.take(letter)

    @precondition(lambda self: self.cluster.sent)
    @rule(index=st.integers(1, 40))
    def replay(self, index):
        self.cluster.replay(index)

    @rule(seconds=st.sampled_from([1.0, 1.0, 40.0]))
    def tick(self, seconds):
        self.cluster.tick(seconds)
        self.cluster.flush()

    @rule(node=servers, mood=moods)
    def serve(self, node, mood):
        self.cluster.change_mood(node, mood)

    @rule(slot=st.integers(0, SLOTS - 1), by=st.integers(1, 2), leaves=st.booleans())
    def move(self, slot, by, leaves):
        owner = int(self.cluster.view.owners[slot])
        self.cluster.move(slot, SERVERS[(SERVERS.index(owner) + by) % len(SERVERS)])
        if leaves:
            self.cluster.learn(owner)
            self.cluster.give(owner)

    @precondition(lambda self: self.cluster.moves)
    @rule(index=st.integers(0, 3), again=st.booleans())
    def arrive(self, index, again):
        self.cluster.arrive(index, again=again)

    @precondition(lambda self: self.cluster.behind)
    @rule(nodes=some_nodes, give=st.booleans())
    def learn(self, nodes, give):
        for node in sorted(nodes):
            self.cluster.learn(node)
        for node in SERVERS if give else []:
            self.cluster.give(node)

    @precondition(lambda self: self.cluster.may_kill())
    @rule(returns=st.booleans(), haunts=st.booleans(), told=some_nodes)
    def kill_dispatcher(self, returns, haunts, told):
        self.cluster.kill_dispatcher(returns=returns, haunts=haunts)
        for node in sorted(told):
            self.cluster.learn(node)

    @precondition(lambda self: self.cluster.may_restart())
    @rule(node=workers, haunts=st.booleans())
    def restart_worker(self, node, haunts):
        self.cluster.restart_worker(node, haunts=haunts)

    @invariant()
    def nothing_contradicts_itself(self):
        self.cluster.validate()

    def teardown(self):
        self.cluster.end()
