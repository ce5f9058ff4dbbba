"""A worker that changes its way: to another dispatcher or its next life, past it, or back.

Nothing of what it has asked goes two ways: it changes between two requests (where steps are
counted, between two steps), when everything but pulls has been answered by the way it went. So the
servers have its pushes, and a later pull sees them whichever way that goes. Pulls that are under
way need not be waited for, and those made ahead must not be: they may wait for this worker's own
next step. They change nothing, are answered from where they were asked, and what is pushed later
may overtake them on one way as well. The former dispatcher is told that the worker comes no more
(LEAVE), the next one that it does (JOIN): a dispatcher waits for its own workers only, and must
know their tables.

A worker that was started again does not know where its former life went. So it begins with a LEAVE
to all dispatchers but the one that it will use, and a JOIN there: a LEAVE is answered when servers
have all that the dispatcher had of the worker, and what they are asked after that is known of it
(BEGIN) holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kv.dispatcher.protocol import BALANCE_APP
from kv.dispatcher.way import Life, Way
from kv.remote import remote_error
from kv.table_protocol import TABLES_APP, Command
from postoffice.customer import Customer
from postoffice.node import node_name
from postoffice.postoffice import Postoffice
from van.errors import PsliteError
from van.message import Flag, Message, Meta, answer_to

log = logging.getLogger(__name__)


class Changing:
    """Takes a worker's requests from one way to another.

    Args:
        office: the worker's node, not yet started.
        customer: makes the requests.
        way: what is used and wanted.
        introduction: what a dispatcher must know of this worker: the body of a JOIN.
    """

    def __init__(
        self,
        office: Postoffice,
        customer: Customer,
        way: Way,
        introduction: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._office, self._customer, self._way = office, customer, way
        self._introduction = introduction
        self._has_begun = False
        Customer(BALANCE_APP, 0, office, self._hear, remote_error)

    def _hear(self, message: Message) -> None:
        """A dispatcher asks this worker to go past it, or to come back."""
        meta, body = message.meta, message.meta.body
        asks = meta.sender, meta.incarnation
        self._way.ask(asks, int(body["number"]), bool(body["spill"]))
        try:
            self._office.send(Message(answer_to(meta)))
        except PsliteError as error:  # it asks again
            log.debug("%s is not answered: %s", node_name(meta.sender), error)

    @property
    def is_due(self) -> bool:
        """Whether there is something to change."""
        return not self._has_begun or self._way.is_changing

    def change(self) -> None:
        """Go the way that is wanted now, when nothing is under way by the former one.

        It returns early where the former way comes to be wanted again meanwhile.

        Raises:
            ClusterStoppedError: the cluster ended meanwhile.
        """
        way = self._way
        if not self._has_begun:
            self._has_begun = True
            if self._office.node_id in self._office.view.fenced:
                for other in way.others():
                    self._tell(Command.LEAVE, other, None)
        while way.is_changing:
            self._office.wait(
                lambda: not way.is_changing or self._is_settled(),
                what=lambda: "answers by the way that went before",
            )
            if not way.is_changing:
                return
            former = way.used
            if former is not None:
                self._tell(Command.LEAVE, former, None)
                way.use(None)
            wanted = way.wanted
            if wanted is not None and self._tell(Command.JOIN, wanted, dict(self._introduction())):
                way.use(wanted)  # else it has died over that
            log.info("%s goes through %s", self._office.name, _named(wanted))

    def _is_settled(self) -> bool:
        """Whether nothing is under way that another way could overtake, or be overtaken by."""
        kinds = Flag.PUSH | Flag.PULL
        return all(m.meta.flags & kinds == Flag.PULL for _, m in self._customer.unanswered())

    def _tell(self, command: Command, life: Life, body: Any) -> bool:
        """Tell a dispatcher and wait; whether it has answered before its life has ended."""
        customer, (dispatcher, _) = self._customer, life
        customer.ask_life(*life)
        with customer.sending() as made:
            request = customer.new_request(
                [dispatcher], bool, recut=lambda message: True, made=made
            )
            meta = Meta(
                recipient=dispatcher,
                app=TABLES_APP,
                customer=customer.customer,
                timestamp=request,
                oldest=customer.oldest,
                piece=1,
                cmd=command,
                body=body,
            )
            customer.send(Message(meta))
        answered: bool = customer.wait(request)
        return answered


def _named(dispatcher: Life | None) -> str:
    return "no dispatcher" if dispatcher is None else node_name(dispatcher[0])
