"""Ends of steps, and of workers: when servers are told of them, and of what begins anew.

Servers hear of each behind the pushes that belong before it.
"""

from __future__ import annotations

from typing import Any

from kv.delivery.repeats import Repeats
from kv.dispatcher.answering import Answers
from kv.dispatcher.buffers import Pairs
from kv.dispatcher.members import Members
from kv.dispatcher.merging import Merging
from kv.dispatcher.packing import Packing
from kv.dispatcher.refusing import Error
from kv.dispatcher.restarting import Restarts
from kv.dispatcher.sending import Sending
from kv.dispatcher.stepping import Steps, said_to_all
from kv.dispatcher.upstream import Servers
from kv.table_protocol import Command
from postoffice.node import role_and_rank
from van.message import Flag, Message, answer_to

_ANY_STEP = 1 << 62


class Ends:
    """Takes ends and beginnings of workers' steps. Called with the dispatcher's lock held.

    Args:
        servers: told of them.
        repeats: which requests have come.
        members: the dispatcher's workers.
        pairs: what they have pushed.
        merging, sending: pushes that leave, and those that have.
        packing: forgets who has finished.
        answers: to workers.
        may_move: rows may get another owner at any time.

    Attributes:
        steps: ends that wait.
    """

    def __init__(
        self,
        servers: Servers,
        repeats: Repeats,
        members: Members,
        pairs: Pairs,
        merging: Merging,
        sending: Sending,
        packing: Packing,
        answers: Answers,
        may_move: bool,
    ) -> None:
        self._servers, self._repeats, self._pairs = servers, repeats, pairs
        self._members, self._progress = members, members.progress
        self._merging, self._sending, self._packing = merging, sending, packing
        self._answers, self._may_move = answers, may_move
        self.steps = Steps()
        say = answers.answer, answers.fail
        self._restarts = Restarts(servers, members.progress, pairs, self.steps, *say)

    # -- what workers say -------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """A worker has ended a step."""
        rank = role_and_rank(message.meta.sender)[1]
        if self._has_come(message):
            self._take_step(message, rank)
        else:
            self.steps.early.append((message, rank))

    def take_early(self) -> None:
        """Something has come: take the ends of steps that waited for it."""
        for step, rank in self.steps.come(self._has_come):
            self._take_step(step, rank)

    def _has_come(self, message: Message) -> bool:
        """Whether all pushes that belong before the end of a step are here, or done."""
        stream = self._repeats.windows.find(message.meta)
        after = (message.meta.body or {}).get("after", ())
        return stream is None or all(stream.has_come(int(ts), int(piece)) for ts, piece in after)

    def _take_step(self, message: Message, rank: int) -> None:
        step = int(message.meta.body["clock"])
        self._progress.step(rank, step)
        self.steps.wait(message, rank, step)
        for pair in self._pairs:
            if pair.round is not None:
                self._merging.look_at(pair)
        self.look_again()

    def begin_again(self, message: Message) -> None:
        """A worker was started again, see `Restarts`."""
        self._restarts.take(message)
        self._merging.look_at_all()
        self.say()

    def finish(self, message: Message) -> None:
        """A worker has finished, or rests."""
        rank = role_and_rank(message.meta.sender)[1]
        rests = bool(message.meta.body and message.meta.body.get("rests"))
        self._merging.lose(rank) if rests else self._merging.finish(rank)
        if not rests:
            self._packing.forget(message.meta.sender)
        body = {"rank": rank, "rests": True} if rests else {"rank": rank}

        def answered(error: BaseException | None, said: Error | None) -> None:
            self._answers.done(message, error, said)

        self._servers.tell(
            Command.FINISH, message.meta.flags, self._servers.living(), (), lambda _: body, answered
        )

    # -- what servers hear ------------------------------------------------------------------

    def look_again(self) -> None:
        """A worker waits for less, or is waited for no more: rounds may be over, ends be said."""
        self._pairs.drop_rounds(self._progress.slowest())
        self.say()

    def say(self) -> None:
        """Tell servers of the ends of steps whose pushes have been sent, and of new beginnings."""
        self._say_ends()
        self._restarts.say(self._holds)
        for message in self._members.gone(self._holds_of):
            self._answers.answer(message, Message(answer_to(message.meta)))

    def _say_ends(self) -> None:
        ready = self.steps.ready(self._holds)
        if not ready:
            return
        before = self._servers.pushes_under_way
        steps = [[rank, step, said.meta.body.get("position", -1)] for said, rank, step in ready]

        def body_for(server: int) -> dict[str, Any]:
            after = [[timestamp, piece] for timestamp, node, piece in before if node == server]
            return {"steps": steps, "after": after} if after else {"steps": steps}

        answers: list[Message] = []

        def answered(error: BaseException | None, said: Error | None) -> None:
            self.steps.said(ready)
            for message, _, _ in ready:
                self._answers.done(message, error, said, said_to_all(answers))
            self.say()

        self._servers.tell(
            Command.STEP,
            Flag.PUSH | Flag.EVERYWHERE,
            self._servers.living(),
            (),
            body_for,
            answered,
            answers.extend,
        )

    def _holds(self, rank: int, step: int) -> bool:
        """Whether something of a worker up to a step is not where servers must have it."""
        if self._pairs.holds(rank, step):
            return True
        # Where rows may move another server may become the owner of a push's rows, and would not
        # know that it is to come: all must have it before any hears of the step's end.
        return self._may_move and self._sending.with_servers[rank] > 0

    def _holds_of(self, rank: int) -> bool:
        """Whether anything of a worker is here that servers have not answered."""
        is_with_servers = self._sending.with_servers[rank] > 0 or self.steps.is_saying(rank)
        return is_with_servers or self._pairs.holds(rank, _ANY_STEP)
