"""A worker that changes its way: to another dispatcher, past it, or back.

Nothing of what it has asked goes two ways: it changes between two requests (where steps are
counted, between two steps), when everything but pulls has been answered by the way it went. So the
servers have its pushes, and a later pull sees them whichever way that goes. The former dispatcher
is told that it comes no more (LEAVE), the next one that it does (JOIN): a dispatcher waits for its
own workers only, and must know their tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kv.dispatcher.protocol import BALANCE_APP
from kv.dispatcher.way import Way
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
        if way.is_open:
            Customer(BALANCE_APP, 0, office, self._hear, remote_error)

    def _hear(self, message: Message) -> None:
        """A dispatcher asks this worker to go past it, or to come back."""
        meta, body = message.meta, message.meta.body
        self._way.ask(meta.sender, int(body["number"]), bool(body["spill"]))
        try:
            self._office.send(Message(answer_to(meta)))
        except PsliteError as error:  # it asks again
            log.debug("%s is not answered: %s", node_name(meta.sender), error)

    def change(self) -> None:
        """Go the way that is wanted now, when nothing is under way by the former one.

        It returns early where the former way comes to be wanted again meanwhile.

        Raises:
            ClusterStoppedError: the cluster ended meanwhile.
        """
        way = self._way
        while way.is_changing:
            self._office.wait(
                lambda: not way.is_changing or self._is_settled(),
                what=lambda: "answers by the way that went before",
            )
            if not way.is_changing:
                return
            former = way.node if way.is_open else None
            if former is not None:
                self._tell(Command.LEAVE, former, None)
                way.use(None)
            wanted = way.wanted
            if wanted is not None:
                self._tell(Command.JOIN, wanted, dict(self._introduction()))
                if way.is_there(wanted):  # else it has died over that
                    way.use(wanted)
            log.info("%s goes through %s", self._office.name, _named(wanted))

    def _is_settled(self) -> bool:
        """Whether nothing is under way that another way could overtake, or be overtaken by."""
        kinds = Flag.PUSH | Flag.PULL
        return all(m.meta.flags & kinds == Flag.PULL for _, m in self._customer.unanswered())

    def _tell(self, command: Command, dispatcher: int, body: Any) -> None:
        """Tell a dispatcher and wait; one that dies over that needs to know no more."""
        customer = self._customer
        with customer.sending() as made:
            request = customer.new_request([dispatcher], recut=lambda message: True, made=made)
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
        customer.wait(request)


def _named(dispatcher: int | None) -> str:
    return "no dispatcher" if dispatcher is None else node_name(dispatcher)
