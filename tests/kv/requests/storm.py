"""A row of random events with weights that keep a cluster busy.

Hypothesis draws its rules evenly and leaves some out of each run, which suits the shrinking of a
failure but seldom strings together what a rare one needs; a storm does, and costs a tenth.
"""

from __future__ import annotations

from random import Random

from tests.kv.requests.model import DISPATCHER, SERVERS, SLOTS, WORKERS, Cluster, Mood

NODES = (*SERVERS, *WORKERS, DISPATCHER)


def storm(cluster: Cluster, chance: Random, events: int) -> None:
    """Let `events` things happen, and validate after each."""
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=events)
    for name in names:
        name(cluster, chance)
        cluster.validate()


def push(cluster: Cluster, chance: Random) -> None:
    values = {slot: chance.randint(1, 9) for slot in range(SLOTS) if chance.random() < 0.5}
    cluster.push(
        chance.choice(WORKERS),
        values,
        direct=chance.random() < 0.4,
        pull=chance.random() < 0.2,
        everywhere=chance.random() < 0.2,
    )


def pull(cluster: Cluster, chance: Random) -> None:
    cluster.pull(chance.choice(WORKERS), set(chance.sample(range(SLOTS), chance.randint(1, 2))))


def deliver(cluster: Cluster, chance: Random) -> None:
    at = chance.choice([0.0, 0.5, 1.0])
    for _ in range(min(chance.randint(1, 10), len(cluster.letters))):
        cluster.deliver(int(at * (len(cluster.letters) - 1)))
    if chance.random() < 0.5:
        cluster.flush()


def replay(cluster: Cluster, chance: Random) -> None:
    if cluster.sent:
        cluster.replay(chance.randint(1, 40))


def abandon(cluster: Cluster, chance: Random) -> None:
    cluster.abandon(chance.choice(WORKERS))


def lose(cluster: Cluster, chance: Random) -> None:
    letters = cluster.intercept(chance.choice(NODES))
    for letter in letters if chance.random() < 0.5 else []:
        cluster.take(letter)


def tick(cluster: Cluster, chance: Random) -> None:
    cluster.tick(chance.choice([1.0, 1.0, 40.0]))
    cluster.flush()


def change_mood(cluster: Cluster, chance: Random) -> None:
    cluster.change_mood(chance.choice(SERVERS), chance.choice(list(Mood)))


def move(cluster: Cluster, chance: Random) -> None:
    slot = chance.randrange(SLOTS)
    owner = int(cluster.view.owners[slot])
    cluster.move(slot, chance.choice([server for server in SERVERS if server != owner]))
    if chance.random() < 0.5:
        cluster.learn(owner)
        cluster.give(owner)


def arrive(cluster: Cluster, chance: Random) -> None:
    if cluster.moves:
        cluster.arrive(chance.randrange(4), again=chance.random() < 0.5)


def learn(cluster: Cluster, chance: Random, share: float = 0.5) -> None:
    for node in NODES:
        if chance.random() < share:
            cluster.learn(node)
            if node in SERVERS and chance.random() < 0.5:
                cluster.give(node)


def kill_dispatcher(cluster: Cluster, chance: Random) -> None:
    if cluster.may_kill():
        cluster.kill_dispatcher(returns=chance.random() < 0.7, haunts=chance.random() < 0.5)
        learn(cluster, chance, share=0.4)


def restart_worker(cluster: Cluster, chance: Random) -> None:
    if cluster.may_restart():
        cluster.restart_worker(chance.choice(WORKERS), haunts=chance.random() < 0.5)


WEIGHTS = {
    deliver: 8,
    push: 3,
    tick: 3,
    replay: 2,
    learn: 2,
    arrive: 2,
    change_mood: 1.5,
    move: 1,
    pull: 1,
    lose: 1,
    abandon: 0.3,
    kill_dispatcher: 0.7,
    restart_worker: 0.5,
}
