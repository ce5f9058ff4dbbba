"""Whom a customer asks in the place of a node that is dead, has left, or owns something no more.

What was asked of a dead node is asked of whom else has it, as soon as that is known, or of its next
life; when nobody is found in time it fails. A request says itself whom else to ask (`recut`); here
is when that is done.

Nodes on one link keep the order of what they are sent, so only a push that goes another way than
what comes after it could be overtaken. Those are marked in `Tracker.astray`; a pull that was
answered past one is asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from postoffice.errors import DeadNodeError
from postoffice.node import Role, node_name
from postoffice.request import Request
from postoffice.resending import Place
from postoffice.tracker import Tracker
from postoffice.view import ClusterView
from van.errors import PsliteError
from van.message import Flag

_HINT = (
    "nobody has taken over what it had: [cluster] replicas = 1 keeps a copy of each server, "
    "on_server_failure = restart waits for one that is started again"
)


class Rerouting:
    """Asks others, by what is known of the cluster.

    Args:
        tracker: whose requests these are.

    Attributes:
        lives_over: of dispatchers the last life that has ended.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._dead: dict[int, float] = {}  # nodes that others may take over from, until when
        # The last life that has ended, and the one that is asked: never the next by mistake. None
        # of them is ever removed, so neither thread needs the other's leave.
        self.lives_over: dict[int, int] = {}
        self._lives_asked: dict[int, int] = {}

    # -- who is there -------------------------------------------------------------------------

    def see(
        self, old: ClusterView, new: ClusterView, patience: Callable[[int], float], now: float
    ) -> None:
        """Others live, or own something, than before.

        Args:
            patience: seconds to wait for who takes over, of a node id; see `fail_dead`.
        """
        self._note_lost(old, new)
        for node in new.dead - old.dead:
            self._dead[node] = now + patience(node)
        for node in [node for node in self._dead if node in new.nodes]:
            del self._dead[node]
        for node in _ended_dispatchers(old, new):  # what it was given goes to the servers
            self.lives_over[node] = old.nodes[node].incarnation
            self._leave(node)
        if new.map_version > old.map_version:
            for node in self._dead:
                self._leave(node)
            self._ask_astray()
        for node in new.gone - old.gone:  # what it had others have, and it hears no more
            self.excuse(node)

    def ask_life(self, node: int, incarnation: int) -> None:
        """From here on that life of a dispatcher is asked; of former ones nothing is under way."""
        self._lives_asked[node] = incarnation

    def is_over(self, node: int) -> bool:
        """Whether the life of a dispatcher that is asked has ended, though it may have another."""
        return self.lives_over.get(node, -1) >= self._lives_asked.get(node, 0)

    def is_awaited(self, node: int) -> bool:
        """Whether a node is dead, and somebody may still take over."""
        return node in self._dead

    # -- others are asked ---------------------------------------------------------------------

    def ask_others(self, request: Request, place: Place) -> bool:
        """Ask others in the place of who was asked; False where nobody is known."""
        message = request.waiting_for.get(place)
        if message is None or request.recut is None:
            return False
        try:
            if not request.recut(message):
                return False
        except Exception as error:  # raised where the request is waited for
            request.error = request.error or error
        if message.meta.flags & Flag.PUSH:
            self._tracker.astray |= {other: False for other in request.waiting_for if other[2] > 1}
        self._tracker.settle(request, place)
        return True

    def excuse(self, node: int) -> None:
        """Expect nothing more of a node: it has left, and had what it needed."""
        self._leave(node, is_excused=True)

    def fail_dead(self, now: float) -> None:
        """End what was asked of nodes in whose place nobody has come in time."""
        for node in [node for node, end in self._dead.items() if end <= now]:
            del self._dead[node]
            self._leave(node, DeadNodeError(node, node_name(node), _HINT))

    def _leave(self, node: int, error: PsliteError | None = None, is_excused: bool = False) -> None:
        """Ask others what was asked of `node`, or end that with `error`."""
        for request in self._tracker.open_requests():
            for place in [place for place in list(request.waiting_for) if place[1] == node]:
                if not self.ask_others(request, place):
                    request.error = request.error or error
                    if is_excused or error is not None:
                        self._tracker.settle(request, place)

    # -- the order of pushes and pulls ----------------------------------------------------------

    def _note_lost(self, old: ClusterView, new: ClusterView) -> None:
        """What a former life of a node was sent may be lost; what is sent after that is not."""
        lost = {n.id for n in old.nodes.values() if new.is_fenced(n.id, n.incarnation)}
        for place, message in self._tracker.unanswered() if lost else ():
            if place[1] in lost and message.meta.flags & Flag.PUSH:
                self._tracker.astray[place] = True

    def _ask_astray(self) -> None:
        """A map has come: cut what is astray anew, before anything younger."""
        for place in sorted(self._tracker.astray):
            request = self._tracker.open_request(place[0])
            if place in self._tracker.astray and request is not None:
                self.ask_others(request, place)

    def is_overtaking(self, request: Request, place: Place) -> bool:
        """Whether a pull was answered that a push before it may come after: it is asked again.

        That may be where the push was refused, or was sent to others by a map that the pull was
        not cut by.
        """
        message = request.waiting_for.get(place)
        if message is None or not message.meta.flags & Flag.PULL:
            return False
        for other, is_refused in list(self._tracker.astray.items()):
            if other[0] < request.first and (
                is_refused or self._version_of(other) != message.meta.map_version
            ):
                return True
        return False

    def _version_of(self, place: Place) -> int:
        """By which map a message without an answer was cut."""
        request = self._tracker.open_request(place[0])
        message = None if request is None else request.waiting_for.get(place)
        return -1 if message is None else message.meta.map_version


def _ended_dispatchers(old: ClusterView, new: ClusterView) -> list[int]:
    """Those whose life is over, also where another has begun, which must not get their requests."""
    return [
        node.id
        for node in old.nodes.values()
        if node.role is Role.DISPATCHER
        and (node.id not in new.nodes or new.nodes[node.id].incarnation != node.incarnation)
    ]
