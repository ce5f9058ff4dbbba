"""Workers that come to a dispatcher (JOIN) and go (LEAVE), see `kv.dispatcher.changing`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kv.dispatcher.answering import Answers
from kv.dispatcher.balancing import Balancer
from kv.dispatcher.defining import Defined
from kv.dispatcher.ends import Ends
from kv.dispatcher.members import Members
from kv.dispatcher.merging import Merging
from kv.dispatcher.pulls import Pulls
from kv.spec import TableSpec
from postoffice.node import role_and_rank
from postoffice.postoffice import Postoffice
from van.message import Message, answer_to


class Joining:
    """Takes what workers say of themselves. Called with the dispatcher's lock held.

    Args:
        office: the dispatcher's node.
        lock: the dispatcher's.
        members: its workers.
        pulls: what these ask for.
        merging, ends: what is sent of theirs.
        balancer: if it sends workers past itself.
        define: takes in the tables of a worker that comes.
        answers: to workers.
    """

    def __init__(
        self,
        office: Postoffice,
        lock: threading.RLock,
        members: Members,
        pulls: Pulls,
        merging: Merging,
        ends: Ends,
        balancer: Balancer | None,
        define: Callable[[TableSpec, Defined], None],
        answers: Answers,
    ) -> None:
        self._office, self._lock, self._members, self._pulls = office, lock, members, pulls
        self._merging, self._ends, self._balancer = merging, ends, balancer
        self._define, self._answers = define, answers

    def join(self, message: Message) -> None:
        """A worker comes, its pushes answered: it gets no row that was asked for before."""
        specs = iter([TableSpec.from_dict(packed) for packed in message.meta.body["tables"]])
        is_known, is_looping = True, False  # the last one asked for; below in `go_on`

        def go_on() -> None:
            nonlocal is_known, is_looping
            is_looping = True
            while is_known and (spec := next(specs, None)) is not None:
                is_known = False
                self._define(spec, defined)
            is_looping = False
            if is_known:
                self._come(message)

        def defined(error: BaseException | None) -> None:
            nonlocal is_known
            with self._lock:
                if error is not None:
                    self._answers.refuse(message, error)
                    return
                is_known = True
                if not is_looping:  # else it was known at once: a call for each would go too deep
                    go_on()

        go_on()

    def _come(self, message: Message) -> None:
        """All tables of a worker that comes are known."""
        rank, body = role_and_rank(message.meta.sender)[1], message.meta.body
        step, position = int(body["step"]), int(body["position"])
        was_elsewhere = self._members.come(rank, step, position, bool(body["rests"]))
        self._pulls.pushed_at[rank] = self._office.van.now()
        if self._balancer is not None:
            self._balancer.joined(rank, was_elsewhere)
        self._answers.answer(message, Message(answer_to(message.meta)))

    def leave(self, message: Message) -> None:
        """A worker goes: nobody here waits for it. It is answered behind all of its pushes; only a
        former life of it may have left some."""
        meta = message.meta
        rank = role_and_rank(meta.sender)[1]
        self._ends.steps.forget_former(meta.sender, meta.incarnation)
        self._members.go(message, rank)
        if self._balancer is not None:
            self._balancer.left(rank)
        self._merging.lose(rank)
        self._ends.look_again()
