"""The part of a node that moves messages: to its customers, from them, and past former selves.

    participant    who the node is and who is there, waiting, its end
    sender         messages out
    receiver       messages in
    exchange       the above; its customers, and what a new view changes for them

Who is in the cluster comes as views (`ClusterView`); where they come from is not known here.
`postoffice.postoffice` adds what a node has to do with its scheduler.

Source: ps-lite, src/postoffice.cc and src/van.cc.
"""

from __future__ import annotations

from collections.abc import Callable

from postoffice.customer import Customer
from postoffice.errors import PostofficeError
from postoffice.failure import Verdict
from postoffice.node import SCHEDULER_ID, Role, role_and_rank
from postoffice.receiver import Receiver
from postoffice.resending import Resend, Resending
from postoffice.shape import ClusterShape
from postoffice.view import ClusterView
from van.addresses import place_of
from van.van import Van

OnView = Callable[[ClusterView, ClusterView], None]
"""Called with the former view and the new one, before any later message is handed on."""


class Exchange(Receiver):
    """Sends and hands on the messages of one node. Arguments as for `Participant`.

    Attributes:
        on_view: called with each new view, by the thread that drives the van.
    """

    def __init__(
        self, role: Role, van: Van, shape: ClusterShape, *, nonce: int | None = None
    ) -> None:
        super().__init__(role, van, shape, nonce=nonce)
        self.on_view: list[OnView] = []
        self._resend: Resend | None = None

    # -- customers ------------------------------------------------------------------------------

    def add_customer(self, customer: Customer) -> None:
        """Let `customer` get its messages; called by its constructor."""
        key = (customer.app, customer.customer)
        if key in self._customers:
            raise PostofficeError(
                f"app {key[0]} customer {key[1]} exists already on {self.name}; "
                f"give the second one another customer id"
            )
        self._customers[key] = customer
        if self._resend is not None:
            customer.resending = Resending(self._resend)
        if customer.handle_request is not None:
            self._servers_of_app.setdefault(customer.app, customer)

    def resend_with(self, settings: Resend) -> None:
        """Send again what nobody answers; to be called once, before the start."""
        self._resend = settings
        for customer in self._customers.values():
            customer.resending = Resending(settings)
        self.van.every(settings.tick, self._send_again)

    def _send_again(self) -> None:
        if not self._stopped:
            now = self.van.now()
            for customer in list(self._customers.values()):
                customer.send_again(now)

    # -- views ----------------------------------------------------------------------------------

    def _see(self, view: ClusterView) -> None:
        """Take a newer view, then what came too early for the former one."""
        old, self.view = self.view, view
        self.nodes, self.epoch = dict(view.nodes), view.epoch
        for node in old.nodes.values():
            now = view.nodes.get(node.id)
            if now is not None and now.address == node.address:
                continue
            if node.id != SCHEDULER_ID and node.id != self.node_id:
                self._hang_up(node.id)
                self._former[node.id] = node
        for call in self.on_view:
            call(old, view)
        for customer in list(self._customers.values()):
            customer.see(old, view, self._patience)
        if view.epoch > old.epoch:
            self._take_early()

    def _patience(self, node: int) -> float:
        """Seconds to wait for somebody in the place of a node that has died.

        A server may have a backup, which a newer slot map says, or be started again; where neither
        is wanted the scheduler ends the job.
        """
        role, _ = role_and_rank(node)
        failures = self.shape.failures
        if self._resend is None:
            return 0.0
        if role in (Role.SERVER, Role.DISPATCHER) or failures.verdict(role, False) is Verdict.AWAIT:
            return failures.restart_timeout
        return 0.0

    def __repr__(self) -> str:
        mark = {Role.SCHEDULER: "H", Role.SERVER: "S", Role.WORKER: "W", Role.DISPATCHER: "D"}
        pending = sum(c.pending for c in list(self._customers.values()))
        return f"<{mark[self.role]}[{self.node_id}] {place_of(self.van.address)} pending={pending}>"
