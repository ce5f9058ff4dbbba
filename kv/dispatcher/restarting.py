"""Workers that were started again: what is known of their steps.

A worker's next life asks how many steps of it are known. A step whose end has come here is
complete: its pushes are here, or have been sent, and go on to servers with its end. Of a step that
has not ended the next life makes all pushes again. So what is here of it is dropped, as servers do
with what their rounds hold (`Engine.beginning`), and servers hear of the beginning behind all
pushes of the former life. The worker has said before that it comes (`kv.dispatcher.changing`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kv.consistency.progress import Progress
from kv.dispatcher.buffers import Pairs
from kv.dispatcher.refusing import Error
from kv.dispatcher.stepping import Steps
from kv.dispatcher.upstream import Servers
from kv.table_protocol import Command
from postoffice.node import role_and_rank
from van.message import Flag, Message, answer_to


class Restarts:
    """Takes the requests with which workers begin again. Called with the dispatcher's lock held.

    Args:
        progress: of this dispatcher's workers.
        pairs: what they have pushed.
        steps: ends of steps that wait.
        answer, fail: called when servers have answered.
    """

    def __init__(
        self,
        servers: Servers,
        progress: Progress,
        pairs: Pairs,
        steps: Steps,
        answer: Callable[[Message, Message], None],
        fail: Callable[[Message, BaseException, Error | None], None],
    ) -> None:
        self._servers, self._progress, self._pairs, self._steps = servers, progress, pairs, steps
        self._answer, self._fail = answer, fail
        self._waiting: list[tuple[Message, int, int]] = []

    def take(self, message: Message) -> None:
        """A worker asks what is known of it, or says at which step it begins."""
        meta = message.meta
        rank, life, step = role_and_rank(meta.sender)[1], meta.incarnation, meta.body["clock"]
        self._steps.forget_former(meta.sender, life)
        if step is None:
            self._tell(message, {"rank": rank, "clock": None})
            return
        self._progress.begin_again(rank, life, int(step))
        self._pairs.drop_former(rank, life, int(step))
        self._waiting.append((message, rank, int(step)))

    def say(self, holds: Callable[[int, int], bool]) -> None:
        """Tell servers of beginnings before which nothing more has to be sent.

        Args:
            holds: see `Steps.ready`.
        """
        ready = [entry for entry in self._waiting if not holds(entry[1], entry[2] - 1)]
        self._waiting = [entry for entry in self._waiting if entry not in ready]
        for message, rank, _ in ready:
            meta = message.meta
            self._tell(message, {**meta.body, "rank": rank, "life": meta.incarnation})

    def _tell(self, message: Message, said: dict[str, Any]) -> None:
        rank, before = said["rank"], self._servers.pushes_under_way
        answers: list[Message] = []

        def body_for(server: int) -> dict[str, Any]:
            after = [[timestamp, piece] for timestamp, node, piece in before if node == server]
            return {**said, "after": after} if after else said

        def answered(error: BaseException | None, reason: Error | None) -> None:
            if error is not None:
                self._fail(message, error, reason)
                return
            bodies = [answer.meta.body for answer in answers]
            known = [body["completed"] for body in bodies]
            body = {
                "completed": max([self._progress.completed[rank], *known]),
                "position": max((body["position"] for body in bodies), default=0),
            }
            self._answer(message, Message(answer_to(message.meta, body=body)))

        flags = Flag.PUSH | Flag.EVERYWHERE
        servers = self._servers.living()
        self._servers.tell(Command.BEGIN, flags, servers, (), body_for, answered, answers.extend)
