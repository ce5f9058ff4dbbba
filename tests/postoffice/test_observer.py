"""Somebody outside a cluster asks its nodes what they know."""

from __future__ import annotations

import pytest

from postoffice.errors import ObserverError, PostofficeError
from postoffice.head import SchedulerOffice
from postoffice.node import Group, Node, Role
from postoffice.observer import Observer
from postoffice.postoffice import ClusterShape, Postoffice
from tests.postoffice.nodes import run_nodes
from van.courier import ZmqVan
from van.loopback import LoopbackNetwork
from van.message import Control, Message, Meta


def refuse() -> None:
    raise PostofficeError("not now; ask again")


def watched_cluster(seed: int, look: object) -> None:
    """A scheduler, a server and a worker on a loopback network, and `look` beside them."""
    network = LoopbackNetwork(seed)
    shape = ClusterShape(servers=1, workers=1, scheduler="scheduler")

    def server(office: Postoffice) -> None:
        office.queries.offer("rows", lambda: {"user": 7})
        office.queries.offer("fault", lambda: 1 // 0)
        office.queries.offer("refusal", refuse)

    def worker(office: Postoffice, number: int) -> None:
        office.start()
        with Observer(network.van(), "scheduler", bind="observer") as observer:
            look(observer)  # type: ignore[operator]
        office.barrier(Group.WORKERS)
        office.finalize()

    run_nodes(network, shape, server, worker)


@pytest.mark.parametrize("seed", range(10))
def test_an_observer_sees_the_cluster_and_asks_a_node(seed: int) -> None:
    seen: list[object] = []

    def look(observer: Observer) -> None:
        cluster = observer.cluster()
        nodes = observer.nodes()
        (server,) = (node for node in nodes if node.role is Role.SERVER)
        seen.extend([cluster["phase"], len(nodes), observer.ask(server, "rows")])

    watched_cluster(seed, look)

    assert seen == ["running", 3, {"user": 7}]


def test_what_a_node_cannot_answer_is_an_error_that_says_why() -> None:
    def look(observer: Observer) -> None:
        (server,) = (node for node in observer.nodes() if node.role is Role.SERVER)
        with pytest.raises(
            ObserverError, match=r"server 0 .*nothing of 'moon'.*fault, .*refusal, .*rows"
        ):
            observer.ask(server, "moon")
        with pytest.raises(ObserverError, match="ZeroDivisionError"):
            observer.ask(server, "fault")
        with pytest.raises(ObserverError, match=r"not now; ask again") as refused:
            observer.ask(server, "refusal")
        assert "PostofficeError" not in str(refused.value)  # the text says all

    watched_cluster(0, look)


def test_a_scheduler_that_is_not_there_is_an_error_in_time() -> None:
    network = LoopbackNetwork(0)
    failed: list[str] = []

    def look() -> None:
        with (
            Observer(network.van(), "nowhere", bind="observer") as observer,
            pytest.raises(ObserverError, match=r"did not answer within 5 s; does the job"),
        ):
            observer.cluster()
        failed.append("yes")

    network.spawn("observer", look)
    network.run_all()

    assert failed == ["yes"]


@pytest.mark.parametrize(
    "body",
    [None, {}, {"topic": "rows"}, {"topic": 3, "number": 1}, {"topic": "rows", "number": -1}, [1]],
)
def test_a_question_without_sense_is_not_answered(body: object) -> None:
    shape = ClusterShape(servers=1, workers=1, scheduler="scheduler")
    office = Postoffice(Role.SERVER, LoopbackNetwork(0).van(), shape)

    question = Meta(control=Control.QUERY, reply_to="somewhere", body=body)

    assert office.queries.answer(question) is None


def test_over_real_sockets_and_before_all_nodes_have_come() -> None:
    shape = ClusterShape(servers=1, workers=1, scheduler="tcp://127.0.0.1:0")
    head = SchedulerOffice(ZmqVan(background=True), shape)
    address = head.listen()
    try:
        with Observer(ZmqVan(background=False), address, timeout=30) as observer:
            cluster = observer.cluster()
    finally:
        head.finalize()

    assert cluster["phase"] == "gathering"
    assert cluster["missing"] == "1 server, 1 worker"
    assert [Node.unpack(node).role for node in cluster["nodes"]] == [Role.SCHEDULER]


def test_a_report_that_nobody_asked_for_changes_nothing() -> None:
    network = LoopbackNetwork(0)
    observer = Observer(network.van(), "scheduler", bind="observer")
    liar = network.van()
    liar.connect(5, "observer")
    body = {"number": 5, "facts": "lies", "error": None}

    liar.send(Message(Meta(recipient=5, control=Control.REPORT, body=body)))

    network.spawn("pause", lambda: network.wait(lambda: False, network.now + 1) and None)
    network.run_all()
    assert observer._reports == {}
